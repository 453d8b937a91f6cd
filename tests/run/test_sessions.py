"""Live sessions under the operator's hand: as many as wanted, through changes, a pause and no load."""

from collections.abc import Callable

import pytest

from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.report.text import text_report
from loadgen.run.operations import Pause, Resume, SetConcurrency, SetRate, SetShape, Stop
from loadgen.schema.snapshot import Snapshot
from tests.engines import Simulator
from tests.run.driving import finish, in_turn, run_of

SESSIONS = {"data": "generated", "scale": 0.001, "max_gap": 0.02}


def steered(engine: Simulator, **load: object) -> Profile:
    given = {"concurrency": 3, "duration": "60s", "sessions": SESSIONS, **load}
    server = {"engine": "attach", "url": engine.url}
    return build_profile({"server": server, "load": given, "canary": {"enabled": False}}, where="test")


def measuring(live: int) -> Callable[[Snapshot], bool]:
    """Whether so many sessions live in a stage that is measured."""

    def condition(snapshot: Snapshot) -> bool:
        now = snapshot.sessions
        assert snapshot.load.in_sessions or not snapshot.load.stage or snapshot.load.no_load
        running = snapshot.phase == "running" and snapshot.load.concurrency == live and not snapshot.load.waits_for
        return running and now is not None and now.live == live and snapshot.stages[-1].requests.completed > 10

    return condition


async def test_sessions_are_steered_like_streams(engine: Simulator) -> None:
    run = run_of(steered(engine), hold_open=True)
    act = in_turn(
        (measuring(3), SetShape(10, 5)),
        (measuring(3), SetRate(2.0)),
        (measuring(3), SetConcurrency(6)),
        (measuring(6), Pause()),
        (lambda snapshot: snapshot.load.paused and snapshot.load.held == 0, Resume()),
        (measuring(6), SetConcurrency(2)),
        (measuring(2), SetConcurrency(0)),
        (lambda snapshot: snapshot.load.no_load and snapshot.sessions is None, Stop()),
    )
    result = await finish(run, act)
    played = [stage for stage in result.stages if stage.sessions is not None]
    assert [stage.label for stage in played] == ["3 sessions", "6 sessions", "6 sessions", "2 sessions"]
    assert [stage.sessions.live for stage in played if stage.sessions is not None] == [
        pytest.approx(wanted, abs=0.1) for wanted in (3, 6, 6, 2)
    ]
    refused = [event.text for event in result.events if event.kind == "error"]
    assert refused == ["load refused: sessions have lengths and times of their own; change how many are live"] * 2
    found = [stage.sessions for stage in played if stage.sessions is not None]
    ended = sum(one.finished + one.failed + one.over_context + one.cut for one in found)
    # Those that live at the end are cut by the stage without load, which counts nothing.
    assert sum(one.begun for one in found) == ended + 2
    assert sum(one.cut for one in found) == 4
    # The pause ends none of them.
    assert found[2].begun_inside == 0
    assert all(stage.requests.failed == 0 for stage in played)
    # Whether a session begins at its first turn within a window is left to chance.
    assert {"ttft_later_turns", "e2e_per_token"} <= {name for stage in played for name in stage.latency_ms}


async def test_answers_of_the_server_become_the_history(engine: Simulator) -> None:
    engine.forget()
    profile = steered(engine, endpoint="chat", sessions={**SESSIONS, "history": "server"}, concurrency=2)
    run = run_of(profile)
    result = await finish(run, in_turn((measuring(2), Stop())))
    assert result.stages[0].requests.failed == 0
    assert result.stages[0].requests.completed > 10
    # An answer that an engine keeps is hit by the next turn, which no ceiling of what was sent knows.
    assert result.stages[0].hits is None or result.stages[0].hits.infinite is None
    assert 'Both caches: unknown: with load.sessions.history = "server"' in text_report(result)
