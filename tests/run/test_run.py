"""Whole runs on the simulator: what comes out is what was served, whatever the operator and the server do."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from loadgen.errors import LoadError, ProfileError, ServerError, VrampError
from loadgen.profile.schema import Profile
from loadgen.run.operations import Abort, Note, Pause, Resume, SetConcurrency, SetRate, SetShape, Stop
from loadgen.run.run import Run
from loadgen.schema.result import Result
from loadgen.store.recover import folded
from loadgen.store.runs import read_result
from tests.engines import MANAGED, Simulator, attach, profile, simulator
from tests.run.driving import finish, flowing, in_turn, left_behind, once, outcome, processes_of_ours, run_of, texts

# The main job.


async def test_a_managed_run_leaves_a_true_result_and_no_process(tmp_path: Path) -> None:
    run = run_of(profile(MANAGED), json_path=tmp_path / "out" / "r.json")
    phases: list[str] = []
    result = await finish(run, lambda _, snapshot: phases.append(snapshot.phase))
    assert (result.state, run.error) == ("complete", None)
    assert phases[0] == "checking"
    assert phases[-1] == "done"
    stage = result.stages[0]
    assert (stage.requests.sent, stage.requests.completed, stage.requests.failed) == (20, 20, 0)
    assert (stage.tokens.input, stage.tokens.output, stage.tokens.source) == (320, 160, "usage")
    assert stage.concurrency.peak == 4
    # The four that began at once are distinguished.
    assert stage.first_wave is not None and stage.first_wave.ttft_ms is not None
    assert (stage.first_wave.streams, stage.first_wave.ttft_ms.count) == (4, 4)
    assert stage.latency_ms["ttft"].count == stage.latency_ms["e2e"].count == 16
    assert stage.latency_ms["itl"].count == 16 * 7
    assert result.client.timestamps == "kernel"
    assert stage.engine is not None
    assert stage.engine.generation_tokens == 160
    assert stage.engine.prefix_hit_rate == 0
    assert stage.instances == [] and "server_instances" not in result.environment
    assert stage.answers is None  # nobody wanted them to be looked at
    assert read_result(tmp_path / "out" / "r.json") == read_result(run.folder / "result.json")
    assert left_behind() == []


async def test_workers_run_before_others_where_they_may_and_the_result_says_so(engine: Simulator) -> None:
    classes: set[int] = set()

    def look(_: Run) -> None:
        workers = processes_of_ours("loadgen.worker")
        classes.update(os.sched_getscheduler(worker.pid) & ~os.SCHED_RESET_ON_FORK for worker in workers)

    for wanted in (True, False):
        classes.clear()
        run = run_of(attach(engine, load={"requests": None, "duration": "60s", "realtime": wanted}))
        result = await finish(run, in_turn((flowing, look), (flowing, Stop())))
        shares = {frozenset({os.SCHED_RR}): 1.0, frozenset({os.SCHED_OTHER}): 0.0}
        assert result.client.realtime == pytest.approx(shares[frozenset(classes)], abs=0.1)
        assert wanted or result.client.realtime == 0


async def test_requests_agree_with_the_truth_and_the_journal_with_the_result(engine: Simulator) -> None:
    """Latencies do, too, or the stage says that it was limited: `test_accuracy`."""
    load = {"concurrency": 16, "requests": 64, "osl": 32, "first_wave": "counted"}
    run = run_of(attach(engine, load=load, slo={"ttft_p99": "1h", "tpot_p50": "0.0001ms"}))
    result = await finish(run)
    assert folded(run.folder / "journal.jsonl") == result
    checks = result.stages[0].slo
    assert (checks["ttft_p99"].met, checks["tpot_p50"].met) == (True, False)
    truth = engine.truth()
    # One more than ours: the first request, sent before the load.
    assert truth["requests"]["completed"] == 65
    assert truth["peak_concurrency"] == 16
    assert result.stages[0].latency_ms["ttft"].count == 64


async def test_a_ladder_is_sent_as_planned_by_several_workers(engine: Simulator) -> None:
    load = {"workers": 3, "concurrency": [1, 2, 8], "requests": 23, "warmup": 4}
    result, _ = await outcome(attach(engine, load=load))
    counts = [(stage.requests.warmup, stage.requests.sent, stage.requests.completed) for stage in result.stages]
    assert counts == [(4, 23, 23)] * 3
    assert engine.truth()["requests"]["completed"] == 1 + 3 * 27
    assert result.client.workers == 3
    assert [stage.target.concurrency for stage in result.stages] == [1, 2, 8]
    assert [stage.concurrency.peak for stage in result.stages] == [1, 2, 8]
    assert all(stage.stop_reason == "all requests were answered" for stage in result.stages)


async def test_time_bounds_a_stage_and_warm_up_is_left_out(engine: Simulator) -> None:
    load = {"requests": None, "duration": "1s", "warmup": "500ms"}
    result, _ = await outcome(attach(engine, load=load))
    stage = result.stages[0]
    assert stage.stop_reason == "its time was up"
    requests = stage.requests
    assert requests.carried_over == 4
    assert requests.completed + requests.carried_over == requests.sent > 0
    assert engine.truth()["requests"]["completed"] == 1 + requests.warmup + requests.sent
    # The window opens half a second after the stage, however fast or slow the machine is.
    assert stage.duration_s - stage.measured_s > 0.45


async def test_queue_of_an_open_loop_behind_a_cap_is_not_a_client_limit(engine: Simulator) -> None:
    load = {"rate": 400.0, "max_concurrency": 4, "requests": 60, "osl": 32, "arrival": "poisson"}
    result, error = await outcome(attach(engine, load=load))
    stage, client = result.stages[0], result.client
    assert error is None
    assert (stage.target.rate, stage.target.concurrency, stage.target.arrival) == (400.0, None, "poisson")
    assert (stage.requests.completed, stage.concurrency.peak) == (60, 4)
    assert stage.latency_ms["ttft_from_intended"].count == 60
    (capped,) = [verdict for verdict in stage.verdicts if verdict.id == "capped"]
    assert capped.text.startswith("target rate 400/s, 4 streams at most: ") and not capped.bad
    # Only what a free slot could have taken is late; the wait for one is in the TTFT from the intended time.
    lag_ms, ttft = client.send_lag_ms.mean, stage.latency_ms
    waited_ms = (ttft["ttft_from_intended"].mean or 0) - (ttft["ttft"].mean or 0)
    assert lag_ms is not None and waited_ms > 10 * lag_ms
    assert "schedule" not in (client.why or "")


async def test_chat_is_calibrated_to_the_isl_and_tool_calls_are_output(engine: Simulator) -> None:
    engine.faults("tool_calls")
    result, _ = await outcome(attach(engine, load={"endpoint": "chat", "isl": 64}))
    assert result.stages[0].requests.completed == 20
    assert result.stages[0].tokens.input == 20 * 64
    assert result.stages[0].latency_ms["itl"].count == 16 * 7


# The operator.


async def test_every_change_of_load_is_a_stage_and_an_event(engine: Simulator) -> None:
    load = {"requests": None, "duration": "60s", "concurrency": 2}
    act = in_turn(
        (flowing, SetConcurrency(6)),
        (flowing, Note("look here")),
        (flowing, Pause()),
        (lambda snapshot: snapshot.phase == "paused" and snapshot.load.held == 0, SetConcurrency(3)),
        (lambda snapshot: snapshot.phase == "paused", Resume()),
        (flowing, SetRate(20)),
        (flowing, SetShape(32, 4)),
        (flowing, Stop()),
    )
    result, error = await outcome(attach(engine, load=load), act)
    assert (result.state, error) == ("stopped", None)
    targets = [(stage.target.concurrency, stage.target.rate, stage.isl, stage.osl) for stage in result.stages]
    assert targets == [(2, None, 16, 8), (6, None, 16, 8), (3, None, 16, 8), (None, 20.0, 16, 8), (None, 20.0, 32, 4)]
    kinds = [event.kind for event in result.events if event.kind in ("load", "note", "pause", "resume")]
    assert kinds == ["load", "note", "pause", "load", "resume", "load", "load"]
    assert all(stage.requests.completed for stage in result.stages)


async def test_what_the_operator_requests_during_the_start_is_not_lost() -> None:
    act = in_turn(
        (lambda snapshot: snapshot.phase in ("checking", "starting"), SetConcurrency(3)),
        (flowing, Stop()),
    )
    result, _ = await outcome(profile(MANAGED), act)
    assert [stage.target.concurrency for stage in result.stages] == [3]
    assert [event.text for event in result.events if event.kind == "load"] == ["conc 4 -> conc 3"]


async def test_streams_that_are_cut_off_are_unfinished(engine: Simulator) -> None:
    load = {"requests": None, "duration": "60s", "osl": 50}
    run = run_of(attach(engine, load=load))
    act = in_turn(
        (flowing, lambda _: engine.faults("stall:after=2")),
        (lambda snapshot: snapshot.point.output_tokens_per_s == 0, Abort()),
    )
    result = await finish(run, act)
    requests = result.stages[0].requests
    assert requests.unfinished == 4
    assert requests.sent == requests.completed + requests.failed + requests.unfinished
    assert result.state == "stopped"


# Failures of streams.

# The kinds that are read from an answer are tested in tests/stream/test_channel.py.
FAULTS: list[tuple[str, dict[str, float], str]] = [
    ("reset:every=4", {}, "reset"),
    ("stall:every=4", {"stall_timeout_s": 1.0}, "stall"),
    ("stall:every=4", {"timeout_s": 0.6}, "timeout"),
]


@pytest.mark.parametrize(("fault", "limits", "kind"), FAULTS)
async def test_failures_are_counted_by_kind_and_the_rest_goes_on(
    engine: Simulator, fault: str, limits: dict[str, float], kind: str
) -> None:
    engine.faults(fault)
    result, error = await outcome(attach(engine, load=limits))
    requests = result.stages[0].requests
    # The first request, before the load, is number 1: of the 20 that follow, 4, 8, 12, 16 and 20 are struck.
    assert requests.errors == {kind: 5}
    assert (requests.completed, requests.failed, requests.sent) == (15, 5, 20)
    assert requests.messages[kind]
    assert (result.state, error) == ("complete", None)


@pytest.mark.parametrize("faults", [["idle_close"], ["role_first", "close_on_reuse:every=3"]])
async def test_oddities_that_are_no_failures(engine: Simulator, faults: list[str]) -> None:
    engine.faults(*faults)
    result, _ = await outcome(attach(engine))
    requests = result.stages[0].requests
    assert (requests.completed, requests.errors) == (20, {})
    assert result.stages[0].tokens.output == 160
    assert requests.retried > 0


async def test_nothing_but_failures_ends_the_run_with_a_reason(engine: Simulator) -> None:
    load = {"requests": None, "duration": "60s", "concurrency": 5}
    act = once(flowing, lambda _: engine.faults("http_503"))
    result, error = await outcome(attach(engine, load=load), act)
    assert isinstance(error, LoadError)
    assert result.state == "failed"
    assert "nothing but failures" in result.reason
    assert "HTTP 503" in result.reason
    assert "nothing but failures" in result.stages[0].stop_reason


# Servers that are not there, not right, or not for long.


async def refused(parts: Profile, kind: type[VrampError], *words: str) -> Result:
    result, error = await outcome(parts)
    assert isinstance(error, kind)
    for word in words:
        assert word in str(error)
    assert result.stages == []
    assert result.state in ("failed", "server_died")
    return result


async def test_nobody_listens() -> None:
    await refused(profile({"engine": "attach", "url": "http://127.0.0.1:9"}), ServerError, "nothing listens")


async def test_a_model_that_is_not_served(engine: Simulator) -> None:
    parts = profile({"engine": "attach", "url": engine.url, "model": "gpt-9"})
    await refused(parts, ServerError, "`gpt-9` does not exist", "/v1/models lists simulator; name the model")


async def test_longer_than_the_model_takes(engine: Simulator) -> None:
    await refused(attach(engine, load={"isl": 9000}), ProfileError, "isl 9000", "max_model_len is 8192")


async def test_a_server_that_wants_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulator("--api-key", "sesame") as locked:
        await refused(attach(locked), ServerError, "401", "api_key_env")
        monkeypatch.setenv("VRAMP_TEST_KEY", "sesame")
        server = {"engine": "attach", "url": locked.url, "api_key_env": "VRAMP_TEST_KEY"}
        run = run_of(profile(server))
        result = await finish(run)
    assert result.stages[0].requests.completed == 20
    left = [path.read_text() for path in run.folder.iterdir()]
    assert not any("sesame" in text for text in left)


async def test_a_server_that_dies_while_it_starts() -> None:
    server = {"engine": "simulator", "args": {"preset": "fast", "fail-startup": "RuntimeError: no such kernel"}}
    result = await refused(profile(server), ServerError, "exit code 1", "no such kernel")
    assert result.state == "server_died"


async def test_a_server_that_never_becomes_ready() -> None:
    server = {"engine": "simulator", "args": {"preset": "fast", "hang-startup": True}, "startup_timeout_s": 1.5}
    await refused(profile(server), ServerError, "did not become ready within 1.5 s")
    assert left_behind() == []


async def test_a_server_that_dies_under_load_leaves_its_evidence() -> None:
    def kill(run: Run) -> None:
        processes_of_ours("loadgen.simulator")[0].kill()

    run = run_of(profile(MANAGED, load={"requests": None, "duration": "60s"}))
    result = await finish(run, once(flowing, kill))
    assert isinstance(run.error, LoadError)
    assert result.state == "server_died"
    assert "SIGKILL" in result.reason
    assert result.stages[0].requests.completed > 0
    title = (run.folder / "evidence" / "evidence.md").read_text().partition("\n")[0]
    assert title.startswith("# the server was killed by SIGKILL ") and " during the load: " in title
    assert "Application startup complete" in (run.folder / "evidence" / "server.log").read_text()
    assert left_behind() == []


async def test_a_worker_that_is_interrupted_is_reported_and_the_rest_goes_on(engine: Simulator) -> None:
    load = {"requests": None, "duration": "60s", "workers": 2, "osl": 50}
    act = in_turn(
        (flowing, lambda _: processes_of_ours("loadgen.worker")[0].send_signal(signal.SIGINT)),
        (lambda snapshot: any(event.kind == "error" for event in snapshot.events), SetConcurrency(2)),
        (lambda snapshot: len(snapshot.stages) == 2 and flowing(snapshot), Stop()),
    )
    result, error = await outcome(attach(engine, load=load), act)
    assert (result.state, error) == ("stopped", None)
    (reported,) = texts(result, "error")
    assert "was killed by SIGINT; " in reported
    assert all(stage.requests.completed > 0 for stage in result.stages)
    assert result.client.workers == 1
    assert left_behind() == []


async def test_leaving_the_snapshots_early_still_ends_everything() -> None:
    run = run_of(profile(MANAGED, load={"requests": None, "duration": "60s"}))
    snapshots = run.snapshots()
    async for snapshot in snapshots:
        if flowing(snapshot):
            break
    await snapshots.aclose()  # type: ignore[attr-defined]  # it is an async generator
    assert run.result is not None
    assert left_behind() == []


async def test_being_cancelled_still_ends_everything() -> None:
    run = run_of(profile(MANAGED, load={"requests": None, "duration": "60s"}))
    started = asyncio.Event()
    task = asyncio.create_task(finish(run, once(flowing, lambda _: started.set())))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left_behind() == []
