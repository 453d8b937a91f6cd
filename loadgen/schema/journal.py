"""The lines of a run in order: written to disk during the run, and the source of its result.

One JSON object per line, each with the seconds since the run began (monotonic). A line is complete or missing: a reader
stops at a torn last line, which is all that a killed run can lose. Everything that the screen or the result shows is a
fold over these lines (`loadgen.record.record`).

The size of a line is bounded by the resolution of histograms, not by the load: a histogram has 23,552 counters, of
which a tick touches a few hundred, and takes a byte or two per counter in use, 35 kB with all of them. At a step of
10 ms an hour is 20 MB with 64 streams and 35 MB with 1,024; each GPU adds 2 MB. The older part of a long run is thinned
(`loadgen.record.thinning`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from loadgen.schema.bounds import Whole
from loadgen.schema.deltas import ClientDelta, Count, Moment, SessionsNow, StageDelta
from loadgen.schema.engine import EngineStage, EngineView, OwnRequests
from loadgen.schema.finding import Finding
from loadgen.schema.output import CanaryKind, CanaryMoment, ScoreMethod
from loadgen.schema.samples import GpuSample, GpuStatic, HostSample, ServerDevices
from loadgen.schema.shared import DataFile, Diagnosis, HostFacts, Milestone, Placement, RunState, SearchResult
from loadgen.schema.start import Provenance, ServerStart, StartDifference

_UnixS = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
_RunS = Annotated[float, msgspec.Meta(ge=0, le=1e9)]  # within the range of valid dates

Steps = tuple[tuple[float, float], ...]
"""A moving load: (seconds into the measured time, concurrency or rate from then on), the first at 0."""


def load_at(steps: Steps, measured_s: float) -> float:
    return next((load for at_s, load in reversed(steps) if at_s <= max(0.0, measured_s)), steps[0][1])


class RunStarted(msgspec.Struct, frozen=True, tag=True):
    """The first line of a run."""

    unix_s: _UnixS
    run_id: str
    vramp_version: str
    profile: dict[str, Any]
    environment: dict[str, Any]
    workers: Whole
    seed: int
    stages_planned: Whole
    monotonic_s: float = 0.0
    """CLOCK_MONOTONIC at the start of the run: converts the times of samples to times of the run."""
    data: DataFile | None = None  # None for synthetic prompts


class Checked(msgspec.Struct, frozen=True, tag=True):
    """What the preflight found."""

    t_s: _RunS
    findings: tuple[Finding, ...]


class ServerInstance(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of several servers: its address, how it was started and what it serves, as far as known."""

    url: str
    model: str | None = None
    version: str | None = None
    pid: Whole | None = None
    command: list[str] | None = None
    env: dict[str, str] | None = None


