"""An acceptance: its folder, the lines of what it has done, and its runs, one after another.

The folder `runs/<UTC time>-<profile>-accept/` has `accept.jsonl`, the evidence of phases, a folder for each run and, in
the end, the certificate. Every run is an ordinary one, with a start of the server of its own, so everything measured
survives whatever ends vramp: a run without a `RunMade` line was cut off, and is recovered before anything else begins.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import loadgen
from loadgen.criteria import EXACT_MATCH, PhaseName
from loadgen.errors import UNDECODABLE, ProfileError, ResultError, ServerError
from loadgen.masking import masked
from loadgen.places import read_whole
from loadgen.profile.accept import Accept
from loadgen.profile.schema import Profile
from loadgen.report.configuration import flattened
from loadgen.run.operations import Abort, NextStage, Operation, Stop
from loadgen.run.run import Run
from loadgen.run.settings import RunSettings
from loadgen.run.sweep import as_swept
from loadgen.schema.certificate import AcceptBegan, AcceptLine, AcceptResumed, Demand, RunMade
from loadgen.schema.result import RESULT
from loadgen.schema.shared import RunState
from loadgen.schema.snapshot import Snapshot
from loadgen.schema.start import ServerResult
from loadgen.store.acceptance import AcceptLog, LiveRun, read_lines, require_unchanged
from loadgen.store.recover import recover
from loadgen.store.runs import claim_folder, has_result
from loadgen.system import text_in
from loadgen.workload.questions import questions_of

_FOLDER = re.compile(r"(?P<number>[0-9]{2,})-(?P<phase>[a-z-]+)")
_INTERIM_S, _INTERIM_SHARE = 10.0, 0.01  # how often the figures of a run that goes on are judged: later, ever less
Companion = Callable[[Run], Awaitable[None]]
"""What is done while a run sends its load; when it returns, the load ends."""


@dataclass(frozen=True, kw_only=True)
class AcceptSettings:
    """What is to be accepted, and how."""

    profile: Profile  # with the starts and hours that the command line asks for
    where: str  # names it in messages
    repeats: bool  # whether the phases were named one by one, so that one that failed is tried again
    demands: tuple[Demand, ...] = ()  # none to continue: those that it began with hold
    not_tested: tuple[str, ...] = ()
    like: tuple[str, ...] = ()
    by: str | None = None
    force: bool = False


class Made(NamedTuple):
    """A run that is over."""

    phase: PhaseName
    state: RunState
    reason: str
    load_s: float
    start_s: float | None  # how long its server took to start


class _Stage(msgspec.Struct, frozen=True):
    duration_s: float


class _Result(msgspec.Struct, frozen=True):
    """The part of a result from which it follows what is left to do."""

    state: RunState
    reason: str
    stages: list[_Stage] = []
    server: ServerResult | None = None


class Acceptance:
    """One acceptance, new or continued; `loadgen.run.accept.phases` takes it through its phases."""

    def __init__(self, settings: AcceptSettings, folder: Path | None = None) -> None:
        """Claim a folder, or continue the acceptance in `folder`: recover its run that was cut off.

        Raises `ResultError` for a folder that cannot be written or continued, `ProfileError` for another profile.
        """
        self.settings = settings
        if folder is not None:
            require_unchanged(folder)
        # Before a folder is claimed: a mistake leaves nothing behind.
        demands = settings.demands if folder is None else began_alike(settings, folder).demands
        asks = any(demand.figure == EXACT_MATCH for demand in demands)
        self.questions = questions_of(self.accept.questions, self.accept.question_count) if asks else ()
        self.folder = folder or claim_folder(f"{settings.profile.name}-accept", datetime.now(UTC))
        self._log = AcceptLog(self.folder)
        self.made: list[Made] = []
        self.stopping = asyncio.Event()
        self.changed = asyncio.Event()  # there is something new to show
        self.phase: PhaseName | None = None  # the one that is carried out
        self.snapshot: Snapshot | None = None  # of the run that goes on
        self._run: Run | None = None
        if folder is None:
            self._log.write(self._demanded())
        else:
            self._resume()

    def _demanded(self) -> AcceptBegan:
        settings, accept = self.settings, self.accept
        document = settings.profile.model_dump(mode="json")
        if settings.profile.load.seed is None:
            document["load"]["seed"] = secrets.randbelow(2**31)
        return AcceptBegan(
            unix_s=time.time(),
            vramp_version=loadgen.__version__,
            name=settings.profile.name,
            profile=document,
            phases=tuple(accept.phases),
            demands=settings.demands,
            starts=accept.starts,
            burn_in_s=accept.burn_in,
            boot_id=boot_id(),
            booted_unix_s=booted_unix_s(),
            by=settings.by,
            like=settings.like,
            not_tested=settings.not_tested,
        )

    def _resume(self) -> None:
        known = {line.folder for line in self.lines if isinstance(line, RunMade)}
        for folder in sorted(path for path in self.folder.iterdir() if _FOLDER.fullmatch(path.name)):
            if folder.name not in known:
                if not has_result(folder):
                    try:
                        recover(folder)
                    except ResultError:  # it had not begun
                        continue
                self._note_made(folder)
            elif (folder / RESULT).is_file():
                self.made.append(_made(folder))
        before = next(line for line in reversed(self.lines) if isinstance(line, AcceptBegan | AcceptResumed))
        same_boot = before.boot_id == boot_id()
        self.write(
            AcceptResumed(
                unix_s=time.time(),
                vramp_version=loadgen.__version__,
                boot_id=boot_id(),
                booted_unix_s=booted_unix_s(),
                starts=self.accept.starts,
                burn_in_s=self.accept.burn_in,
                by=self.settings.by,
                clock_step_s=booted_unix_s() - before.booted_unix_s if same_boot else None,
            )
        )

    def _note_made(self, folder: Path) -> None:
        self.made.append(_made(folder))
        self.write(self._line_of(folder))

    def _line_of(self, folder: Path) -> RunMade:
        """The line for a run; a server that vramp only attaches to has a single start."""
        number = int(folder.name.partition("-")[0])
        return RunMade(
            unix_s=time.time(),
            phase=_phase_of(folder),
            folder=folder.name,
            start=number if self.starts_server else 1,
        )

    # What is known.

    @property
    def accept(self) -> Accept:
        return self.settings.profile.accept or Accept()

    @property
    def phases(self) -> list[PhaseName]:
        """Those to carry out, of those that it began with."""
        return [phase for phase in self.began.phases if phase in self.accept.phases]

    @property
    def starts_server(self) -> bool:
        return self.settings.profile.server.engine != "attach"

    @property
    def lines(self) -> Sequence[AcceptLine]:
        return self._log.lines

    @property
    def began(self) -> AcceptBegan:
        """The first line: what was demanded."""
        return began_in(self.lines)

    def complete(self, phase: PhaseName) -> int:
        """How many runs of a phase came to their end."""
        return sum(made.phase == phase and made.state == "complete" for made in self.made)

    @property
    def live(self) -> list[LiveRun]:
        """The run that goes on, with its figures as of the last interim result."""
        if self._run is None or self._run.result is None:
            return []
        return [LiveRun(self._line_of(self._run.folder), self._run.result)]

    @property
    def run_folder(self) -> Path | None:
        """The folder of the run that goes on."""
        return self._run.folder if self._run is not None else None

    def write(self, line: AcceptLine) -> None:
        self._log.write(line)
        self.changed.set()

    def apply(self, operation: Operation) -> None:
        """End it: after the present run's orderly end for `Stop`, at once for `Abort`; all else is refused."""
        if isinstance(operation, Stop | Abort):
            self.stopping.set()
            if self._run is not None:
                self._run.apply(operation)

    def close(self) -> None:
        self._log.close()

    # Runs.

    async def run(self, phase: PhaseName, profile: Profile, meanwhile: Companion | None = None) -> Made:
        """One run of a phase, in a folder of its own; `meanwhile` goes on during its load, and ends it.

        Raises `ProfileError` or `ResultError` if it cannot even begin.
        """
        numbers = (int(match["number"]) for path in self.folder.iterdir() if (match := _FOLDER.fullmatch(path.name)))
        number = 1 + max(numbers, default=0)
        folder = self.folder / f"{number:02}-{phase}"
        folder.mkdir(mode=0o700)
        run = self._run = Run(
            RunSettings(
                as_swept(profile, self.began.profile["load"]["seed"] + number),
                where=self.settings.where,
                folder=folder,
                force=self.settings.force,
            )
        )
        companion: asyncio.Task[None] | None = None
        due_s = 0.0
        try:
            async for self.snapshot in run.snapshots():
                self.changed.set()
                if self.snapshot.phase == "running":
                    if meanwhile is not None and companion is None:
                        companion = asyncio.create_task(_then_end(run, meanwhile))
                    if self.snapshot.t_s >= due_s:
                        due_s = self.snapshot.t_s * (1 + _INTERIM_SHARE) + _INTERIM_S
                        await run.write()
        finally:
            await run.close()
            if companion is not None:
                companion.cancel()
                await asyncio.wait({companion})
            self._run = self.snapshot = None
        if companion is not None and not companion.cancelled() and (failure := companion.exception()) is not None:
            raise failure
        self._note_made(folder)
        made = self.made[-1]
        if isinstance(run.error, ServerError) and not self.starts_server and not made.load_s:
            raise run.error
        return made


