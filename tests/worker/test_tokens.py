"""What a worker reports of tokens, against the simulator's truth, for every way in which servers report usage."""

import asyncio
import socket
from collections.abc import Iterator

import msgspec
import pytest

from loadgen.metrics.stage import StageMetrics
from loadgen.plan.stage import Stage
from loadgen.stream.request import ServerAddress, common_fields, request_template
from loadgen.worker.messages import Vocabulary
from tests.server.fakes import eventually
from tests.simulator.conftest import Running, simulator
from tests.worker.test_driver import driven, finished, settings_for

OSL, REQUESTS, STREAMS = 24, 4, 4
USAGE = {"include_usage": True, "continuous_usage_stats": True}
CLOSE = 0.2
"""By how much a mean may differ: the simulator stamps before its system calls, the kernel after them."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    with simulator() as running:
        running.client.post("/admin/config", json={"base_ms": 4.0}).raise_for_status()
        yield running


async def account(engine: Running, endpoint: str) -> StageMetrics:
    """What a worker counts of one stage."""
    ids, words = (tuple(range(300, 400)), ()) if endpoint == "completions" else ((), ("the", "of"))
    address = ServerAddress(int(socket.AF_INET), "127.0.0.1", engine.port)
    configured = settings_for(address, vocabulary=Vocabulary(ids=ids, words=words))
    options = {"ignore_eos": True, "stream_options": USAGE}
    fields = common_fields(endpoint, model="simulated", temperature=0.0, options=options, extra={})
    template = request_template(f"http://127.0.0.1:{engine.port}", endpoint, fields, osl=OSL, api_key=None)
    template = msgspec.structs.replace(template, exact_osl=True)
    stage = Stage(concurrency=STREAMS, rate=None, requests=REQUESTS, isl=16, osl=OSL)
    async with driven(configured, stage, template=template) as driver:
        await eventually(lambda: finished(driver))
        return StageMetrics.of(driver.stages[0].drain())


@pytest.mark.parametrize("hidden", [0, 200])
@pytest.mark.parametrize("multi", [1, 4])
@pytest.mark.parametrize("usage", ["", "usage_end", "usage_zero", "usage_partial", "usage_none"])
async def test_figures_are_the_truth_or_unknown(engine: Running, usage: str, multi: int, hidden: int) -> None:
    endpoint = "chat" if hidden else "completions"
    faults = [usage, f"multi:tokens={multi}", f"hidden:tokens={hidden}" if hidden else ""]
    engine.faults(*filter(None, faults))
    engine.client.post("/truth/reset").raise_for_status()
    found = await account(engine, endpoint)
    truth = await asyncio.to_thread(engine.truth)

    assert found.counters["completed"] == REQUESTS
    assert truth["tokens"]["output"] == REQUESTS * OSL
    latency = {name: histogram.mean_ms() or 0.0 for name, histogram in found.latency.items()}
    true = {name: summary["mean"] for name, summary in truth["latency_ms"].items()}
    assert latency["chunk_gap"] == pytest.approx(true["chunk_gap"], rel=CLOSE)

    knows_each, knows_total = usage == "", usage != "usage_none"
    assert found.counters["output_tokens"] == REQUESTS * (OSL + hidden if knows_total else OSL // multi)
    assert found.counters["hidden_tokens"] == (REQUESTS * hidden if knows_total else 0)
    assert found.counters["uneven_streams"] == (REQUESTS if knows_total and not knows_each and multi > 1 else 0)
    if knows_total:
        assert latency["tpot"] == pytest.approx(true["tpot"], rel=CLOSE)
        assert found.counters["short_answers"] == 0
    if knows_each or (knows_total and multi == 1):
        assert latency["itl"] == pytest.approx(true["itl"], rel=CLOSE)
    knows_prompt = knows_total or endpoint == "completions"
    assert found.counters["unknown_input"] == (0 if knows_prompt else REQUESTS)
