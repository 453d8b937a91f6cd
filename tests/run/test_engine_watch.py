"""The engine's numbers next to ours: rates, percentiles, engines apart, and servers that cannot be read."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadgen.run.engine_watch import EngineWatch
from loadgen.schema.engine import EngineStage
from loadgen.schema.journal import EngineMeasured, Happened, Line
from loadgen.server.engines.names import EngineSample
from loadgen.server.engines.sample import parse_engine_metrics, sum_of
from loadgen.server.engines.window import delta
from loadgen.server.vllm.client import ServerClient
from tests.engines import Simulator, simulator

SummedEngine = tuple[int, int, list[int]]
ENGINES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 10**6), st.lists(st.integers(0, 9), min_size=3, max_size=3)),
    min_size=1,
    max_size=4,
)


async def test_of_several_the_whole_is_known_when_all_are() -> None:
    lines: list[Line] = []
    with simulator() as first, simulator() as second:
        async with ServerClient(first.url) as one, ServerClient(second.url) as other:
            watch = EngineWatch([one, other], lines.append, lambda: 1.0)
            await watch.start()
            idle = watch.view
            assert idle is not None and idle.running == 0
            watch.boundary(None, 0)
            second.process.kill()
            await asyncio.to_thread(second.process.wait)
            watch.boundary(0, None)
            await watch.settle()
            await watch.close()
    assert watch.view is None
    assert [view is None for view in watch.views] == [False, True]
    [event, measured] = lines
    assert isinstance(event, Happened) and event.text.startswith("no engine metrics")
    assert isinstance(measured, EngineMeasured) and measured.engine == EngineStage()
    assert [stage is None for stage in measured.instances] == [False, True]


@dataclass
class Clock:
    """Goes on when it is told to."""

    now_s: float = 0.0
    lines: list[Line] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s


async def answer(engine: Simulator, *, tokens: int) -> None:
    body = {"model": "simulated", "prompt": list(range(300, 364)), "max_tokens": tokens, "ignore_eos": True}
    async with httpx.AsyncClient(trust_env=False, base_url=engine.url) as client:
        body["model"] = (await client.get("/v1/models")).json()["data"][0]["id"]
        (await client.post("/v1/completions", json=body)).raise_for_status()


class Stalling(ServerClient):
    """Reads a real server, and lets it take its time by a clock that is not real."""

    clock: Clock
    stall_s: float = 0.0

    async def metrics_text(self) -> str:
        self.clock.now_s += self.stall_s
        return await super().metrics_text()


async def test_a_reading_that_took_long_makes_no_rate_with_one_soon_after_it(
    engine: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its counts may be of any moment of that time: over the rest of it, they would be a multiple of the rate.

    The latencies of what was counted are known all the same.
    """
    monkeypatch.setattr("loadgen.run.engine_watch._PERIOD_S", 3600.0)  # by the real clock it would read in between
    clock = Clock()
    async with Stalling(engine.url) as client:
        client.clock = clock
        watch = EngineWatch([client], clock.lines.append, clock)
        await watch.start()
        rates, counted = [], []
        for stall_s, moment_s in ((0.0, 1.0), (4.0, 2.0), (0.0, 6.5), (0.0, 7.5)):
            await answer(engine, tokens=10)
            clock.now_s, client.stall_s = moment_s, stall_s
            await watch.read_between()
            assert watch.view is not None
            rates.append(watch.view.generation_tokens_per_s)
            counted.append(watch.view.latency_ms["e2e"].count)
        await watch.close()
    assert rates == [10.0, None, None, 10.0]
    assert counted == [1, 1, 1, 1]


