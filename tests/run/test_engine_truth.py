"""The engine's word on a whole run next to the client's: every token on both sides, a cache that nobody wanted."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest

from tests.engines import Simulator, attach, profile, simulator
from tests.run.driving import outcome


async def test_both_count_the_same_and_a_used_cache_is_flagged() -> None:
    load = {"requests": 16, "isl": 64, "osl": 8}
    with simulator() as engine:
        results = [(await outcome(attach(engine, load=load)))[0] for _ in range(2)]
    for result in results:
        truth, measured = result.stages[0].truth, result.stages[0].engine
        assert truth is not None and measured is not None and result.stages[0].compute is None
        assert (truth.requests_client, truth.requests_server) == (16, 16)
        assert (truth.input_tokens_client, truth.input_tokens_server) == (16 * 64, 16 * 64)
        assert (truth.output_tokens_client, truth.output_tokens_server) == (16 * 8, 16 * 8)
        assert "not compared" not in truth.why
        assert truth.ttft_outside_ms is not None and truth.frontend_ms is not None
        assert measured.latency_ms["e2e"].count == 16
    # The second run sends what the first has sent: same seed, same server.
    flagged = [any(verdict.id == "prefix-cache" for verdict in result.stages[0].verdicts) for result in results]
    assert flagged == [False, True]


async def test_the_share_of_the_peak_is_of_what_the_engine_computed() -> None:
    args = {"preset": "fast", "enable-mfu-metrics": True, "gflop-per-token": 10.0, "enable-prefix-caching": False}
    published = {"source": "a publication", "points": [{"figures": {"mfu_percent": 85.0}}]}
    load = {"requests": 16, "isl": 64, "osl": 9, "first_wave": "counted"}
    server = {"engine": "simulator", "args": args | {"dtype": "bfloat16"}}
    result, _ = await outcome(profile(server, load=load, telemetry="sim", reference=published))
    assert result.reference is not None
    (stage,), (compared,) = result.stages, result.reference.comparisons
    compute = stage.compute
    assert compute is not None and compute.precision == "bf16"
    # The readings are around the stage, so that their span is not shorter than the stage.
    assert 0 < compute.tflops_per_gpu * stage.duration_s <= 16 * (64 + 8) * 10e9 / 1e12 * 1.01
    assert compared.measured == compute.mfu_percent == pytest.approx(100 * compute.tflops_per_gpu / 1307.4)


TIMED = {"requests": None, "duration": "0.5s", "osl": 32, "concurrency": [1, 4]}


async def test_stages_bounded_by_time_are_compared_together(engine: Simulator) -> None:
    result, _ = await outcome(attach(engine, load=TIMED, canary={"enabled": True}))
    first, last = (stage.truth for stage in result.stages)
    assert first is not None and last == first
    assert (first.agrees, first.why) == (True, "")
    assert re.fullmatch("stages 1 to 2 together, including [0-9]+ canar(y|ies)", first.over)
    assert first.requests_client == first.requests_server
    assert first.output_tokens_client == first.output_tokens_server
    assert any(stage.requests.carried_over for stage in result.stages)


async def test_ttft_spent_in_a_proxy_is_seen_in_stages_bounded_by_time(engine: Simulator) -> None:
    async with delaying_proxy(engine.url, 0.1) as url:
        server = {"engine": "attach", "url": url}
        result, _ = await outcome(profile(server, load=TIMED, canary={"enabled": True}))
    for stage in result.stages:
        truth = stage.truth
        assert truth is not None and truth.agrees is False
        assert truth.ttft_outside_ms is not None and truth.ttft_outside_ms > 90
        assert truth.why.startswith(f"{truth.over}: ")
        assert "ms of the TTFT pass between server and client" in truth.why
        assert "truth" in [verdict.id for verdict in stage.verdicts]


@asynccontextmanager
async def delaying_proxy(url: str, delay_s: float) -> AsyncIterator[str]:
    """Passes everything on, and what the server sends only after the delay."""
    upstream = urlsplit(url)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, after_s: float) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                await asyncio.sleep(after_s)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server = await asyncio.open_connection(upstream.hostname, upstream.port)
        await asyncio.gather(pass_on(reader, to_server[1], 0.0), pass_on(to_server[0], writer, delay_s))

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
