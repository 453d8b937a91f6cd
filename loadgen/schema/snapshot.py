"""The state of a run at one moment: everything that the screen draws, with nothing left to compute.

Published four times a second, live or replayed. All structs are frozen and plain, unknown is None; texts from a server
or its log have been sanitised.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from loadgen.format import UNKNOWN
from loadgen.schema.comparison import BaselineView, Comparison
from loadgen.schema.deltas import SessionsNow, Summary
from loadgen.schema.engine import EngineView, OthersTraffic
from loadgen.schema.finding import Finding, Verdict
from loadgen.schema.hardware_result import ComputeResult
from loadgen.schema.result import CurvePoint, HostResult, Requests, RunEvent, StageResult, TierResult
from loadgen.schema.samples import GpuPace, GpuSample, GpuStatic, HostSample
from loadgen.schema.shared import Diagnosis, Milestone, SearchResult
from loadgen.schema.start import ServerStart

SNAPSHOT_S = 0.25  # the interval between snapshots
WINDOW_S = 5.0  # the span of the percentiles in a `SeriesPoint`
RECENT_S = 10.0  # the span of `Snapshot.recent`
MIN_S = 0.25
"""A load held for less time, such as on the way to another, is not drawn; tables have it."""
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
"""`blocked`: the preflight found that the start would fail, and the operator decides; `holding`: the plan is done, the
server is up, and the operator may continue; `restarting`: the server is being stopped, to be started again; `failed`:
it did not start, died, or is unusable, and the operator may start it again."""


class Liveness(msgspec.Struct, frozen=True):
    """Signs of life from the server's processes while its log is silent."""

    cpu_percent: float | None  # of one core, summed over processes, since the last sample; None at the first
    rss_bytes: int  # summed over processes; shared pages count for each
    last_line_age_s: float | None = None  # since the last line of the log; None before the first
    hbm_used_bytes: int | None = None


SeenState = Literal["starting", "ready", "stopping", "stopped", "died", "unreachable"]
"""`unreachable`: an attached server that answered before does not answer now."""


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
    is_own: bool = False  # vramp started it, and it has not ended
    stays: bool = False  # an orderly end of the run leaves it running
    uptime_s: float | None = None
    milestones: tuple[Milestone, ...] = ()
    start: ServerStart | None = None  # once it is known
    log_tail: tuple[str, ...] = ()  # the last lines, oldest first, without control sequences
    log_total: int = 0  # lines in the log so far, of which `log_tail` has the last
    expected_s: float | None = None  # how long the last start of the same kind took
    liveness: Liveness | None = None  # signs of life while it starts, whatever the log says
    diagnosis: Diagnosis | None = None  # once it has died
    instances: tuple[InstanceView, ...] = ()
    """All servers, if there are several; `url` and `pid` are the first's, `milestones` the slowest's."""

    @property
    def exists(self) -> bool:
        return self.engine != "none"


class LoadView(msgspec.Struct, frozen=True):
    """The requested load and the open streams."""

    stage: int  # number of the running stage, from 1; 0 before the first
    stages_planned: int
    concurrency: int | None  # the closed loop's target; None in open loop
    rate: float | None  # the open loop's target in requests a second; None in closed loop
    held: int  # streams open now
    queued: int  # open loop: arrivals that wait for a connection
    isl: int
    osl: int
    in_sessions: bool = False  # the concurrency is that of live sessions
    paused: bool = False
    manual: bool = False  # the operator has set the load
    held_open: bool = False  # the operator lets the stage continue past its end
    stage_elapsed_s: float = 0.0
    stage_progress: float | None = None  # 0 to 1 for a bounded stage
    waits_for: str = ""  # why the measurement of the running stage has not begun

    @property
    def no_load(self) -> bool:
        """Whether nothing is sent: what is shown is others' traffic."""
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
    live_sessions: int | None = None  # None, like the following ones, where the load is not sessions
    pausing_sessions: int | None = None  # between an answer and the next request
    due_requests: int | None = None  # of sessions, held back by `max_concurrency` or by the client
    context_tokens: int | None = None  # in the contexts of the live sessions
    hit_percent: float | None = None  # of prompt tokens, over the last `RECENT_S` seconds, by the server's usage
    infinite_hit_percent: float | None = None  # what a cache without limit would have had
    pool_hit_percent: float | None = None  # or one of the size of the engine's KV cache
    others_tokens_per_s: float | None = None  # output for others; None if there is no evidence of any under load


class GpuView(msgspec.Struct, frozen=True):
    """One GPU now."""

    static: GpuStatic
    sample: GpuSample | None  # None before the first sample
    flags: tuple[str, ...] = ()  # its problems, in a word or two each: `THROTTLED hbm 18%`, `PCIe x8 of x16`
    pace: GpuPace = GpuPace()
    of_server: bool = True  # the server computes on its socket