async def test_rates_and_percentiles_of_a_stage(engine: Simulator) -> None:
    clock = Clock()
    async with ServerClient(engine.url) as client:
        watch = EngineWatch([client], clock.lines.append, clock)
        await watch.start()
        first = watch.view
        watch.boundary(None, 0)
        await asyncio.gather(*(answer(engine, tokens=10) for _ in range(4)))
        clock.now_s = 2.0
        watch.boundary(0, 1)
        await watch.settle()
        loaded = watch.view
        clock.now_s = 20.0
        watch.boundary(1, None)
        await watch.settle()
        await watch.close()
    assert first is not None and (first.generation_tokens_per_s, first.prefix_hit_rate) == (None, None)
    assert loaded is not None
    assert (loaded.prompt_tokens_per_s, loaded.generation_tokens_per_s) == (4 * 64 / 2.0, 4 * 10 / 2.0)
    assert loaded.prefix_hit_rate is not None and 0 <= loaded.prefix_hit_rate <= 1
    assert watch.view is not None and watch.view.generation_tokens_per_s is None, "what was read long ago is no rate"
    measured, idle = clock.lines
    assert isinstance(measured, EngineMeasured) and isinstance(idle, EngineMeasured)
    stage = measured.engine
    assert (stage.idle_around, stage.doubts) == (True, {})
    assert {name: latency.count for name, latency in stage.latency_ms.items()} == {
        "ttft": 4, "itl": 36, "tpot": 4, "e2e": 4, "queue": 4, "prefill": 4, "decode": 4,
    }  # fmt: skip
    assert stage.latency_ms["ttft"].mean == stage.ttft_mean_ms
    assert (stage.generation_tokens, stage.admission_rejections, stage.engines) == (40, None, {})
    assert (idle.engine.generation_tokens, idle.engine.latency_ms) == (0, {})


Engine = tuple[int, int]


def page(*engines: Engine, rejected: int) -> str:
    """Streams that wait and tokens made, by engine."""
    lines = [f'vllm:admission_rejections_total{{reason="queue"}} {rejected}']
    for number, (waiting, made) in enumerate(engines):
        lines.append(f'vllm:num_requests_waiting{{engine="{number}"}} {waiting}')
        lines.append(f'vllm:num_requests_waiting_by_reason{{engine="{number}",reason="capacity"}} {waiting}')
        lines.append(f'vllm:num_requests_waiting_by_reason{{engine="{number}",reason="deferred"}} 0')
        lines.append(f'vllm:generation_tokens_total{{engine="{number}"}} {made}')
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def metrics_server(pages: Sequence[str]) -> AsyncIterator[str]:
    """Says one page after the other: no simulator has several engines."""
    coming = iter(pages)

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = next(coming).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_engines_of_one_server_are_shown_apart() -> None:
    pages = [page((0, 100), (0, 100), rejected=1), page((3, 180), (0, 120), rejected=3)]
    clock = Clock()
    async with metrics_server(pages) as url, ServerClient(url) as client:
        watch = EngineWatch([client], clock.lines.append, clock)
        await watch.start()
        watch.boundary(None, 0)
        clock.now_s = 4.0
        watch.boundary(0, None)
        await watch.settle()
        await watch.close()
    assert watch.view is not None
    assert (watch.view.waiting, watch.view.waiting_by_reason) == (3, {"capacity": 3})
    assert watch.view.generation_tokens_per_s == 25
    apart = watch.view.engines
    assert {name: (view.waiting, view.generation_tokens_per_s) for name, view in apart.items()} == {
        "0": (3, 20),
        "1": (0, 5),
    }
    [measured] = clock.lines
    assert isinstance(measured, EngineMeasured)
    assert (measured.engine.generation_tokens, measured.engine.admission_rejections) == (100, 2)
    assert [engine.generation_tokens for engine in measured.engine.engines.values()] == [80, 20]


async def test_operations_are_a_rate_once_the_engine_counts_them() -> None:
    clock, counted = Clock(), "vllm:estimated_flops_per_gpu_total {}\nvllm:generation_tokens_total {}\n"
    pages = [counted.format(*now) for now in ((0, 10), (0, 20), (8e12, 30))]
    async with metrics_server(pages) as url, ServerClient(url) as client:
        watch = EngineWatch([client], clock.lines.append, clock)
        await watch.start()
        watch.boundary(None, 0)
        for stage in (0, 1):
            clock.now_s += 10.0
            watch.boundary(stage, stage + 1)
            await watch.settle()
        last = watch.view
        await watch.close()
    engines = [line.engine for line in clock.lines if isinstance(line, EngineMeasured)]
    assert [engine.tflops_per_gpu for engine in engines] == [None, 0.8]
    assert last is not None and last.tflops_per_gpu is None, "what was read ten seconds ago is no rate"


