"""Every kind of load on a real vLLM that is there already, against its own numbers.

Ladder, rate, endpoints, clients that hang up, a warm cache, a trace. One engine serves all of it: tests that look at
its prefix cache send prompts of another seed.
"""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadgen.server.engines.sample import parse_engine_metrics
from tests.run.driving import run_of
from tests.sharing import SharingTrace
from tests.vllm.engine import attach, finish, over

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]


async def running(url: str) -> float | None:
    """Requests that the engine is working on."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return parse_engine_metrics((await client.get(f"{url}/metrics")).text).running


async def test_the_kinds_of_load(url: str) -> None:
    ladder = await finish(attach(url, concurrency=[1, 2, 4], requests=6, osl=16))
    assert [stage.requests.completed for stage in ladder.stages] == [6, 6, 6]
    reported = [stage.compute for stage in ladder.stages]
    assert all(compute is not None and compute.tflops_per_gpu > 0 for compute in reported), (
        "it was started with its flag"
    )

    (rate,) = (await finish(attach(url, rate=[4.0], requests=16, osl=16))).stages
    assert (rate.requests.completed, rate.requests.failed) == (16, 0)
    assert rate.latency_ms["ttft_from_intended"].mean is not None

    for endpoint in ("chat", "responses"):
        (stage,) = (await finish(attach(url, endpoint=endpoint, concurrency=[2], requests=6, osl=32))).stages
        assert (stage.requests.completed, stage.tokens.input) == (6, 6 * 256), endpoint
        assert stage.tokens.output == 6 * 32

    cancel = {"share": 0.5, "after": "100ms"}
    (stage,) = (await finish(attach(url, concurrency=[4], requests=16, osl=512, cancel=cancel))).stages
    assert stage.requests.cancelled > 0
    assert stage.requests.completed + stage.requests.cancelled == 16
    async with asyncio.timeout(30):
        while await running(url):  # noqa: ASYNC110 - the engine tells nobody when it is idle
            await asyncio.sleep(0.1)

    fresh, warm = (await finish(attach(url, concurrency=[2], requests=8, osl=16, passes=2))).stages
    assert fresh.engine is not None and warm.engine is not None
    assert fresh.engine.prefix_hit_rate == pytest.approx(0.0, abs=0.01)
    assert warm.engine.prefix_hit_rate is not None and warm.engine.prefix_hit_rate > 0.4


async def test_the_blocks_that_a_trace_shares(url: str, tmp_path: Path) -> None:
    """On token ids the engine hits what the trace says, to the token; a chat loses what its template ends with."""
    made, trace = SharingTrace(24), tmp_path / "trace.jsonl"
    trace.write_text(made.text)
    load: dict[str, Any] = {
        "data": str(trace),
        "isl": "data",
        "osl": "data",
        "concurrency": [1],
        "requests": 24,
        "seed": 3,
    }
    ids, chat = [
        (await finish(attach(url, endpoint=endpoint, **load))).stages[0] for endpoint in ("completions", "chat")
    ]
    assert ids.engine is not None and chat.engine is not None
    block = await block_size(url)
    assert ids.engine.prefix_hit_rate == pytest.approx(made.hit_rate(block))
    assert chat.engine.prefix_hit_rate is not None
    assert (
        made.hit_rate(block) - 24 * block / (chat.tokens.input or 0)
        < chat.engine.prefix_hit_rate
        < made.hit_rate(block)
    )
    assert ids.tokens.input == chat.tokens.input


async def test_against_the_servers_own_numbers(url: str) -> None:
    result = await finish(attach(url, concurrency=[8], requests=64, seed=2))
    stage = result.stages[0]
    engine, latency = stage.engine, stage.latency_ms
    assert engine is not None
    assert engine.ttft_mean_ms is not None and engine.itl_mean_ms is not None and engine.e2e_mean_ms is not None
    assert latency["ttft"].mean is not None and latency["tpot"].mean is not None
    # Exact: every token and every prompt, on both sides; unique prompts share nothing in the prefix cache.
    assert engine.generation_tokens == stage.tokens.output == 64 * 64
    assert engine.prompt_tokens == stage.tokens.input == 64 * 256
    assert engine.ttft_count == 64
    assert engine.prefix_hit_rate == 0
    assert stage.truth is not None
    assert "tokens:" not in stage.truth.why and "not compared" not in stage.truth.why
    # Times are printed, not asserted: two cores are shared by engine, front end and client.
    print(f"\nTTFT client {latency['ttft'].mean:.2f} ms, engine {engine.ttft_mean_ms:.2f} ms, ", end="")
    print(
        f"TPOT client {latency['tpot'].mean:.3f} ms, engine {engine.itl_mean_ms:.3f} ms; {stage.why or 'not limited'}"
    )
    # Our clock starts before the engine's and ends after it: no sample of ours can be the shorter one.
    assert latency["ttft"].mean > engine.ttft_mean_ms

    chat = await finish(attach(url, endpoint="chat", concurrency=[4], requests=16))
    assert chat.stages[0].requests.completed == 16
    assert chat.stages[0].tokens.input == 16 * 256

    too_long = await over(run_of(attach(url, isl=9000)))
    assert "max_model_len is 8192" in str(too_long.error)


async def test_an_attached_server_is_never_stopped(url: str) -> None:
    await finish(attach(url, concurrency=[1], requests=2))
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{url}/health")).status_code == 200


async def block_size(url: str) -> int:
    """Tokens in a block of the engine's cache."""
    async with httpx.AsyncClient(trust_env=False) as client:
        reported = re.search(r'[{,]block_size="(\d+)"', (await client.get(f"{url}/metrics")).text)
    assert reported is not None
    return int(reported[1])
