"""The state of a run at one moment: everything that the screen draws, and nothing that it must compute.

Published four times a second, live or replayed. All structs are frozen and plain, unknown is None; texts that came
from a server or its log were made harmless before they got here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from loadgen.metrics.comparison import BaselineView, Comparison
from loadgen.metrics.deltas import Summary
from loadgen.metrics.engine import EngineStage, EngineView, OthersTraffic
from loadgen.metrics.finding import Finding
from loadgen.metrics.hardware_result import ComputeResult, EnergyResult
from loadgen.metrics.journal import Diagnosis, Milestone, SearchResult
from loadgen.metrics.result import CostResult, CurvePoint, Requests, RunEvent, Throughput, Verdict
from loadgen.metrics.samples import GpuSample, GpuStatic, HostSample

SNAPSHOT_S = 0.25  # A run tells its state so often
WINDOW_S = 5.0  # the span of the percentiles in a `SeriesPoint`
RECENT_S = 10.0  # the span of `Snapshot.recent`
SHORTEST_S = 0.25
"""A load that was held for less, as on the way to another, has no point in a drawing: the tables have it."""
CURVE_PERCENTS = (
    *(0.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 85.0, 90.0),
    *(92.0, 94.0, 95.0, 96.0, 97.0, 98.0, 98.5, 99.0, 99.3, 99.5, 99.7, 99.8, 99.9),
    *(99.95, 99.97, 99.99, 99.995, 99.999),
)
"""Where a `Distribution` is sampled: denser towards the tail, as on HdrHistogram's axis of nines."""

Phase = Literal[
    "checking",
    "blocked",
    "starting",
    "probing",
    "running",
    "paused",
    "draining",
    "holding",
    "restarting",
    "failed",
    "stopping",
    "done",
]
"""`blocked`: the preflight says that the start would fail, and the operator decides; `holding`: the plan is done, the
server is still up, and the operator may go on; `restarting`: the server is stopped, to be started again; `failed`: it
did not start, died, or cannot be used, and the operator may start it again."""


class Liveness(msgspec.Struct, frozen=True):
    """What the server's processes do while its log is silent."""

    cpu_percent: float | None  # of one core, all processes together, since the last look; None at the first
    rss_bytes: int  # all processes together; a page that several share counts for each of them
    last_line_age_s: float | None = None  # since the last line of the log; None before the first
    hbm_used_bytes: int | None = None


SeenState = Literal["starting", "ready", "stopping", "stopped", "died", "unreachable"]
"""`unreachable`: a server that is not ours answered before, and does not now."""


class InstanceView(msgspec.Struct, frozen=True):
    """One of several servers of a run; the gauges are those of its /metrics."""

    url: str
    state: SeenState
    pid: int | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # 0 to 1


class ServerView(msgspec.Struct, frozen=True):
    """The server as vramp sees it."""

    engine: str
    url: str
    state: SeenState
    model: str | None = None
    version: str | None = None
    variant: str | None = None  # of the profile; None where it has none
    pid: int | None = None
    uptime_s: float | None = None
    milestones: tuple[Milestone, ...] = ()
    log_tail: tuple[str, ...] = ()  # the last lines, oldest first, without control sequences
    log_total: int = 0  # lines that the log had so far, of which `log_tail` has the last; 0 where nobody counts
    expected_s: float | None = None  # how long the last start of the same kind took
    liveness: Liveness | None = None  # while it starts: what its processes do, whatever the log says
    diagnosis: Diagnosis | None = None  # once it has died
    instances: tuple[InstanceView, ...] = ()
    """All servers, where there are several; `url` and `pid` are the first's, `milestones` the slowest's."""


class LoadView(msgspec.Struct, frozen=True):
    """What is asked for and what is really held."""

    stage: int  # number of the running stage, from 1; 0 before the first
    stages_planned: int
    concurrency: int | None  # the closed loop's target; None in open loop
    rate: float | None  # the open loop's target in requests a second; None in closed loop
    held: int  # streams open now
    queued: int  # open loop: arrivals that wait for a connection
    isl: int
    osl: int
    paused: bool = False
    manual: bool = False  # the operator has taken the load in hand
    held_open: bool = False  # the operator lets the stage go on past its end
    stage_elapsed_s: float = 0.0
    stage_progress: float | None = None  # 0 to 1 for a bounded stage

    @property
    def no_load(self) -> bool:
        """Nothing is asked for: what is to be seen is others' traffic."""
        return self.concurrency == 0 and self.rate is None


class SeriesPoint(msgspec.Struct, frozen=True):
    """One moment of the time series; percentiles over the last `WINDOW_S` seconds."""

    t_s: float  # seconds since the run began
    held: int = 0
    target: float | None = None
    output_tokens_per_s: float | None = None
    requests_per_s: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p99_ms: float | None = None
    errors: int = 0  # failures in this tick
    engine_running: float | None = None
    engine_waiting: float | None = None
    kv_usage: float | None = None
    read_lag_p99_ms: float | None = None
    client_cpu_percent: float | None = None
    client_rss_mb: float | None = None  # memory of all workers
    others_tokens_per_s: float | None = None  # output that others got; None while there is no sign of any beside a load


class GpuPace(msgspec.Struct, frozen=True):
    """What the counters of a GPU gain."""

    link_read_bytes_per_s: float | None = None  # between the last two looks
    link_write_bytes_per_s: float | None = None
    energy_j: float | None = None  # since the run began


