"""Degenerate answers in a whole run: found while it goes on, by few looks, and on the server that gives them."""

from typing import Any

import httpx

from loadgen.run.operations import SetConcurrency, Stop
from loadgen.run.run import Run
from loadgen.schema.finding import Verdict
from loadgen.schema.snapshot import Snapshot
from tests.engines import MANAGED, Simulator, attach, profile
from tests.run.driving import finish, in_turn, outcome, run_of

A_MINUTE = 240  # looks of one worker
LOOKED_AT: dict[str, Any] = {"canary": {"enabled": True, "interval_s": 3600}}
LOAD: dict[str, Any] = {"concurrency": 2, "osl": 40, "requests": None, "duration": "60s"}


def accusations(verdicts: tuple[Verdict, ...] | list[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.id == "output-degenerate"]


def accused(snapshot: Snapshot) -> bool:
    return bool(accusations(snapshot.verdicts))


async def test_text_that_is_wrong_from_a_concurrency_on(engine: Simulator) -> None:
    engine.faults("repeat:streams=6")
    run = run_of(attach(engine, load=LOAD, **LOOKED_AT))

    def looked_at(_: Snapshot) -> bool:
        return run._writer.record.current is not None and run._writer.record.current.answers.read >= 8

    result = await finish(run, in_turn((looked_at, SetConcurrency(8)), (accused, Stop())))
    assert (result.state, run.error) == ("stopped", None)
    good, broken = result.stages
    assert accusations(good.verdicts) == []
    (verdict,) = accusations(broken.verdicts)
    assert (verdict.subject, verdict.bad) == ("stage 2", True)
    assert "repeat themselves ('!' over and over)" in verdict.text
    assert good.answers is not None and broken.answers is not None
    assert (good.answers.read > 0, good.answers.degenerate) == (True, {})
    assert broken.answers.read < A_MINUTE


async def test_one_server_of_two_is_named() -> None:
    def break_second(run: Run) -> None:
        second = broken[0].server.instances[1].url
        httpx.post(f"{second}/admin/faults", json={"faults": ["replacement"]}, trust_env=False).raise_for_status()

    broken: list[Snapshot] = []

    def ready(snapshot: Snapshot) -> bool:
        broken[:] = [snapshot]
        return snapshot.phase == "running"

    parts = profile(MANAGED | {"instances": 2}, load=LOAD | {"concurrency": 4}, **LOOKED_AT)
    result, error = await outcome(parts, in_turn((ready, break_second), (accused, Stop())))
    assert error is None
    (stage,) = result.stages
    (verdict,) = accusations(stage.verdicts)
    assert verdict.text.startswith(f"{stage.instances[1].url}: degenerate text: ")
    assert [list(part.answers.degenerate) for part in stage.instances if part.answers is not None] == [
        [],
        ["unreadable"],
    ]