async def test_two_readings_at_almost_one_moment_make_no_rate() -> None:
    clock = Clock()
    pages = [page((0, made), rejected=0) for made in (0, 5_000, 5_400)]
    async with metrics_server(pages) as url, ServerClient(url) as client:
        watch = EngineWatch([client], clock.lines.append, clock)
        await watch.start()
        watch.boundary(None, 0)
        clock.now_s = 0.001
        watch.boundary(0, 1)
        await watch.settle()
        at_once = watch.view
        clock.now_s = 2.0
        watch.boundary(1, None)
        await watch.settle()
        later = watch.view
        await watch.close()
    assert at_once is not None and at_once.generation_tokens_per_s is None
    assert later is not None and later.generation_tokens_per_s == 5_400 / 2.0


async def test_a_stage_after_a_pause_begins_with_a_reading_of_its_own() -> None:
    clock = Clock()
    pages = [page((0, made), rejected=0) for made in (0, 5_000, 5_400, 6_000)]
    async with metrics_server(pages) as url, ServerClient(url) as client:
        watch = EngineWatch([client], clock.lines.append, clock)
        await watch.start()
        for ended, begun in ((None, 0), (0, None), (None, 1), (1, None)):
            watch.boundary(ended, begun)
            await watch.settle()
            clock.now_s += 0.5
        await watch.close()
    made = [line.engine.generation_tokens for line in clock.lines if isinstance(line, EngineMeasured)]
    assert made == [5_000, 600]


async def readings(pages: Sequence[str], *, apart_s: float) -> tuple[EngineWatch, list[str], EngineStage]:
    """The watch of a stage over these pages, the events, and what was measured."""
    clock = Clock()
    async with metrics_server(pages) as url, ServerClient(url) as client:
        watch = EngineWatch([client], clock.lines.append, clock)
        await watch.start()
        watch.boundary(None, 0)
        for _ in pages[2:]:
            clock.now_s += apart_s
            await watch.read_between()
        clock.now_s += apart_s
        watch.boundary(0, None)
        await watch.settle()
        await watch.close()
    events = [line.text for line in clock.lines if isinstance(line, Happened)]
    [stage] = [line.engine for line in clock.lines if isinstance(line, EngineMeasured)]
    return watch, events, stage


async def test_a_restarted_server_goes_on_and_is_marked() -> None:
    pages = [page((0, made), rejected=0) for made in (100, 150, 5, 12)]
    watch, events, stage = await readings(pages, apart_s=4.0)
    assert watch.view is not None and watch.view.generation_tokens_per_s == 1.8  # 7 in 4 s
    assert len(events) == 1 and events[0].endswith(": the engine was restarted: its counters started from zero again")
    assert (stage.restarts, stage.generation_tokens, stage.doubts) == (1, 50 + 5 + 7, {})


async def test_a_process_that_began_later_is_a_restart_whatever_was_counted() -> None:
    pages = [page((0, made), rejected=0) + f"process_start_time_seconds {t}\n" for t, made in ((7, 0), (8, 5))]
    _, events, stage = await readings(pages, apart_s=4.0)
    assert len(events) == 1
    assert (stage.restarts, stage.generation_tokens) == (1, 5)


async def test_several_servers_behind_one_address_are_no_sum() -> None:
    pages = [page((waiting, made), rejected=0) for waiting, made in ((1, 100), (2, 5), (1, 101), (2, 6), (1, 102))]
    watch, events, stage = await readings(pages, apart_s=1.0)
    assert watch.view is not None
    assert (watch.view.waiting, watch.view.generation_tokens_per_s) == (1, None)
    assert len(events) == 2 and "several servers answer at this address" in events[1]
    assert "several servers answer at this address" in stage.doubts["all"]
    assert stage.generation_tokens is None