def began_alike(settings: AcceptSettings, folder: Path) -> AcceptBegan:
    """How the acceptance in a folder began, with the same profile and these phases, or more.

    Raises `ResultError` if nothing began there, `ProfileError` if it was another profile or other phases.
    """
    began = began_in(read_lines(folder))
    now, before = _without_amounts(masked(settings.profile.model_dump(mode="json"))), _without_amounts(began.profile)
    if now != before:
        by = "" if began.vramp_version == loadgen.__version__ else f" (by vramp {began.vramp_version})"
        flat_now, flat_before = flattened(now), flattened(before)
        keys = [key for key in flat_before | flat_now if flat_before.get(key) != flat_now.get(key)]
        raise ProfileError(
            f"{folder}: the profile or the options are not those that it began with{by}: {', '.join(keys[:3])}"
            f"{', ...' if len(keys) > 3 else ''}; begin a new acceptance"
        )
    assert settings.profile.accept is not None
    unknown = [phase for phase in settings.profile.accept.phases if phase not in began.phases]
    if settings.repeats and unknown:
        raise ProfileError(
            f"{folder}: --phase {unknown[0]}: it began with {', '.join(began.phases)}; begin a new acceptance"
        )
    return began


def began_in(lines: Sequence[AcceptLine]) -> AcceptBegan:
    """The first line."""
    began = lines[0]
    assert isinstance(began, AcceptBegan)
    return began


