"""A finished run, replayed from its journal: the same snapshots, at the operator's speed.

The journal's lines are folded as during the run, so a replay shows what the run showed, except what only a live run
knows (a server's signs of life). The server's log has no times and is shown whole. Nothing is measured, started or
written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec

from loadgen.errors import UNDECODABLE, ResultError, reported_as
from loadgen.places import open_file
from loadgen.profile import BASE
from loadgen.record.record import Record
from loadgen.run.hardware import telemetry_words
from loadgen.run.operations import Abort, NextStage, Operation, Pause, Resume, Stop
from loadgen.run.view import ShownStages, load_view, snapshot_of
from loadgen.schema.journal import Happened, Line, RunStarted, Ticked, time_of
from loadgen.schema.result import RESULT
from loadgen.schema.snapshot import SNAPSHOT_S, InstanceView, Phase, ReplayView, SeriesPoint, ServerView, Snapshot
from loadgen.server.process.log import LogTail
from loadgen.store.journal import read_journal
from loadgen.until import is_set_within

SLOWEST, FASTEST = 1.0, 100.0
_END_BYTES = 1 << 20
_DOWN: Mapping[str, Phase] = {"starting": "starting", "died": "failed"}
"""The phases of a run by the state of its server, while that is not ready."""


class _Timed(msgspec.Struct):
    """Only the time of any line."""

    t_s: float = 0.0


class Replay:
    """Plays a journal; its other methods are instant and may be called at any time."""

    def __init__(self, journal: Path, speed: float = 1.0) -> None:
        """Raises `ResultError` for a file that is not the journal of a run."""
        self._journal = journal
        self._length_s = _length_s(journal)
        self._damages: list[str] = []  # damaged lines that were skipped, not yet shown
        self._lines = read_journal(journal, skipped=self._damages)
        self._next: Line | None = next(self._lines, None)
        if not isinstance(self._next, RunStarted):
            raise ResultError(f"{journal}: not the journal of a run: it does not begin with its start")
        self._run = self._next
        self._record = Record()
        self._shown = ShownStages()
        self._log = _log_of(journal.parent)
        self._past: list[SeriesPoint] = []
        self._wake = asyncio.Event()
        self._position_s = self._last_s = 0.0
        self.set_speed(speed)
        self._paused = False
        self._stepping = False
        self._stopped = False

    def set_speed(self, speed: float) -> None:
        """Set the seconds of the run per second of replay, 1 to 100."""
        self._speed = min(max(speed, SLOWEST), FASTEST)
        self._wake.set()

    def apply(self, operation: Operation) -> None:
        """Pause, resume, step by one tick, or end; other operations do nothing to a finished run."""
        match operation:
            case Pause():
                self._paused = True
            case Resume():
                self._paused = False
            case NextStage():
                self._paused = self._stepping = True
            case Stop() | Abort():
                self._stopped = True
        self._wake.set()

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """The run's states, four a second; the last has phase `done` if it was played to its end."""
        clock_s = asyncio.get_running_loop().time
        self._apply_next()
        yield self._snapshot()
        drawn_s = clock_s()
        while self._next is not None and not self._stopped:
            self._wake.clear()
            # Until the next drawing time, or an operation.
            await is_set_within(self._wake, SNAPSHOT_S)
            before_s, drawn_s = drawn_s, clock_s()
            if self._stepping:
                self._stepping = False
                self._to_next_tick()
            elif not self._paused:
                self._play_to(min(self._position_s + (drawn_s - before_s) * self._speed, self._length_s))
            yield self._snapshot()

    def _play_to(self, position_s: float) -> None:
        self._position_s = position_s
        while self._next is not None and time_of(self._next) <= position_s:
            self._apply_next()
        if position_s >= self._length_s:
            # Later lines were written meanwhile: the run is still running.
            self._next = None

    def _to_next_tick(self) -> None:
        while self._next is not None:
            line = self._next
            self._apply_next()
            if isinstance(line, Ticked):
                break
        self._position_s = min(self._length_s, max(self._position_s, self._last_s))

    def _apply_next(self) -> None:
        line = self._next
        assert line is not None
        self._record.apply(line)
        self._last_s = time_of(line)
        if isinstance(line, Ticked):
            self._past.append(self._record.timeline.points[-1])
        self._next = next(self._lines, None)
        while self._damages:
            self._record.apply(Happened(t_s=self._last_s, kind="error", text=f"left out: {self._damages.pop(0)}"))

    def _snapshot(self) -> Snapshot:
        past, self._past = tuple(self._past[:-1]), []
        record, position_s = self._record, self._position_s
        finished, result = record.finished, self._journal.with_name(RESULT)
        started = record.shown.started if record.shown is not None else None
        return snapshot_of(
            record,
            self._shown,
            t_s=position_s,
            unix_s=self._run.unix_s + position_s,
            phase=phase_of(record),
            profile=_profile_name(self._run, record),
            server=_server_view(record, position_s, self._log),
            load=load_view(
                started,
                record,
                position_s,
                stage=started.index + 1 if started is not None else 0,
                stages_planned=max(self._run.stages_planned, len(record.stages)),
                paused=phase_of(record) == "paused",
                manual=started is not None and started.manual,
            ),
            workers=record.workers,
            telemetry=telemetry_words(record.hardware.meta),
            ending="stopped",  # nothing is wrong with a server that stops before the last line says why
            reason=_reason(record),
            past=past,
            replay=ReplayView(position_s, self._length_s, self._speed, self._paused),
            result_path=str(result) if finished is not None and result.exists() else None,
        )


