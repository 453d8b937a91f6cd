"""What the operator does to the stages: held open, made longer, followed by another plan; what is refused, in words."""

from collections.abc import Callable

import pytest

from loadgen.plan.request import PlanRequest
from loadgen.run.operations import (
    Extend,
    FollowPlan,
    Hold,
    NextStage,
    Pause,
    Redo,
    Restart,
    Resume,
    SetConcurrency,
    SetShape,
    Stop,
)
from loadgen.schema.snapshot import Snapshot
from tests.engines import Simulator, attach
from tests.run.driving import flowing, in_turn, noted, outcome, texts


def lasting(text: str, **load: object) -> dict[str, object]:
    return {"requests": None, "duration": text} | load


def at_stage(number: int) -> Callable[[Snapshot], bool]:
    return lambda snapshot: len(snapshot.stages) == number and flowing(snapshot)


def later_than(s: float) -> Callable[[Snapshot], bool]:
    return lambda snapshot: snapshot.load.stage_elapsed_s > s


async def test_a_stage_that_is_held_or_extended_goes_on_past_its_end(engine: Simulator) -> None:
    seen: list[Snapshot] = []
    act = in_turn(
        (at_stage(1), Extend()),
        (at_stage(2), Hold()),
        (later_than(2.0), NextStage()),
        (at_stage(3), Hold()),
        (later_than(2.0), Extend()),
        (at_stage(4), Hold()),
        (later_than(1.2), Pause()),
        (lambda snapshot: snapshot.phase == "paused", Resume()),
    )
    load = lasting("1s", concurrency=[1, 2, 3, 4])
    result, error = await outcome(attach(engine, load=load), noted(seen, act))
    assert error is None
    held = [snapshot.load for snapshot in seen if snapshot.load.held_open]
    assert held and all(load.stage_progress is None and load.concurrency in (2, 3, 4) for load in held)
    assert [(stage.target.concurrency, stage.stop_reason) for stage in result.stages] == [
        (1, "its time was up"),
        (2, "the operator moved on"),
        (3, "its time was up"),
        (4, "the operator paused"),
        (4, "its time was up"),
    ]
    extended, held_until_next, held_and_extended, *_ = (stage.measured_s for stage in result.stages)
    assert extended > 1.5 and held_until_next > 1.5 and held_and_extended > 2
    assert texts(result, "load") == [
        *("conc 1 extended by 1 s", "conc 2 is held", "next stage"),
        *("conc 3 is held", "conc 3 extended by 1 s", "conc 4 is held"),
    ]


async def test_a_stage_that_settles_is_held_too(engine: Simulator) -> None:
    plan = {"ladder": [3], "settle": "500ms"}
    act = in_turn((flowing, Hold()), (later_than(2.7), NextStage()))
    result, _ = await outcome(attach(engine, load=lasting("1s"), plan=plan), act)
    (stage,) = result.stages
    assert (stage.stop_reason, stage.settled_s is not None) == ("the operator moved on", True)
    assert stage.measured_s > 1.5


async def test_a_stage_that_counts_requests_is_held_as_one_that_does_not(engine: Simulator) -> None:
    act = in_turn((flowing, Hold()), (at_stage(2), Extend()), (later_than(0.2), Stop()))
    result, _ = await outcome(attach(engine, load={"requests": 100_000}), act)
    assert [stage.stop_reason for stage in result.stages] == ["the operator held it", "stopped by the operator"]
    assert [stage.target.concurrency for stage in result.stages] == [4, 4]
    assert texts(result, "error") == ["extend refused: conc 4 is not bounded by time"]


async def test_a_ladder_from_where_the_load_stands(engine: Simulator) -> None:
    ladder = PlanRequest("ladder", loads=(1, 2), duration_s=0.3)
    seen: list[Snapshot] = []
    act = in_turn((flowing, SetShape(32, 4)), (at_stage(2), FollowPlan(ladder)))
    result, error = await outcome(attach(engine, load=lasting("60s", concurrency=[4, 9])), noted(seen, act))
    assert (result.state, error) == ("complete", None)
    targets = [(stage.target.concurrency, stage.isl, stage.osl) for stage in result.stages]
    assert targets == [(4, 16, 8), (4, 32, 4), (1, 32, 4), (2, 32, 4)]
    assert result.stages[1].stop_reason == "the operator began another plan"
    assert texts(result, "load") == ["conc 4 -> shape 32/4", "ladder 1, 2, 0.3 s each from here"]
    assert (seen[-1].load.stage, seen[-1].load.stages_planned) == (4, 4)


async def test_streams_of_a_higher_load_are_not_measured_in_a_lower_one(engine: Simulator) -> None:
    seen: list[Snapshot] = []
    load = lasting("300ms", concurrency=[16, 2], isl=16, osl=400)
    result, error = await outcome(attach(engine, load=load), noted(seen))
    assert error is None
    high, low = result.stages
    assert high.settled_s is not None and low.settled_s is not None
    assert low.concurrency.peak <= 2
    assert low.measured_s >= 0.3
    # Nothing of it is done before its window is open.
    waiting = [snapshot.load for snapshot in seen if snapshot.load.stage == 2 and snapshot.load.held > 2]
    assert waiting and {load.stage_progress for load in waiting} == {0.0}


