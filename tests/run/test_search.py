"""Plans that react, in whole runs on the simulator: searches, settled stages, and an open loop beyond the server."""

from collections.abc import Iterator
from typing import Any

import pytest

from loadgen.profile.schema import Profile
from loadgen.run.operations import Abort, NextStage, SetConcurrency, Stop
from loadgen.schema.result import Result
from loadgen.schema.snapshot import Snapshot
from loadgen.store.recover import folded
from tests.engines import Simulator, profile, simulator
from tests.run.driving import finish, flowing, in_turn, once, outcome, run_of

# Bends at 2 streams (16 ms / 8 ms a stream): early enough for a short test, slow enough for a busy machine.
BENDS = {"base-ms": 16, "per-seq-ms": 8, "per-prefill-token-ms": 0, "jitter": 0}


@pytest.fixture(scope="module")
def shared() -> Iterator[Simulator]:
    with simulator(*(word for name, value in BENDS.items() for word in (f"--{name}", str(value)))) as running:
        yield running


def searching(engine: Simulator | None, plan: dict[str, Any], **parts: Any) -> Profile:
    """On a server that is there, or on one of its own."""
    server = {"engine": "simulator", "args": BENDS} if engine is None else {"engine": "attach", "url": engine.url}
    load = {"isl": 1, "osl": 8, "requests": None, "duration": "500ms"} | parts.pop("load", {})
    # Shorter than any transient: the search is what is tested.
    settled = {"settle": "300ms", "completed": 5, "longest": "3s"}
    return profile(server, plan=settled | plan, load=load, **parts)


def loads(result: Result) -> list[float | int | None]:
    return [stage.target.concurrency for stage in result.stages]


async def test_the_knee_of_the_simulator() -> None:
    run = run_of(searching(None, {"search": "knee"}))
    result = await finish(run)
    assert (result.state, run.error) == ("complete", None)
    assert result.search is not None
    assert result.search.found == pytest.approx(2, abs=1)
    assert loads(result)[:3] == [1, 2, 4]
    assert result.search.probes == len(result.stages)
    # One server, one run, one journal, from which the same comes out.
    assert folded(run.folder / "journal.jsonl").search == result.search


async def test_the_highest_load_under_a_limit(engine: Simulator) -> None:
    # 16 + 8 N ms a token: 5 streams take 56 ms; the machine adds what it adds.
    limits = {"tpot": "60ms"}
    result, error = await outcome(
        searching(engine, {"search": "slo", "precision": 0.5, "goodput": 0.5}, slo=limits, load={"concurrency": 2}),
    )
    assert error is None
    assert result.search is not None
    assert result.search.found is not None
    assert 4 <= result.search.found <= 8
    assert loads(result)[:3] == [2, 4, 8]
    last = result.stages[-1]
    assert last.goodput is not None
    assert last.goodput.determined == last.requests.completed + last.requests.failed
    assert last.goodput.good <= last.goodput.determined


async def test_a_settled_stage_leaves_its_transient_out(engine: Simulator) -> None:
    result, _ = await outcome(searching(engine, {"settle": "20s", "completed": 20}, load={"concurrency": 4}))
    (stage,) = result.stages
    assert stage.settled_s is not None
    # Twelve ticks, the first of which may be short.
    assert stage.settled_s >= 2.75
    assert stage.duration_s - stage.measured_s == pytest.approx(stage.settled_s, abs=0.5)
    assert stage.requests.warmup > 0
    assert stage.requests.completed >= 20
    assert stage.inconclusive is None


async def test_too_few_streams_are_inconclusive(engine: Simulator) -> None:
    plan = {"settle": "500ms", "completed": 10_000, "longest": "500ms"}
    result, _ = await outcome(searching(engine, plan, load={"concurrency": 2}))
    (stage,) = result.stages
    assert stage.stop_reason == "too few streams completed in 0.5 s"
    assert stage.inconclusive is not None
    assert "it was measured before its transient was over: 0.5 s were not enough" in stage.inconclusive
    assert "of at least 10000 streams completed" in stage.inconclusive


async def test_a_search_goes_on_after_a_stage_by_hand_and_keeps_what_there_is_when_stopped(engine: Simulator) -> None:
    act = in_turn(
        (flowing, SetConcurrency(5)),
        (lambda snapshot: len(snapshot.stages) == 2, NextStage()),
        (lambda snapshot: len(snapshot.stages) == 4, Stop()),
    )
    result, error = await outcome(searching(engine, {"search": "knee"}), act=act)
    assert (error, result.state, result.search) == (None, "stopped", None)
    # The knee's first point was broken off, so it is measured after all.
    assert loads(result) == [1, 5, 1, 2]


async def test_an_open_loop_beyond_the_server_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # Readings four times as often: the verdict itself is tested in test_saturation.
    monkeypatch.setattr("loadgen.run.stage_end.READING_S", 0.25)
    monkeypatch.setattr("loadgen.run.stage_end.JUDGED_AFTER_S", 2.5)
    # At most 2 streams at once, 20 ms a token, 4 tokens: 25 a second.
    server = {"engine": "simulator", "args": {"base-ms": 20, "per-seq-ms": 0, "max-num-seqs": 2}}
    load = {"requests": None, "duration": "60s", "rate": [60.0], "osl": 4, "isl": 1}

    def ended(snapshot: Snapshot) -> bool:
        return bool(snapshot.stages) and not snapshot.stages[0].running

    # What is in the queue by then need not be waited for.
    result, error = await outcome(profile(server, load=load), act=once(ended, Abort()))
    assert error is None
    (stage,) = result.stages
    assert stage.stop_reason.startswith("over-saturated: streams in flight grow without bound")
    assert stage.duration_s < 30
