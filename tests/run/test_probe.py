"""What is learnt of a server before the load: its address, its models, and what it accepts."""

import re
from collections.abc import Iterator

import httpx
import pytest

from loadgen.errors import ServerError
from loadgen.run.probe import resolve_target
from loadgen.schema.snapshot import Snapshot
from tests.engines import NOBODY, Simulator, attach, profile, simulator
from tests.run.driving import noted, outcome
from tests.run.test_optional import Server, learn, serving


async def test_ipv6_and_names() -> None:
    async with serving(Server(), "::1") as url:
        target = await resolve_target(url)
        assert target.ip == "::1"
        assert (await learn(url)).without == ()
    async with serving(Server()) as url:
        # `localhost` may name both families; the one that answers is taken.
        target = await resolve_target(url.replace("127.0.0.1", "localhost"))
        assert target.ip == "127.0.0.1"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9", "nothing listens"),
        ("http://no.such.host.invalid:80", "no such host"),
        (f"http://{'x' * 300}:80", "no such host"),
    ],
)
async def test_addresses_that_lead_nowhere(url: str, words: str) -> None:
    with pytest.raises(ServerError, match=words):
        await resolve_target(url)


@pytest.fixture(scope="module")
def shared() -> Iterator[Simulator]:
    with simulator("--served-model-name", "base", "adapter") as engine:
        yield engine


def running(engine: Simulator) -> list[str]:
    """What the engine's own metrics say is running."""
    text = httpx.get(f"{engine.url}/metrics", trust_env=False).text
    return re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.MULTILINE)


async def test_responses_have_the_isl_of_a_chat_and_usage(engine: Simulator) -> None:
    result, error = await outcome(attach(engine, load={"endpoint": "responses", "isl": 64, "osl": 8}))
    stage = result.stages[0]
    assert (error, stage.requests.completed, stage.requests.failed) == (None, 20, 0)
    assert (stage.tokens.input, stage.tokens.output, stage.tokens.source) == (20 * 64, 20 * 8, "usage")
    assert (stage.latency_ms["ttft"].count, stage.latency_ms["itl"].count) == (16, 16 * 7)


async def test_clients_hang_up_and_the_engine_runs_empty(engine: Simulator) -> None:
    # Long enough that no stream is over before its client hangs up.
    load = {"endpoint": "chat", "isl": 32, "osl": 120, "cancel": {"share": 0.5, "after": "100ms"}}
    result, error = await outcome(attach(engine, load=load))
    requests = result.stages[0].requests
    assert (error, result.state) == (None, "complete")
    assert requests.cancelled
    assert (requests.sent, requests.completed + requests.cancelled) == (20, 20)
    assert (requests.failed, requests.unfinished, requests.errors) == (0, 0, {})
    # Of the first wave, which is apart, some may have completed.
    assert requests.completed - 4 <= result.stages[0].latency_ms["e2e"].count <= requests.completed
    truth = engine.truth()["requests"]
    # The first request of the probe is complete too.
    assert (truth["aborted"], truth["completed"], truth["open"]) == (requests.cancelled, requests.completed + 1, 0)
    assert running(engine) == ["0.0"]


async def test_the_seed_decides_who_hangs_up_and_every_slot_is_filled_again(engine: Simulator) -> None:
    load = {"osl": 150, "cancel": {"share": 0.3, "after": "50ms"}, "requests": 16, "concurrency": 4}
    results = [await outcome(attach(engine, load=load | {"workers": workers})) for workers in (1, 2)]
    first, second = (result.stages[0].requests for result, _ in results)
    assert first.cancelled == second.cancelled > 0
    assert first.completed == second.completed == 16 - first.cancelled


async def test_all_hang_up_in_open_loop(engine: Simulator) -> None:
    load = {"rate": [100.0], "requests": 20, "osl": 300, "cancel": {"share": 1, "after": "20ms"}}
    result, error = await outcome(attach(engine, load=load))
    requests = result.stages[0].requests
    assert (error, requests.sent, requests.cancelled, requests.completed) == (None, 20, 20, 0)
    assert running(engine) == ["0.0"]


async def test_stream_over_before_its_hang_up_is_complete(engine: Simulator) -> None:
    result, _ = await outcome(attach(engine, load={"cancel": {"share": 1, "after": "1h"}}))
    assert (result.stages[0].requests.completed, result.stages[0].requests.cancelled) == (20, 0)


async def test_models_by_weight(engine: Simulator) -> None:
    load = {"models": {"base": 1, "adapter": 3}, "requests": 100, "workers": 2}
    results = [(await outcome(attach(engine, load=load)))[0] for _ in range(2)]
    first, second = (result.stages[0].requests for result in results)
    assert first.completed == 100
    assert first.models == second.models
    assert sum(first.models.values()) == 100
    assert 55 <= first.models["adapter"] <= 95


async def test_a_model_that_is_not_served_is_reported_before_the_load(engine: Simulator) -> None:
    result, error = await outcome(attach(engine, load={"models": {"base": 1, "nope": 3}}))
    assert isinstance(error, ServerError)
    assert "/v1/models lists base, adapter; name the model with --model" in str(error)
    assert result.stages == []


async def test_extra_fields_reach_the_server_and_its_refusal_is_reported(engine: Simulator) -> None:
    result, error = await outcome(attach(engine, load={"extra_body": {"min_tokens": 2}}))
    assert (error, result.stages[0].requests.completed) == (None, 20)
    _, error = await outcome(attach(engine, load={"extra_body": {"min_tokens": "many"}}))
    assert isinstance(error, ServerError)
    assert "the first request failed: HTTP 400" in str(error)
    assert "min_tokens" in str(error)


async def test_several_urls_take_turns(engine: Simulator) -> None:
    seen: list[Snapshot] = []
    with simulator("--served-model-name", "base", "adapter") as other:
        urls = [engine.url, other.url]
        parts = profile({"engine": "attach", "urls": urls}, load={"requests": 20})
        result, error = await outcome(parts, noted(seen))
        truths = [each.truth()["requests"]["completed"] for each in (engine, other)]
    assert (error, result.client.workers) == (None, 2)
    stage = result.stages[0]
    assert [(part.url, part.requests.completed) for part in stage.instances] == [(url, 10) for url in urls]
    assert stage.requests.completed == 20
    assert truths == [11, 11]
    assert [instance["url"] for instance in result.environment["server_instances"]] == urls
    assert [(view.url, view.state, view.pid) for view in seen[-1].server.instances] == [
        (url, "ready", None) for url in urls
    ]
    assert result.profile["server"]["urls"] == urls


async def test_one_of_several_urls_that_nobody_serves(engine: Simulator) -> None:
    parts = profile({"engine": "attach", "urls": [engine.url, NOBODY]})
    _, error = await outcome(parts)
    assert isinstance(error, ServerError)
    assert f"{NOBODY}: nothing listens there" in str(error)