async def test_a_page_of_something_else_is_reported_once() -> None:
    pages = ["node_cpu_seconds_total 1\n", "<html>no metrics</html>", "\x00\xff\x1b[2J", page((0, 1), rejected=0)]
    watch, events, _ = await readings(pages, apart_s=1.0)
    assert len(events) == 1 and events[0].endswith("/metrics: no figure of vLLM, SGLang, TGI is on this page")
    assert watch.view is not None and watch.view.kind == "vllm"


async def test_metrics_that_cannot_be_read_and_can_be_again() -> None:
    good = page((0, 1), rejected=0)
    bad = "vllm:prompt_tokens_total{model= 1\n"
    _, events, stage = await readings([good, bad, bad, page((0, 4), rejected=0)], apart_s=1.0)
    assert [text.startswith("no engine metrics: ") for text in events] == [True, False]
    assert events[1].endswith(": engine metrics are back")
    assert (stage.generation_tokens, stage.restarts) == (3, 0)


def summed_page(engines: list[SummedEngine]) -> str:
    """What /metrics says of some engines: streams that run, tokens made, and waits of 1, 2 and 3 seconds."""
    lines = ["# TYPE vllm:num_requests_running gauge"]
    lines += [f'vllm:num_requests_running{{engine="{i}"}} {running}' for i, (running, _, _) in enumerate(engines)]
    waiting = 'vllm:num_requests_waiting_by_reason{engine="%d",reason="%s"} %d'
    lines += [waiting % (i, f"reason {made % 3}", running) for i, (running, made, _) in enumerate(engines)]
    lines += ["# TYPE vllm:kv_cache_usage_perc gauge"]
    lines += [f'vllm:kv_cache_usage_perc{{engine="{i}"}} {running / 64}' for i, (running, _, _) in enumerate(engines)]
    lines += ["# TYPE vllm:generation_tokens_total counter"]
    lines += [f'vllm:generation_tokens_total{{engine="{i}"}} {made}' for i, (_, made, _) in enumerate(engines)]
    lines += ["# TYPE vllm:time_to_first_token_seconds histogram"]
    name = "vllm:time_to_first_token_seconds"
    for i, (_, _, waits) in enumerate(engines):
        below = [sum(waits[: bound + 1]) for bound in range(3)]
        lines += [
            f'{name}_bucket{{engine="{i}",le="{le}"}} {count}' for le, count in zip((1, 2, 3), below, strict=True)
        ]
        lines += [f'{name}_bucket{{engine="{i}",le="+Inf"}} {below[-1]}', f'{name}_count{{engine="{i}"}} {below[-1]}']
        lines += [f'{name}_sum{{engine="{i}"}} {sum(second * n for second, n in enumerate(waits, start=1))}']
    return "\n".join(lines) + "\n"


@given(ENGINES)
def test_as_if_they_were_engines_of_one_server(engines: list[SummedEngine]) -> None:
    apart = sum_of([parse_engine_metrics(summed_page([engine])) for engine in engines])
    assert apart is not None
    # Which engine is which is known within a server only.
    assert replace(apart, engines={}) == replace(parse_engine_metrics(summed_page(engines)), engines={})


def test_means_are_over_all_requests() -> None:
    before, after = [(0, 0, [0, 0, 0])] * 2, [(0, 8, [9, 0, 0]), (0, 8, [0, 0, 1])]
    change = delta(*(sum_of([parse_engine_metrics(summed_page([each])) for each in when]) for when in (before, after)))  # type: ignore[arg-type]  # all are known
    assert change is not None and change.ttft is not None
    assert (change.ttft.count, change.ttft.mean_s) == (10, 1.2)


def test_the_sum_with_what_is_unknown_is_unknown() -> None:
    assert sum_of([]) is None
    assert sum_of([EngineSample(running=1.0), None]) is None
    assert sum_of([EngineSample(running=1.0, waiting=2.0), EngineSample(running=3.0)]) == EngineSample(running=4.0)
