"""Driving a whole run in a test: what sees its snapshots, and what must be left and not left in the end."""

from collections.abc import Callable
from typing import Any

import psutil

from loadgen.errors import VrampError
from loadgen.profile.schema import Profile
from loadgen.run.operations import Operation
from loadgen.run.run import Run
from loadgen.run.settings import RunSettings
from loadgen.schema.result import Result
from loadgen.schema.snapshot import Snapshot
from tests.result_schema import require_schema

Act = Callable[[Run, Snapshot], None]
Action = Operation | Callable[[Run], None]


def processes_of_ours(module: str = "") -> list[psutil.Process]:
    """Those that are alive below this one, but for the shared simulator; with `module`, those that run it."""
    children = psutil.Process().children(recursive=True)
    alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    own = [child for child in alive if child.cmdline()[-4:] != ["--port", "0", "--base-ms", "3"]]
    return [child for child in own if not module or module in child.cmdline()]


def left_behind() -> list[list[str]]:
    return [child.cmdline() for child in processes_of_ours()]


def run_of(parts: Profile, **settings: Any) -> Run:
    """The run of a profile."""
    return Run(RunSettings(parts, where="test", **settings))


async def finish(run: Run, act: Act | None = None) -> Result:
    """Run to the end; `act` sees every snapshot."""
    async for snapshot in run.snapshots():
        if act is not None:
            act(run, snapshot)
    assert run.result is not None
    require_schema((run.folder / "result.json").read_bytes())
    return run.result


async def outcome(parts: Profile, act: Act | None = None, **options: Any) -> tuple[Result, VrampError | None]:
    run = run_of(parts, **options)
    return await finish(run, act), run.error


def once(condition: Callable[[Snapshot], bool], action: Action) -> Act:
    """Do something the first time that a snapshot is right for it."""
    return in_turn((condition, action))


def in_turn(*steps: tuple[Callable[[Snapshot], bool], Action]) -> Act:
    """Do one thing after another, each when a snapshot is right for it."""
    left = list(steps)

    def act(run: Run, snapshot: Snapshot) -> None:
        if left and left[0][0](snapshot):
            _, action = left.pop(0)
            if callable(action):
                action(run)
            else:
                run.apply(action)

    return act


def noted(seen: list[Snapshot], act: Act = lambda *_: None) -> Act:
    """Note every snapshot, and act on it."""

    def both(run: Run, snapshot: Snapshot) -> None:
        seen.append(snapshot)
        act(run, snapshot)

    return both


def flowing(snapshot: Snapshot) -> bool:
    return snapshot.phase == "running" and bool(snapshot.stages) and snapshot.stages[-1].requests.completed > 0


def texts(result: Result, kind: str) -> list[str]:
    """What happened of this kind, in words."""
    return [event.text for event in result.events if event.kind == kind]
