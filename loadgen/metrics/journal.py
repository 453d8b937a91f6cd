"""The lines of a run, in the order in which they happened: on disk while the run goes, and the source of its result.

One JSON object a line, each with the seconds since the run began (monotonic). A line is complete or it is not there: a
reader stops at a torn last line, which is all that a killed run can lose. Everything that the screen or the result
shows is a fold over these lines (`loadgen.metrics.record`).

What a line takes is bounded by what three digits can tell apart, not by the load: a histogram has 23,552 counters, of
which a tick touches a few hundred, and takes a byte or two for each in use, 35 kB with all of them. At a step of 10 ms
an hour is 20 MB with 64 streams and 35 MB with 1,024; each GPU adds 2 MB.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from loadgen.errors import ResultError
from loadgen.metrics.finding import Diagnosis, Finding
from loadgen.metrics.gpu import GpuSample, GpuStatic
from loadgen.metrics.host import HostSample
from loadgen.metrics.search import SearchResult
from loadgen.metrics.snapshot import EngineView, Milestone
from loadgen.metrics.stage import ClientDelta, StageDelta
from loadgen.profile.plan import Steps, load_at

RunState = Literal["complete", "stopped", "server_died", "failed"]
_UnixS = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
_RunS = Annotated[float, msgspec.Meta(ge=0, le=1e9)]  # what becomes a date must be one


class RunStarted(msgspec.Struct, frozen=True, tag=True):
    """The first line."""

    unix_s: _UnixS
    run_id: str
    vramp_version: str
    profile: dict[str, Any]
    environment: dict[str, Any]
    workers: int
    seed: int
    stages_planned: int
    monotonic_s: float = 0.0
    """CLOCK_MONOTONIC when the run began: what turns the times of samples into times of the run."""


class Checked(msgspec.Struct, frozen=True, tag=True):
    """What the preflight found."""

    t_s: float
    findings: tuple[Finding, ...]


class ServerInstance(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of several servers: where it is and how it was started."""

    url: str
    pid: int | None = None
    command: list[str] | None = None
    env: dict[str, str] | None = None