async def test_how_many_stages_are_to_come(engine: Simulator) -> None:
    seen: list[Snapshot] = []
    act = in_turn(
        (flowing, SetConcurrency(5)),
        (at_stage(2), Pause()),
        (lambda snapshot: snapshot.load.paused, Resume()),
        (at_stage(3), NextStage()),
        (at_stage(4), Redo()),
        (at_stage(5), NextStage()),
    )
    result, error = await outcome(attach(engine, load=lasting("60s", concurrency=[4, 6])), noted(seen, act))
    assert error is None
    assert result.stages[3].stop_reason == "the operator measures it again"
    numbers = [(one.load.stage, one.load.stages_planned) for one in seen if one.phase == "running"]
    # By hand a stage more; the same load goes on after a pause as another; and so does what is measured once more.
    assert list(dict.fromkeys(numbers)) == [(1, 2), (2, 3), (3, 4), (4, 4), (5, 5)]


async def test_a_ramp_of_the_rate_and_a_search_after_it(engine: Simulator) -> None:
    act = in_turn(
        (flowing, FollowPlan(PlanRequest("ramp", to=60, over_s=1))),
        (lambda snapshot: snapshot.phase == "holding", FollowPlan(PlanRequest("slo"))),
        (lambda snapshot: snapshot.search is not None, Stop()),
    )
    load = lasting("500ms", rate=[20.0])
    plan = {"by": "rate", "settle": "100ms", "completed": 1, "most": 60}
    parts = attach(engine, load=load, slo={"ttft_p50": "1h"}, plan=plan)
    result, error = await outcome(parts, act, hold_open=True)
    assert error is None
    rates = [stage.target.rate for stage in result.stages]
    assert rates[:2] == [20, 40]
    assert [point.load for point in result.stages[1].curve] == pytest.approx([20 + 40 * step / 9 for step in range(10)])
    # It begins at the present load, which is the highest that it may come to.
    assert rates[2] == 60
    assert result.search is not None and (result.search.kind, result.search.by) == ("slo", "rate")


async def test_a_plan_that_is_requested_during_the_start(engine: Simulator) -> None:
    ladder = PlanRequest("ladder", loads=(2,), duration_s=0.2)
    act = in_turn((lambda snapshot: not snapshot.stages, FollowPlan(ladder)))
    result, _ = await outcome(attach(engine, load=lasting("60s")), act)
    assert [stage.target.concurrency for stage in result.stages] == [2]


async def test_what_cannot_be_done_is_reported_and_changes_nothing(engine: Simulator) -> None:
    act = in_turn(
        (flowing, FollowPlan(PlanRequest("slo"))),
        (flowing, FollowPlan(PlanRequest("ladder", loads=(1.5,)))),
        (flowing, SetShape(9000, 1000)),
        (flowing, Restart(None)),
        (flowing, SetConcurrency(2)),
        (at_stage(2), Hold()),
        (flowing, Redo()),
        (lambda snapshot: len(snapshot.stages) == 3, NextStage()),
        (lambda snapshot: snapshot.phase == "holding", Pause()),
        (lambda snapshot: snapshot.phase == "holding", Hold()),
        (lambda snapshot: snapshot.phase == "holding", NextStage()),
        (lambda snapshot: snapshot.phase == "holding", SetConcurrency(7)),
        (at_stage(4), NextStage()),
        (lambda snapshot: snapshot.phase == "holding", Stop()),
        (lambda snapshot: snapshot.phase == "stopping", SetConcurrency(3)),
        (lambda snapshot: snapshot.phase == "done", FollowPlan(PlanRequest("knee"))),
    )
    result, error = await outcome(attach(engine, load=lasting("60s")), act, hold_open=True)
    assert (result.state, error) == ("complete", None)
    assert [stage.target.concurrency for stage in result.stages] == [4, 2, 4, 7]
    refused = texts(result, "error")
    starts = [
        'plan refused: search = "slo" needs a limit',
        "plan refused: ladder: 1.5 is not",
        "shape refused: 9000 + 1000 = 10000",
        "restart refused: vramp has only attached to this server",
        "hold refused: conc 2 has no end",
        "pause refused: nothing",
        "hold refused: nothing",
        "next refused: nothing",
    ]
    assert all(map(str.startswith, refused, starts)), refused
    assert refused[-1] == "load refused: the run is ending"
    assert len(refused) == len(starts) + 1


async def test_a_ramp_that_begins_while_nothing_runs_has_a_first_wave(engine: Simulator) -> None:
    act = in_turn(
        (lambda snapshot: snapshot.phase == "holding", FollowPlan(PlanRequest("ramp", to=2, over_s=1))),
        (lambda snapshot: len(snapshot.stages) == 2 and not snapshot.stages[1].running, Stop()),
    )
    result, error = await outcome(attach(engine, load=lasting("300ms", concurrency=8)), act, hold_open=True)
    assert error is None
    _, ramp = result.stages
    assert ramp.first_wave is not None and ramp.first_wave.streams == 8
    assert [(point.direction, point.load) for point in ramp.curve] == [("down", float(load)) for load in range(2, 9)]
