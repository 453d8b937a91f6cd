"""What the simulator records of sessions, against its engine's counters and its usage."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.simulator.conftest import Running, body_of, events_of, read_response, request, simulator


@pytest.fixture(scope="module")
def router() -> Iterator[Running]:
    with simulator("--enable-prompt-tokens-details", "--session-tokens", "--enable-prefix-caching") as running:
        yield running


def ask(server: Running, session: str, prompt: list[int], **headers: str) -> httpx.Response:
    return server.client.post(
        "/v1/completions",
        json={"prompt": prompt, "max_tokens": 2, "ignore_eos": True},
        headers={"X-Session-ID": session, **headers},
    ).raise_for_status()


def counters(server: Running) -> dict[str, float]:
    lines = [line for line in server.client.get("/metrics").text.splitlines() if line.startswith("vllm:")]
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    return {name.partition("{")[0] + "".join(name.split("source=")[1:]): value for name, value in values.items()}


def test_hits_by_session_are_those_of_usage_and_of_the_engine(router: Running) -> None:
    router.forget()
    before = counters(router)
    turns = [("a", [7] * 64), ("b", [8] * 40), ("a", [7] * 64 + [9] * 32), ("b", [7] * 48 + [8] * 8)]
    cached = [
        ask(router, session, prompt).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        for session, prompt in turns
    ]
    assert cached == [0, 0, 64, 48]
    report = router.client.get("/truth/sessions").json()
    assert {name: each["cached_tokens"] for name, each in report["sessions"].items()} == {"a": 64, "b": 48}
    grown = {name: value - before[name] for name, value in counters(router).items()}
    by_source = grown['vllm:prompt_tokens_by_source_total"local_cache_hit"}']
    assert report["total"]["cached_tokens"] == by_source == grown["vllm:prefix_cache_hits_total"] == 112
    assert report["total"]["prompt_tokens"] == grown["vllm:prefix_cache_queries_total"] == sum(len(p) for _, p in turns)
    assert report["total"]["open"] == 0


def test_streams_say_at_their_end_how_much_was_cached(router: Running) -> None:
    body = request(3, close=True, prompt=[3] * 40, stream_options={"include_usage": True})
    with router.connect() as sock:
        sock.sendall(body)
        *_, usage, _ = events_of(body_of(read_response(sock)))
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_sub_agent_names_its_parent(router: Running) -> None:
    router.forget()
    ask(router, "child", [1] * 20, **{"X-Parent-Session-ID": "root"})
    assert router.client.get("/truth/sessions").json()["sessions"]["child"]["parent"] == "root"


def test_the_routers_token_is_given_and_expected_back(router: Running) -> None:
    router.forget()
    token = ask(router, "a", [1] * 20).headers["x-session-token"]
    ask(router, "a", [1] * 20, **{"X-Session-Token": token})
    ask(router, "a", [1] * 20)
    ask(router, "b", [1] * 20)
    sessions: dict[str, Any] = router.client.get("/truth/sessions").json()["sessions"]
    returned = {name: (each["tokens_returned"], each["tokens_missing"]) for name, each in sessions.items()}
    assert returned == {"a": (1, 1), "b": (0, 0)}


@pytest.mark.parametrize(("seconds", "resets"), [(0, True), (1000, False)])
def test_a_connection_that_was_idle_for_too_long_is_reset(router: Running, seconds: int, *, resets: bool) -> None:
    router.faults(f"reset_idle:seconds={seconds}")
    with router.connect() as sock:
        sock.sendall(request(3))
        read_response(sock)
        sock.sendall(request(3))
        if resets:
            with pytest.raises(ConnectionResetError):
                read_response(sock)
        else:
            read_response(sock)
    router.faults()