class GpuView(msgspec.Struct, frozen=True):
    """One GPU now."""

    static: GpuStatic
    sample: GpuSample | None  # none before the first look
    flags: tuple[str, ...] = ()  # what is wrong with it, in a word or two each: `THROTTLED hbm 18%`, `PCIe x8 of x16`
    pace: GpuPace = GpuPace()
    of_server: bool = True  # the server computes on its socket


class StageView(msgspec.Struct, frozen=True):
    """The numbers of one stage so far."""

    number: int
    label: str
    concurrency: int | None
    rate: float | None
    isl: int
    osl: int
    running: bool
    elapsed_s: float
    held_mean: float | None
    requests: Requests
    throughput: Throughput
    open: int = 0  # sent and not over yet; 0 once the stage has ended
    latency_ms: dict[str, Summary] = {}  # by name: ttft, tpot, itl, e2e
    energy: EnergyResult | None = None  # none before five seconds of the window
    compute: ComputeResult | None = None  # once the engine has told its operations in the stage
    cost: CostResult | None = None  # none without a price
    slo_met: bool | None = None
    slo_needs: str = ""  # what it takes to be sure, such as "ttft_p99 needs 120 more streams"; empty once that is so
    stop_reason: str | None = None
    truth: str = ""  # client beside engine, in words; empty while the stage runs, and where the engine does not say
    truth_agrees: bool | None = None  # none where nothing could be compared
    waits_for: str = ""  # why it is not measured yet
    e2e_needs_s: float | None = None
    """How much longer it must be measured to know E2E; None where nothing can be said, 0 once it is known."""
    first_wave: int = 0  # streams that began all at once and are in none of the latencies
    moves: tuple[float, float] | None = None  # from where to where its load moves; None for one that stands
    curve: tuple[CurvePoint, ...] = ()  # by step, of a stage whose load moves: the steps so far
    notes: tuple[str, ...] = ()  # what its figures are of and what they are not, once it has ended
    others: OthersTraffic | None = None  # beside ours on the engine; while the stage runs, over the last seconds
    engine: EngineStage | None = None
    """The engine's word on it, once it has ended; while it runs without load, on the last seconds."""


class Distribution(msgspec.Struct, frozen=True):
    """How the latencies of a stage are distributed; names are ttft, tpot, itl and e2e."""

    stage: int  # its number, from 1
    label: str
    counts: dict[str, int] = {}
    curves_ms: dict[str, tuple[float, ...]] = {}  # the values at `CURVE_PERCENTS`


class ErrorView(msgspec.Struct, frozen=True):
    """One kind of failure over the whole run."""

    kind: str
    count: int
    message: str
    examples: tuple[str, ...] = ()  # the first messages of this kind that differ


class ClientView(msgspec.Struct, frozen=True):
    """The client's own health: may its numbers be trusted?"""

    timestamps: Literal["kernel", "user", "unknown"]
    workers: int
    cpu_percent: float | None  # all workers, of one core
    read_lag_p99_ms: float | None
    coalesced_share: float | None
    limited: bool
    why: str | None


class ReplayView(msgspec.Struct, frozen=True):
    """Where a replay is in the run that it plays."""

    position_s: float
    length_s: float
    speed: float  # seconds of the run in one of the operator's
    paused: bool


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a run at one moment."""

    t_s: float
    unix_s: float
    phase: Phase
    profile: str
    headline: str  # the verdict in words
    healthy: bool  # false when the headline needs the operator
    server: ServerView
    load: LoadView
    point: SeriesPoint
    client: ClientView
    engine: EngineView | None = None
    others: OthersTraffic | None = None  # of its traffic, what is not ours; a second behind
    compute: ComputeResult | None = None  # over the engine's last seconds; None where it does not tell
    stages: tuple[StageView, ...] = ()  # all stages so far, oldest first; the last may be running
    whole: StageView | None = None  # all stages together
    errors: tuple[ErrorView, ...] = ()
    events: tuple[RunEvent, ...] = ()  # all events so far, oldest first
    findings: tuple[Finding, ...] = ()  # of the preflight, the worst first
    gpus: tuple[GpuView, ...] = ()
    gpus_stale: bool = False  # samples have stopped coming
    telemetry: str = ""  # what measures the GPUs, or why nothing does
    host: HostSample | None = None
    verdicts: tuple[Verdict, ...] = ()  # of GPUs and of the running stage, the bad ones first
    curve: tuple[CurvePoint, ...] = ()  # against the streams held, over all stages
    reference: tuple[Comparison, ...] = ()
    """Published figures beside what the running or last stage measured; of all stages once the run is done."""
    other_data: bool = False  # the run sends other data than was published with
    baseline: BaselineView | None = None  # of the running or last stage; None without a baseline
    recent: dict[str, Summary] = {}  # the latencies of the last `RECENT_S` seconds: ttft, tpot, itl, e2e
    distributions: tuple[Distribution, ...] = ()  # of the running or last stage, then of the one before it
    baseline_distribution: Distribution | None = None  # of the baseline's stage under the same load; its `stage` is 0
    slo_ms: dict[str, float] = {}
    search: SearchResult | None = None  # once a search has ended
    variants: tuple[str, ...] = ()  # with which the server can be started anew
    past: tuple[SeriesPoint, ...] = ()
    """Points before `point` that no snapshot has told: of a replay, or for whoever looks late."""
    replay: ReplayView | None = None  # none while the run goes on by itself
    result_path: str | None = None  # set once the result is on disk