async def _then_end(run: Run, meanwhile: Companion) -> None:
    await meanwhile(run)
    run.apply(NextStage())


def _phase_of(folder: Path) -> PhaseName:
    """The phase that a run's folder is named after, such as `03-output`."""
    return folder.name.partition("-")[2]  # type: ignore[return-value]


def _made(folder: Path) -> Made:
    try:
        result = msgspec.json.decode(read_whole(folder / RESULT), type=_Result)
    except OSError as error:
        raise ResultError(f"{folder / RESULT}: cannot be read: {error.strerror}") from error
    except UNDECODABLE as error:
        raise ResultError(f"{folder / RESULT}: not a result of vramp: {error}") from error
    load_s = sum(stage.duration_s for stage in result.stages)
    start_s = result.server.start.total_s if result.server is not None else None
    return Made(_phase_of(folder), result.state, result.reason, load_s, start_s)


def _without_amounts(document: dict[str, Any]) -> dict[str, Any]:
    """A profile without its seed, and without how much of it is to be done, which may grow."""
    load = {key: value for key, value in document["load"].items() if key != "seed"}
    accept = {
        key: value
        for key, value in document["accept"].items()
        if key not in ("starts", "burn_in", "phases", "question_count")
    }
    return document | {"load": load, "accept": accept}


def boot_id() -> str:
    """The kernel's name for the time since this boot."""
    return text_in(Path("/proc/sys/kernel/random/boot_id"))


def booted_unix_s() -> float:
    """When this machine booted, by the wall clock: within one boot, it moves only when that is stepped."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