class ServerChanged(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The server reached another state, or more became known of it."""

    t_s: float
    state: Literal["starting", "ready", "stopping", "stopped", "died"]
    engine: str
    url: str
    model: str | None = None
    version: str | None = None
    pid: int | None = None
    max_model_len: int | None = None
    command: list[str] | None = None
    env: dict[str, str] | None = None
    milestones: tuple[Milestone, ...] = ()
    diagnosis: Diagnosis | None = None  # why it died
    instances: tuple[ServerInstance, ...] = ()
    """All servers, where there are several; `url`, `pid`, `command` and `env` are the first's."""
    variant: str | None = None  # of the profile; None where it has none


_ENCODED = {"waits_for_drain": "sheds", "min_completed": "completed", "max_concurrency": "most"}
"""Names of fields in journals that were written before they had these."""


class StageStarted(msgspec.Struct, frozen=True, tag=True, rename=_ENCODED):
    """A stage began."""

    t_s: _RunS
    index: int
    label: str
    concurrency: int | None
    rate: float | None
    arrival: str
    isl: int
    osl: int
    requests: int | None
    duration_s: float | None
    warmup_requests: int
    warmup_s: float
    manual: bool = False  # the operator asked for it
    settle_s: float = 0.0  # above zero: it is measured from the line `StageSettled` on
    waits_for_drain: bool = False
    """Measured from there on because more streams were open than it wants, which had to go first."""
    awaits_first_wave: bool = False
    """Measured from there on because many of its streams begin at once, which need their first tokens first."""
    first_wave: Literal["apart", "counted"] = "counted"  # whether those streams are in its statistics
    steps: Steps = ()  # of a load that moves
    min_completed: int = 0  # so many streams must complete for a conclusion
    max_concurrency: int | None = None  # open loop: most streams at once; what would be more is sent late
    variant: str | None = None  # of the server that it ran on; None for a profile without any

    def load_at(self, measured_s: float) -> float | None:
        """The concurrency or rate that is asked for at a moment."""
        if self.steps:
            return load_at(self.steps, measured_s)
        return self.rate if self.concurrency is None else self.concurrency


class StageSettled(msgspec.Struct, frozen=True, tag=True):
    """The measured window of a stage was opened."""

    t_s: float
    index: int
    settled: bool  # false: its transient had not ended within the time for it


class Ticked(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """What happened in a quarter of a second."""

    t_s: float
    span_s: float  # since the tick before
    stages: dict[int, StageDelta]
    client: ClientDelta
    held: int
    open_sent: dict[int, int] = {}
    """Open streams that count in `sent`, by their stage: the running one, or the one before on workers that are behind.
    """
    queued: int = 0
    open_stages: dict[int, int] = {}
    workers: int = 1
    rss_bytes: int | None = None  # memory of all workers
    engine: EngineView | None = None
    engine_again: bool = False  # in a file only: `engine` is what it was in the tick before
    instances: tuple[dict[int, StageDelta], ...] = ()
    """`stages` by the server that the load went to, where there are several."""


class EngineLatencyMs(msgspec.Struct, frozen=True):
    """One latency over a stage as the engine saw it; percentiles are interpolated within its coarse buckets.

    None where they are too coarse to tell: in the first bucket, or beyond the last bound.
    """

    count: int
    mean: float
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class EngineStage(msgspec.Struct, frozen=True):
    """What the engine's own /metrics say about a stage: differences between its end and its beginning.

    Warm-up is in it, and what other clients sent.
    """

    ttft_mean_ms: float | None = None
    ttft_count: int | None = None
    itl_mean_ms: float | None = None
    tpot_mean_ms: float | None = None
    e2e_mean_ms: float | None = None
    queue_mean_ms: float | None = None
    prefill_mean_ms: float | None = None
    decode_mean_ms: float | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    preemptions: int | None = None
    prefix_hit_rate: float | None = None
    admission_rejections: int | None = None  # requests turned away because a queue was full
    latency_ms: dict[str, EngineLatencyMs] = {}
    """By name: ttft, itl, tpot, e2e, queue, prefill, decode; all but the first two of requests that ended."""
    engines: dict[str, EngineStage] = {}  # each engine of a data-parallel server, where there are several
    idle_around: bool | None = None
    """Nothing ran or waited when it was read, before and after; None where the engine does not say."""
    doubts: dict[str, str] = {}
    """Figures that are None because what the engine says of them cannot be, by name, and why; `all` for every one."""


class StageEnded(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A stage is over; streams of it may still be open."""

    t_s: float
    index: int
    reason: str


class EngineMeasured(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The engine's own numbers for a stage, read once its window had closed."""

    t_s: float
    index: int
    engine: EngineStage  # of all servers together
    instances: tuple[EngineStage | None, ...] = ()
    """Of each, where there are several; None for one that could not be read."""


class TelemetryChanged(msgspec.Struct, frozen=True, tag=True):
    """What measures the GPUs, and which there are; a later line replaces an earlier one."""

    t_s: float
    gpus: tuple[GpuStatic, ...]
    meta: dict[str, Any]  # by vendor: what works, what was tried and why it failed, versions


class GpusSampled(msgspec.Struct, frozen=True, tag=True):
    """A look at GPUs; their own `t_s` are CLOCK_MONOTONIC."""

    t_s: float
    gpus: tuple[GpuSample, ...]


class HostSampled(msgspec.Struct, frozen=True, tag=True):
    """A look at the host; its own `t_s` is CLOCK_MONOTONIC."""

    t_s: float
    host: HostSample


class SearchEnded(msgspec.Struct, frozen=True, tag=True):
    """A search is over, whatever it has found."""

    t_s: float
    search: SearchResult


class Happened(msgspec.Struct, frozen=True, tag=True):
    """An event on the time axis."""

    t_s: float
    kind: str
    text: str


class RunFinished(msgspec.Struct, frozen=True, tag=True):
    """The last line."""

    t_s: float
    unix_s: _UnixS
    state: RunState
    reason: str


Line = (
    RunStarted
    | Checked
    | ServerChanged
    | TelemetryChanged
    | StageStarted
    | StageSettled
    | Ticked
    | GpusSampled
    | HostSampled
    | StageEnded
    | EngineMeasured
    | SearchEnded
    | Happened
    | RunFinished
)

encode_line = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def time_of(line: Line) -> float:
    """When it was written, in seconds since the run began."""
    return 0.0 if isinstance(line, RunStarted) else line.t_s


class Journal:
    """Appends lines to a file; each reaches the kernel at once, so that only a dying machine can lose one.

    The file is locked while it is open, and the kernel unlocks it with the death of the process: so whether a run goes
    on can be asked (`journal_is_held`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise ResultError(f"{path}: the journal cannot be written: {error.strerror}") from error
        # A filesystem without locks is no reason not to run.
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._engine: EngineView | None = None

    def write(self, line: Line) -> None:
        """Append a line; raises `ResultError` when the disk does not take it."""
        try:
            append_whole(self._file, encode_line(self._without_repetition(line)) + b"\n")
        except OSError as error:
            self._engine = None  # nobody can read what it was
            raise ResultError(f"{self.path}: the journal cannot be written: {error.strerror}") from error

    def _without_repetition(self, line: Line) -> Line:
        """Ticks come four times a second, the engine's word once."""
        if not isinstance(line, Ticked):
            return line
        if line.engine is not None and line.engine == self._engine:
            return msgspec.structs.replace(line, engine=None, engine_again=True)
        self._engine = line.engine
        return line

    def close(self) -> None:
        self._file.close()


def append_whole(file: FileIO, data: bytes) -> None:
    """Append all of it or nothing, also to a disk that has room for a part; raises `OSError`."""
    place = file.seek(0, os.SEEK_END)
    try:
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(place)
        raise


def journal_is_held(path: Path) -> bool:
    """Whether a living process writes this journal; False for one that cannot be read."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def read_journal(path: Path, *, skipped: list[str] | None = None) -> Iterator[Line]:
    """The lines of a journal, up to its end or a torn last line; raises `ResultError`.

    With a list for `skipped`, what is no line is passed over and its description goes there.
    """
    engine: EngineView | None = None
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if not text.endswith(b"\n"):
                    return
                try:
                    line = _decode(path, number, text)
                except ResultError as error:
                    if skipped is None:
                        raise
                    skipped.append(str(error))
                    engine = None  # what was said there is not known
                    continue
                if isinstance(line, Ticked):
                    if line.engine_again:
                        line = msgspec.structs.replace(line, engine=engine, engine_again=False)
                    engine = line.engine
                yield line
    except OSError as error:
        raise ResultError(f"{path}: the journal cannot be read: {error.strerror}") from error


def _decode(path: Path, number: int, text: bytes) -> Line:
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise ResultError(f"{path}:{number}: not a line of a journal: {error}") from error
