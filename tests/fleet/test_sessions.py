"""Sessions on a simulator: as many live as asked for, through changes of the load, failures and dead workers."""

import os
import signal
from typing import Any

import msgspec
import pytest

from loadgen.fleet.fleet import FleetTick
from loadgen.schema.deltas import SESSION_COUNTERS
from loadgen.stream.request import RequestTemplate, SessionHeaders, common_fields, request_template
from loadgen.workload.sessions.data import SessionData, Sessions
from loadgen.workload.work import Work
from tests.engines import Simulator, simulator
from tests.fleet.test_fleet import Driven, driven

pytestmark = pytest.mark.usefixtures("little_patience")

# Contexts of a few hundred tokens, and pauses of at most 20 ms: a session is over within seconds.
SHORT = Sessions(
    data=SessionData(form="generated", sessions=1000, seed=3, scale=0.001),
    max_gap_s=0.02,
    start=(0.0, 1.0),
)


WHOLE = msgspec.structs.replace(SHORT, start=None)


def begin(run: Driven, index: int, live: int, sessions: Sessions = SHORT, **parts: Any) -> None:
    run.begin(index, concurrency=live, work=Work(sessions=sessions), **parts)


def with_usage(engine: Simulator) -> RequestTemplate:
    names = SessionHeaders(session="X-Session-ID", parent="X-Parent-Session-ID", root="X-Root")
    usage = {"stream_options": {"include_usage": True}, "ignore_eos": True}
    fields = common_fields("completions", model="simulator", temperature=0.0, options=usage, extra={})
    plain = request_template(engine.url, "completions", fields, osl=1, api_key=None)
    return msgspec.structs.replace(plain, headers=names)


def live(tick: FleetTick) -> int:
    return 0 if tick.sessions is None else tick.sessions.live


def total_of(run: Driven, name: str) -> int:
    assert name in SESSION_COUNTERS
    return sum(stage.sessions[name] for stage in run.stages.values() if stage.sessions is not None)


@pytest.mark.parametrize("workers", [1, 2])
async def test_sessions_outlive_a_change_of_the_load(engine: Simulator, workers: int) -> None:
    async with driven(engine, workers) as run:
        begin(run, 0, 4)
        await run.until(lambda tick: live(tick) == 4 and tick.first_wave_waiting == 0)
        begin(run, 1, 6)
        await run.until(lambda tick: live(tick) == 6 and total_of(run, "begun") >= 6)
        assert total_of(run, "cut") == 0
        begin(run, 2, 2)
        await run.until(lambda tick: live(tick) == 2 and tick.sessions is not None and not tick.sessions.stopped)
        run.fleet.end_load(abort=False)
        await run.until(lambda tick: tick.held == 0)
        begin(run, 3, 2)
        await run.until(lambda tick: tick.first_wave_waiting == 0)
        assert total_of(run, "cut") == 4
        ended = total_of(run, "finished") + total_of(run, "failed")
        assert total_of(run, "begun") == 2 + 4 + ended
        assert total_of(run, "failed") == 0
        assert total_of(run, "primed") >= 6
    assert all(run.adds_up(index) for index in run.stages)
    # Two live at the end; a stream that is open then is lost with its worker, a session is not.
    assert total_of(run, "lost") == 0
    assert not any("session" in death for death in run.deaths)


async def test_no_load_ends_the_sessions(engine: Simulator) -> None:
    async with driven(engine, 1) as run:
        begin(run, 0, 3)
        await run.until(lambda tick: live(tick) == 3)
        begin(run, 1, 0)
        await run.until(lambda tick: tick.sessions is None and tick.held == 0)


async def test_more_requests_than_the_cap_wait(engine: Simulator) -> None:
    async with driven(engine, 1) as run:
        begin(run, 0, 8, max_concurrency=2)
        tick = await run.until(lambda tick: tick.most_held == 2)
        assert tick.sessions is not None and tick.sessions.live == 8
        await run.until(lambda _: run.count(0, "completed") + run.count(0, "warmup") > 20)
        assert run.stages[0].peak <= 2


async def test_sessions_of_a_dead_worker_are_lost(engine: Simulator) -> None:
    async with driven(engine, 2) as run:
        begin(run, 0, 4)
        await run.until(lambda tick: live(tick) == 4)
        os.kill(run.fleet.pids[0], signal.SIGKILL)
        await run.until(lambda _: bool(run.deaths))
        assert total_of(run, "lost") == 2
        assert "2 sessions" in run.deaths[0]
        begin(run, 1, 4)
        await run.until(lambda tick: live(tick) == 4)


async def test_a_failed_request_ends_its_session(engine: Simulator) -> None:
    async with driven(engine, 1) as run:
        engine.faults("http_500:share=0.2")
        begin(run, 0, 4)
        await run.until(lambda _: total_of(run, "failed") > 2)
        engine.faults()
        await run.until(lambda tick: live(tick) == 4)


async def test_hits_are_those_that_the_server_counted() -> None:
    """The engine says how much of each prompt it had cached, and forgets nothing of these sessions."""
    with simulator("--enable-prompt-tokens-details") as telling:
        async with driven(telling, 2) as run:
            run.templates = [with_usage(telling)]
            begin(run, 0, 6, WHOLE, requests=150)
            await run.until(lambda tick: tick.finished == 0)
            truth = telling.client.get("/truth/sessions").json()
            total = truth["total"]
            assert run.count(0, "completed") == total["requests"] == 150
            assert run.count(0, "cached_input_tokens") == total["prompt_tokens"]
            assert run.count(0, "cached_tokens") == total["cached_tokens"] > 0
            # A hit of the engine is of whole blocks of 16 tokens.
            assert run.count(0, "infinite_hit_tokens") - 16 * 150 <= total["cached_tokens"]
            assert total["cached_tokens"] <= run.count(0, "infinite_hit_tokens")
            roots = {name for name in truth["sessions"] if name.endswith("-0")}
            # The last ones to begin may come too late to send anything.
            assert len(roots) <= total_of(run, "begun") <= len(roots) + 6


async def test_a_reset_of_an_idle_connection_is_sent_again_once(engine: Simulator) -> None:
    async with driven(engine, 1) as run:
        engine.faults("reset_idle:seconds=0.01,share=0.5")
        begin(run, 0, 4, WHOLE, requests=60)
        await run.until(lambda tick: tick.finished == 0)
        engine.faults()
        assert run.count(0, "retried") > 0
        assert run.count(0, "completed") + run.count(0, "failed") == 60


async def test_priming_is_in_no_throughput_and_no_hits() -> None:
    with simulator("--enable-prompt-tokens-details") as telling:
        async with driven(telling, 1) as run:
            run.templates = [with_usage(telling)]
            begin(run, 0, 8, requests=40)
            await run.until(lambda tick: tick.finished == 0)
            stage = run.stages[0]
            assert total_of(run, "primed") == stage.latency["priming_ttft"].count > 0
            assert stage.counters["window_requests"] == run.count(0, "completed") == 40
            assert stage.counters["window_output_tokens"] == run.count(0, "output_tokens")
            # The rate of cached tokens is this rate times the share of these hits.
            assert stage.counters["window_input_tokens"] == run.count(0, "cached_input_tokens")
            assert run.count(0, "warmup") == 0