def phase_of(record: Record) -> Phase:
    """The phase of a run, as far as its journal shows."""
    server = record.server
    if record.finished is not None:
        return "done"
    if record.current is not None:
        return "running"
    if server is None:
        return "checking"
    if server.state != "ready":
        return _DOWN.get(server.state, "stopping")
    if not record.stages:
        return "probing"
    changes = [event.kind for event in record.events if event.kind in ("pause", "resume", "load")]
    if changes and changes[-1] == "pause":
        return "paused"
    tick = record.last_tick
    return "draining" if tick is not None and tick.held else "holding"


def _reason(record: Record) -> str:
    """Why the run has ended or has no server."""
    if record.finished is not None:
        return record.finished.reason
    server = record.server
    if server is None or server.state != "died":
        return "the server"  # which stops
    return "the server died" + (f": {server.diagnosis.title}" if server.diagnosis is not None else "")


def _profile_name(run: RunStarted, record: Record) -> str:
    """The name of the profile, with the variant of the newest start."""
    name = str(run.profile.get("name", run.run_id))
    variant = record.server.variant if record.server is not None else None
    if variant is None or name.endswith(f"+{variant}"):
        return name
    base = name.partition("+")[0]
    return base if variant == BASE else f"{base}+{variant}"


def _length_s(journal: Path) -> float:
    """When the last complete line was written; reads only the end of the file."""
    try:
        with open_file(journal) as file:
            file.seek(max(0, file.seek(0, 2) - _END_BYTES))
            whole, _, _ = file.read().rpartition(b"\n")
    except OSError as error:
        raise ResultError(f"{journal}: the journal cannot be read: {error.strerror}") from error
    last = whole.rpartition(b"\n")[2]
    if not last:
        raise ResultError(f"{journal}: the journal is empty: the run wrote nothing")
    with reported_as(f"{journal}: its last line is not one of a journal", UNDECODABLE):
        return msgspec.json.decode(last, type=_Timed).t_s


def _log_of(folder: Path) -> tuple[str, ...]:
    for name in ("server.log", "server-0.log"):
        tail = LogTail(folder / name)
        try:
            while tail.poll():
                pass
        except OSError as error:
            return (f"{tail.path}: cannot be read: {error.strerror}",)
        if tail.total:
            return tuple(tail.lines)
    return ()


def _server_view(record: Record, t_s: float, log: tuple[str, ...]) -> ServerView:
    server = record.server
    if server is None:
        return ServerView(engine="", url="", state="starting")
    until_s = record.server_since_s if server.state == "died" else t_s
    uptime_s = until_s - record.server_starts[-1].t_s if record.server_starts else None
    return ServerView(
        engine=server.engine,
        url=server.url,
        state=server.state,
        model=server.model,
        version=server.version,
        variant=server.variant,
        pid=server.pid,
        uptime_s=uptime_s,
        milestones=server.milestones,
        start=server.start,
        log_tail=log,
        diagnosis=server.diagnosis,
        instances=tuple(InstanceView(url=each.url, state=server.state, pid=each.pid) for each in server.instances),
    )
