"""Between two stages: nothing of the operator's is undone, and each stage's own first wave is kept apart."""

from collections.abc import Callable
from itertools import dropwhile, takewhile
from typing import Any

import pytest

from loadgen.run.operations import NextStage, Operation, Pause, Resume, SetConcurrency, Stop
from loadgen.run.session import Session
from loadgen.schema.journal import StageSettled, StageStarted, Ticked
from loadgen.schema.snapshot import Snapshot
from loadgen.store.journal import read_journal
from tests.engines import Simulator, attach
from tests.run.driving import finish, flowing, in_turn, outcome, run_of

ANSWERED, CHANGED = "all requests were answered", "the operator changed the load"


def paused(snapshot: Snapshot) -> bool:
    return snapshot.phase == "paused"


def flowing_by_hand(snapshot: Snapshot) -> bool:
    return snapshot.load.manual and flowing(snapshot)


@pytest.mark.parametrize(
    ("operation", "after", "loads", "ended"),
    [
        (Pause(), [(paused, Resume())], [2, 2, 1, 2], ["the operator paused", *[ANSWERED] * 3]),
        (SetConcurrency(3), [(flowing_by_hand, Stop())], [2, 3], [CHANGED, "stopped by the operator"]),
        (NextStage(), [], [2, 1, 2], ["the operator moved on", ANSWERED, ANSWERED]),
    ],
)
async def test_what_happens_while_the_engine_is_read_between_two_stages_stays(
    engine: Simulator,
    monkeypatch: pytest.MonkeyPatch,
    operation: Operation,
    after: list[tuple[Callable[[Snapshot], bool], Operation]],
    loads: list[int],
    ended: list[str],
) -> None:
    run = run_of(attach(engine, load={"concurrency": [2, 1, 2], "requests": 8}))
    requested = [operation]
    read = Session._read_engines

    async def read_slowly(session: Session) -> None:
        """Takes until a key is pressed: how long an engine takes is no test's to choose."""
        if requested:
            run.apply(requested.pop())
        await read(session)

    monkeypatch.setattr(Session, "_read_engines", read_slowly)
    result = await finish(run, in_turn(*after))
    assert [stage.target.concurrency for stage in result.stages] == loads
    assert [stage.stop_reason for stage in result.stages] == ended
    assert all(stage.requests.completed == 8 for stage in result.stages if stage.stop_reason == ANSWERED)


async def test_each_pass_has_a_first_wave_of_its_own(engine: Simulator) -> None:
    result, error = await outcome(attach(engine, load={"concurrency": 4, "requests": 12, "passes": 3}))
    assert error is None
    assert [stage.first_wave and stage.first_wave.streams for stage in result.stages] == [4, 4, 4]


async def test_a_stage_is_not_measured_by_what_was_before_it(engine: Simulator) -> None:
    stages: list[dict[str, Any]] = [{"concurrency": 2, "requests": 20}, {"concurrency": 8, "duration": "300ms"}]
    run = run_of(attach(engine, stages=stages))
    result = await finish(run)
    assert [stage.first_wave and stage.first_wave.streams for stage in result.stages] == [2, 8]
    lines = list(read_journal(run.folder / "journal.jsonl"))
    second = dropwhile(lambda line: not (isinstance(line, StageStarted) and line.index == 1), lines)
    waiting = takewhile(lambda line: not isinstance(line, StageSettled), second)
    assert any(isinstance(line, Ticked) for line in waiting)