class ServerChanged(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The server changed its state, or more is known about it."""

    t_s: _RunS
    state: Literal["starting", "ready", "stopping", "stopped", "died"]
    engine: str
    url: str
    model: str | None = None
    version: str | None = None
    pid: Whole | None = None
    max_model_len: Whole | None = None
    command: list[str] | None = None
    env: dict[str, str] | None = None
    milestones: tuple[Milestone, ...] = ()
    diagnosis: Diagnosis | None = None  # why it died
    instances: tuple[ServerInstance, ...] = ()
    """All servers, if there are several; `url`, `pid`, `command` and `env` are the first's."""
    variant: str | None = None  # of the profile; None if it has none
    start: ServerStart | None = None  # once it is known
    start_differences: tuple[StartDifference, ...] = ()  # from the last start with the same flags on this box
    provenance: Provenance | None = None  # once it is ready


class WorkersPlaced(msgspec.Struct, frozen=True, tag=True):
    """The CPUs of this machine on which the workers run; a later line replaces an earlier one."""

    t_s: _RunS
    placement: Placement


class StageLoad(msgspec.Struct, frozen=True):
    """One load and how long it holds; exactly one of `concurrency` and `rate` is set."""

    concurrency: Count | None
    rate: float | None
    isl: Count
    osl: Count  # mean lengths, if they are distributed
    arrival: str = "poisson"
    steps: Steps = ()  # of a moving load; `concurrency` is then its first value, and `rate` its mean
    max_concurrency: Count | None = None
    """Open loop: the most streams at once; further requests are sent late."""
    requests: Count | None = None  # measured requests, warm-up not counted
    duration_s: float | None = None
    """Measured time without warm-up. With `requests` too, whichever comes first; with neither, until stopped."""
    warmup_requests: Count = 0
    warmup_s: float = 0.0
    label: str = ""
    settle_s: float = 0.0
    """Above zero: measurement begins when the transient is over, or after this long; the stage is bounded by time."""
    min_completed: Count = 0
    """Measured streams that must complete for a conclusion: a settled stage runs past its time for them."""
    first_wave: Literal["apart", "counted"] = "counted"
    """Whether the streams that fill a closed loop at once are in its statistics."""
    pass_number: Count | None = None  # from 1, for a stage that is repeated with the same prompts

    @property
    def no_load(self) -> bool:
        """Whether nothing is sent: engine, GPUs and host are watched under the load of others."""
        return self.concurrency == 0


class StageStarted(StageLoad, frozen=True, tag=True, kw_only=True):
    """A stage began; with `settle_s`, or if it waits for something, it is measured from `StageSettled` on."""

    t_s: _RunS
    index: Count
    manual: bool = False  # the operator asked for it
    waits_for_drain: bool = False
    """It waits until streams beyond its concurrency have ended."""
    awaits_first_wave: bool = False
    """It waits for the first tokens of many streams that begin at once, or for an answer to each live session."""
    variant: str | None = None  # of the server that it ran on; None for a profile without any
    random_prompts: bool = False  # synthetic prompts, not from a dataset
    thinks: bool = False  # its conversations pause between turns, and hold no stream meanwhile
    in_sessions: bool = False  # its concurrency is that of live sessions, which pause as well
    meant_hits: float = 0.0  # the largest share of prompt tokens that is meant to hit the prefix cache

    def load_at(self, measured_s: float) -> float | None:
        """The requested concurrency or rate at a moment."""
        if self.steps:
            return load_at(self.steps, measured_s)
        return self.rate if self.concurrency is None else self.concurrency


class StageSettled(msgspec.Struct, frozen=True, tag=True):
    """The measured window of a stage was opened."""

    t_s: _RunS
    index: Count
    settled: bool  # false: the transient did not end in time


class HostTick(msgspec.Struct, frozen=True, omit_defaults=True):
    """One host's part of a tick."""

    stages: dict[int, StageDelta] = {}
    client: ClientDelta = ClientDelta()
    held: Count = 0
    workers: Count = 0  # alive
    sharing: Count = 0  # those of them that share the running stage; 0 without load
    rss_bytes: Count = 0
    offset_ns: Moment = 0  # its CLOCK_MONOTONIC minus ours
    uncertainty_ns: Moment = 0  # half the width of the interval that is certain to contain the offset
    rtt_ns: Moment = 0  # of the last exchange
    lost: bool = False


class TickNumbers(msgspec.Struct, frozen=True, omit_defaults=True):
    """What all workers did in a tick, and their open streams at its end."""

    span_s: _RunS  # since the previous tick
    stages: dict[int, StageDelta]
    client: ClientDelta
    held: Count
    most_held: Count = 0
    """The most open streams of each worker in this tick or the one before, added up."""
    behind_s: float = 0.0  # age of the slowest worker's last report: on a busy machine more than a tick
    open_sent: dict[int, Count] = {}
    """Open streams that count in `sent`, by stage: the running one, or the previous one on workers that lag behind."""
    queued: Count = 0
    open_stages: dict[int, Count] = {}
    sessions: SessionsNow | None = None  # None where the load is not sessions
    rss_bytes: Count | None = None  # memory of all workers
    sharing: Count = 0
    """Live workers that share the running stage; 0 without load."""
    instances: tuple[dict[int, StageDelta], ...] = ()
    """`stages` per server, if there are several."""
    hosts: tuple[HostTick, ...] = ()
    """The part of each host of a cluster, in the order of `HostsJoined`."""


class Ticked(TickNumbers, frozen=True, tag=True, kw_only=True):
    """One tick, a quarter of a second, of all workers."""

    t_s: _RunS
    workers: Count = 1
    engine: EngineView | None = None
    own: OwnRequests = OwnRequests()  # under load
    engines: tuple[EngineView | None, ...] = ()
    """What shows whether each of several servers works, None for one that does not answer; empty if not read again."""
    waits_for_worker: bool = False  # the server's log has said in this tick that a worker does not answer
    engine_again: bool = False  # in files only: `engine` is unchanged since the previous tick

    @property
    def has_output(self) -> bool:
        """Whether output arrived; headers do not count: a server whose engine is stuck still sends them."""
        return self.client.output_tokens > 0 or self.client.requests > 0

    @property
    def failed(self) -> int:
        return sum(delta.failed + delta.warmup_failed + delta.carried_failed for delta in self.stages.values())


class HostsJoined(msgspec.Struct, frozen=True, tag=True):
    """The load comes from these hosts, not from this machine."""

    t_s: float
    hosts: tuple[HostFacts, ...]


class ClockMoved(msgspec.Struct, frozen=True, tag=True):
    """A host's clock was stepped relative to ours: the times of streams open there are wrong by as much."""

    t_s: float
    host: str
    by_ns: Moment


class StageEnded(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A stage is over; streams of it may still be open."""

    t_s: _RunS
    index: Whole
    reason: str


class EngineMeasured(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The engine's own figures for a stage, read after its window closed."""

    t_s: _RunS
    index: Whole
    engine: EngineStage  # of all servers together
    instances: tuple[EngineStage | None, ...] = ()
    """Per server, if there are several; None for one that could not be read."""


class EnginesQuiet(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The engines were read while nothing was open; `engine` is what they did since the last such reading."""

    t_s: _RunS
    first: Whole  # the stages that ran in between
    last: Whole
    engine: EngineStage | None = None  # of all servers together; None if they could not be read


class CanaryMeasured(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A canary was answered, or was not."""

    t_s: _RunS
    name: str  # of its text or prompt
    kind: CanaryKind
    when: CanaryMoment
    index: Whole | None = None  # the stage in which it was sent and answered
    instance: Whole = 0
    method: ScoreMethod | None = None
    score: float | None = None  # mean log probability in nats per token
    scored_tokens: Whole = 0
    answer: str | None = None  # of a greedy one
    ttft_ms: float | None = None  # None for one that was not answered
    input_tokens: Whole = 0
    output_tokens: Whole = 0
    problem: str = ""  # why it is unusable

    @property
    def traffic(self) -> OwnRequests:
        """The engine's work for it, which is in its own figures but not in the load's."""
        if self.ttft_ms is None:
            return OwnRequests()
        return OwnRequests(0, 1, self.input_tokens, self.output_tokens, self.ttft_ms)


class ReferenceDisturbed(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Others used a server while it should have been idle for its canaries."""

    t_s: _RunS
    others: float  # their requests, running or waiting
    instance: Whole = 0


class TelemetryChanged(msgspec.Struct, frozen=True, tag=True):
    """The telemetry and the GPUs that it found; a later line replaces an earlier one."""

    t_s: _RunS
    gpus: tuple[GpuStatic, ...]
    meta: dict[str, Any]  # by vendor: what works, what failed and why, versions


class DevicesChosen(msgspec.Struct, frozen=True, tag=True):
    """The GPUs on which the server computes, None if unknown; a later line replaces an earlier one."""

    t_s: _RunS
    devices: ServerDevices | None


class GpusSampled(msgspec.Struct, frozen=True, tag=True):
    """A sample of GPUs; their own `t_s` are CLOCK_MONOTONIC."""

    t_s: _RunS
    gpus: tuple[GpuSample, ...]


class HostSampled(msgspec.Struct, frozen=True, tag=True):
    """A sample of the host; its own `t_s` is CLOCK_MONOTONIC."""

    t_s: _RunS
    host: HostSample


class SearchEnded(msgspec.Struct, frozen=True, tag=True):
    """A search is over, with or without an answer."""

    t_s: _RunS
    search: SearchResult


class Happened(msgspec.Struct, frozen=True, tag=True):
    """An event on the time axis."""

    t_s: _RunS
    kind: str
    text: str


class Continued(msgspec.Struct, frozen=True, tag=True):
    """The first line of a file whose earlier lines are in other files (`loadgen.store.journal`)."""

    t_s: _RunS
    part: Annotated[int, msgspec.Meta(ge=1, le=9999)]  # how many came before


class RunFinished(msgspec.Struct, frozen=True, tag=True):
    """The last line of a run."""

    t_s: _RunS
    unix_s: _UnixS
    state: RunState
    reason: str


Line = (
    RunStarted
    | Checked
    | ServerChanged
    | WorkersPlaced
    | TelemetryChanged
    | DevicesChosen
    | StageStarted
    | StageSettled
    | Ticked
    | GpusSampled
    | HostSampled
    | HostsJoined
    | ClockMoved
    | StageEnded
    | EngineMeasured
    | EnginesQuiet
    | CanaryMeasured
    | ReferenceDisturbed
    | SearchEnded
    | Happened
    | Continued
    | RunFinished
)

encode_line = msgspec.json.Encoder().encode
decode_line: Callable[[bytes], Line] = msgspec.json.Decoder(Line).decode


def time_of(line: Line) -> float:
    """When a line was written, in seconds since the run began."""
    return 0.0 if isinstance(line, RunStarted) else line.t_s
