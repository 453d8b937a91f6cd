"""A run without load: what it sends, how its stages are cut, and how load begins and ends in it."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from loadgen.errors import ServerError
from loadgen.plan.request import PlanRequest
from loadgen.profile.schema import Profile
from loadgen.run.operations import FollowPlan, Note, Pause, Redo, SetConcurrency, Stop
from loadgen.run.run import Run
from loadgen.schema.snapshot import Snapshot
from tests.engines import NOBODY, Simulator, attach, profile, simulator
from tests.run.driving import in_turn, once, outcome, processes_of_ours, texts
from tests.run.test_optional import Server, serving


def quiet(engine: Simulator, *, plan: dict[str, Any] | None = None, **load: Any) -> Profile:
    return attach(engine, load={"concurrency": 0, "requests": None, **load}, plan=plan or {})


def at_stage(number: int) -> Any:
    return lambda snapshot: len(snapshot.stages) == number and snapshot.load.stage_elapsed_s > 0.3


async def test_nothing_is_sent_and_no_worker_is_started(engine: Simulator) -> None:
    seen: list[int] = []
    parts = quiet(engine, duration="1s")
    result, error = await outcome(parts, lambda *_: seen.append(len(processes_of_ours("loadgen.worker"))))
    assert engine.truth()["requests"]["received"] == 0
    assert (error, result.kind, result.client.workers, max(seen)) == (None, "monitor", 0, 0)
    (stage,) = result.stages
    assert (stage.label, stage.target.concurrency, stage.requests.sent) == ("no load", 0, 0)
    assert stage.measured_s >= 0.7
    assert stage.inconclusive is None and stage.host
    assert (result.environment["model"], result.environment["vllm_version"]) != (None, None)


async def test_stages_are_cut_by_time_and_by_marks(engine: Simulator) -> None:
    parts = quiet(engine, plan={"every": "1s"}, duration="2500ms")
    result, _ = await outcome(parts, once(lambda snapshot: len(snapshot.stages) == 2, Note("new firmware")))
    assert [stage.label for stage in result.stages] == ["no load", "no load", "new firmware", "no load"]
    assert [stage.stop_reason for stage in result.stages][1] == "the operator set a mark"
    whole, cut, rest, last = (stage.measured_s for stage in result.stages)
    assert whole == pytest.approx(1.0, abs=0.3)
    assert cut + rest == pytest.approx(1.0, abs=0.3)
    assert last == pytest.approx(0.5, abs=0.3)


async def test_load_begins_on_request_and_ends(engine: Simulator) -> None:
    def loaded(snapshot: Snapshot) -> bool:
        return bool(snapshot.stages) and snapshot.stages[-1].requests.completed > 3

    act = in_turn(
        (at_stage(1), Pause()),
        (at_stage(1), SetConcurrency(3)),
        (loaded, SetConcurrency(0)),
        (lambda snapshot: at_stage(3)(snapshot) and not snapshot.load.held, Stop()),
    )
    result, error = await outcome(quiet(engine), act)
    assert engine.truth()["requests"]["completed"] > result.stages[1].requests.completed  # the first request too
    assert error is None
    assert [stage.target.concurrency for stage in result.stages] == [0, 3, 0]
    assert result.kind == "load"
    assert result.stages[1].requests.completed > 3 and result.client.workers == 1
    assert texts(result, "error") == ["pause refused: there is no load"]
    assert texts(result, "load")[:2] == ["no load -> conc 3", "conc 3 -> no load"]
    assert [stage.others.seen for stage in result.stages if stage.others is not None] == [False] * 3


async def test_load_that_cannot_be_is_refused_and_the_monitor_goes_on() -> None:
    with simulator("--api-key", "sesame") as engine:
        # Its metrics are open, what it serves is not.
        act = in_turn(
            (at_stage(1), SetConcurrency(2)),
            (lambda snapshot: any("refused" in event.text for event in snapshot.events), Stop()),
        )
        result, error = await outcome(quiet(engine), act)
    assert (error, len(result.stages), result.kind) == (None, 1, "monitor")
    (refused,) = texts(result, "error")
    assert refused.startswith("load refused: ") and "401" in refused


async def test_without_a_server_there_is_the_machine() -> None:
    parts = profile({"engine": "none"}, load={"concurrency": 0, "requests": None}, telemetry="off")
    act = in_turn(
        (at_stage(1), SetConcurrency(2)),
        (lambda snapshot: any("refused" in event.text for event in snapshot.events), Stop()),
    )
    result, error = await outcome(parts, act)
    assert (error, result.kind) == (None, "monitor")
    assert texts(result, "error") == ["load refused: there is no server to send it to; name one: vramp monitor URL"]
    assert result.host_series["cpu_percent"]


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ((404, b""), "/metrics answered 404"),
        ((200, b"# TYPE node_load1 gauge\nnode_load1 0.5\n"), "/metrics has no figure of vLLM, SGLang, TGI"),
    ],
)
async def test_a_server_without_metrics_of_an_engine_is_refused(metrics: tuple[int, bytes], why: str) -> None:
    async with serving(Server(odd={"/metrics": metrics})) as url:
        parts = profile({"engine": "attach", "url": url}, load={"concurrency": 0, "requests": None})
        result, error = await outcome(parts)
    assert isinstance(error, ServerError)
    assert why in str(error) and result.stages == []


async def test_nobody_listens() -> None:
    parts = profile({"engine": "attach", "url": NOBODY}, load={"concurrency": 0, "requests": None})
    _, error = await outcome(parts)
    assert isinstance(error, ServerError) and error.exit_code == 3


async def test_a_server_that_goes_and_comes_back_as_another() -> None:
    states: list[str] = []
    with simulator() as engine:
        port = engine.url.rpartition(":")[2]
        parts = quiet(engine)

        def stop(_: Run) -> None:
            engine.process.kill()
            engine.process.wait()

        with ExitStack() as later:

            def start(_: Run) -> None:
                later.enter_context(simulator("--port", port, "--served-model-name", "other"))

            act = in_turn(
                (at_stage(1), stop),
                (lambda snapshot: snapshot.server.state == "unreachable", start),
                (lambda snapshot: snapshot.server.model == "other", Stop()),
            )

            def watched(run: Run, snapshot: Snapshot) -> None:
                states.append(snapshot.server.state)
                act(run, snapshot)

            result, error = await outcome(parts, watched)
    assert (error, len(result.stages)) == (None, 1)
    assert states[-1] == "ready" and "unreachable" in states
    assert any("other" in text and "now" in text for text in texts(result, "server"))
    assert any("no engine metrics" in text for text in texts(result, "engine"))
    assert result.environment["model"] == "other"


async def test_load_on_a_server_that_dies_ends_and_the_monitor_goes_on() -> None:
    def loaded(snapshot: Snapshot) -> bool:
        return bool(snapshot.stages) and snapshot.stages[-1].requests.completed > 3

    with simulator() as engine:
        act = in_turn(
            (at_stage(1), SetConcurrency(5)),
            (loaded, lambda _: engine.process.kill()),
            (at_stage(3), Stop()),
        )
        result, error = await outcome(quiet(engine), act)
    assert (error, [stage.target.concurrency for stage in result.stages]) == (None, [0, 5, 0])
    assert any("nothing but failures" in text for text in texts(result, "error"))


async def test_servers_that_are_not_alike_are_watched_together_and_not_loaded() -> None:
    with simulator("--served-model-name", "a") as one, simulator("--served-model-name", "b") as other:
        server = {"engine": "attach", "urls": [one.url, other.url]}
        act = in_turn(
            (at_stage(1), SetConcurrency(2)),
            (
                lambda snapshot: any("refused" in event.text for event in snapshot.events),
                lambda _: other.process.kill(),
            ),
            (lambda snapshot: snapshot.headline == "1 of 2 servers does not answer", Stop()),
        )
        result, error = await outcome(profile(server, load={"concurrency": 0, "requests": None}), act)
    assert error is None
    (differ,) = texts(result, "server")
    assert "not alike" in differ and "serves a," in differ and "serves b," in differ
    assert texts(result, "error")[0].startswith("load refused: ")
    assert [each["model"] for each in result.environment["server_instances"]] == ["a", "b"]


async def test_a_plan_begins_from_no_load_and_outlives_a_cut_meanwhile(engine: Simulator) -> None:
    ladder = PlanRequest("ladder", loads=(1, 2), duration_s=0.3)
    parts = quiet(engine, plan={"every": "500ms"})
    result, error = await outcome(parts, once(lambda snapshot: bool(snapshot.stages), FollowPlan(ladder)))
    assert error is None
    loads = [stage.target.concurrency for stage in result.stages]
    assert loads[-2:] == [1, 2] and set(loads[:-2]) == {0}


async def test_monitor_measures_again_after_releasing_the_server(engine: Simulator) -> None:
    def measured(stages: int) -> Callable[[Snapshot], bool]:
        return lambda snapshot: snapshot.phase == "holding" and len(snapshot.stages) == stages

    ladder = PlanRequest("ladder", loads=(1, 2), duration_s=0.3)
    act = in_turn((at_stage(1), FollowPlan(ladder)), (measured(3), Redo()), (measured(4), Stop()))
    result, error = await outcome(quiet(engine), act, hold_open=True)
    assert (result.state, error) == ("complete", None)
    assert [stage.target.concurrency for stage in result.stages] == [0, 1, 2, 2]
    assert result.stages[-1].requests.completed > 0
    assert texts(result, "load")[-1] == "conc 2 is measured again"


async def test_load_requested_while_the_server_is_probed(engine: Simulator) -> None:
    def loaded(snapshot: Snapshot) -> bool:
        return bool(snapshot.stages) and snapshot.stages[-1].requests.completed > 0

    parts = quiet(engine, plan={"every": "300ms"})
    act = in_turn((lambda snapshot: snapshot.phase == "checking", SetConcurrency(2)), (loaded, Stop()))
    result, error = await outcome(parts, act)
    assert (error, result.stages[-1].target.concurrency) == (None, 2)