class Distribution(msgspec.Struct, frozen=True):
    """The latency distributions of a stage: ttft, tpot, itl and e2e."""

    stage: int  # its number, from 1
    label: str
    counts: dict[str, int] = {}
    curves_ms: dict[str, tuple[float, ...]] = {}  # the values at `CURVE_PERCENTS`


class ClientView(msgspec.Struct, frozen=True):
    """The client's own health: whether its figures can be trusted."""

    timestamps: Literal["kernel", "user", "unknown"]
    workers: int
    cpu_percent: float | None  # all workers, of one core
    read_lag_p99_ms: float | None
    coalesced_share: float | None
    limited: bool
    why: str | None


class ReplayView(msgspec.Struct, frozen=True):
    """The position of a replay in its run."""

    position_s: float
    length_s: float
    speed: float  # seconds of the run per second of replay
    paused: bool


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a run at one moment."""

    t_s: float
    unix_s: float
    phase: Phase
    profile: str
    headline: str  # the verdict in words
    healthy: bool  # false if the headline needs the operator's attention
    server: ServerView
    load: LoadView
    point: SeriesPoint
    client: ClientView
    engine: EngineView | None = None
    others: OthersTraffic | None = None  # others' part of the engine's traffic; a second behind
    compute: ComputeResult | None = None  # over the engine's latest seconds; None if it does not report it
    stages: tuple[StageResult, ...] = ()
    """All stages so far, oldest first; the last may be running: then `others` and, without load, `engine` are those of
    the latest seconds. Without HDR histograms and figures of single GPUs and of the host, which a result has."""
    requests: Requests | None = None  # of all stages together; None before the first
    latency_ms: dict[str, Summary] = {}  # of all stages together
    events: tuple[RunEvent, ...] = ()  # all events so far, oldest first
    findings: tuple[Finding, ...] = ()  # of the preflight, the worst first
    gpus: tuple[GpuView, ...] = ()
    gpus_stale: bool = False  # samples have stopped coming
    telemetry: str = ""  # what measures the GPUs, or why nothing does
    host: HostSample | None = None
    verdicts: tuple[Verdict, ...] = ()  # on GPUs and on the running stage, bad ones first
    curve: tuple[CurvePoint, ...] = ()  # by streams held, over all stages
    reference: tuple[Comparison, ...] = ()
    """Published figures next to those of the running or last stage; of all stages once the run is done."""
    not_as_published: tuple[str, ...] = ()  # what differs from the conditions of the publication: model, data
    baseline: BaselineView | None = None  # of the running or last stage; None without a baseline
    recent: dict[str, Summary] = {}  # the latencies of the last `RECENT_S` seconds: ttft, tpot, itl, e2e
    distributions: tuple[Distribution, ...] = ()  # of the running or last stage, then of the one before it
    baseline_distribution: Distribution | None = None  # of the baseline's stage under the same load; its `stage` is 0
    slo_ms: dict[str, float] = {}
    sessions: SessionsNow | None = None  # None where the load is not sessions
    tiers: tuple[TierResult, ...] = ()  # as far as they are known
    search: SearchResult | None = None  # once a search has ended
    variants: tuple[str, ...] = ()  # with which the server can be restarted
    past: tuple[SeriesPoint, ...] = ()
    """Points before `point` that no snapshot contained: in a replay, or for a watcher that joins late."""
    replay: ReplayView | None = None  # None for a live run
    result_path: str | None = None  # set once the result is on disk

    @property
    def has_server(self) -> bool:
        """Whether the run has a server at all; otherwise it monitors GPUs and host alone."""
        return self.server.exists

    @property
    def stage_words(self) -> str:
        """Which stage of the plan runs, or was the last one."""
        number = self.load.stage
        words = f"stage {number or UNKNOWN} of {max(number, self.load.stages_planned)}"
        return f"after {words}" if self.phase in ("draining", "holding") else words

    @property
    def errors(self) -> dict[str, int]:
        """The failures of the whole run by kind, the most frequent first."""
        errors = self.requests.errors if self.requests is not None else {}
        return dict(sorted(errors.items(), key=lambda item: -item[1]))

    def messages(self, kind: str) -> list[str]:
        """The first distinct messages of a kind of failure."""
        return self.requests.messages.get(kind, []) if self.requests is not None else []

    @property
    def hosts(self) -> list[HostResult]:
        """Each host's part in the running or last stage, if a cluster drives the load."""
        return self.stages[-1].hosts if self.stages else []
