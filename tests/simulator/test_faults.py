import json
import statistics
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from loadgen.errors import ProfileError
from loadgen.simulator.faults import KINDS, REFUSALS, Fault, chosen, parse_fault
from loadgen.simulator.scores import UNTRAINED_NATS
from tests.simulator.conftest import Running, body_of, events_of, read_all, read_response, request, simulator


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("reset", Fault(kind="reset")),
        ("reset:share=0.1,after=3", Fault(kind="reset", share=0.1, after=3)),
        ("stall:nth=7,seconds=0.5", Fault(kind="stall", nth=7, seconds=0.5)),
        ("multi:every=5,tokens=3", Fault(kind="multi", every=5, tokens=3)),
    ],
)
def test_parses(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text",
    [
        "rest",
        "reset:often=1",
        "reset:share=x",
        "reset:share=nan",
        "reset:nth=1.5",
        "reset:every=0",
        "reset:nth",
        "stall:seconds=1e9",
    ],
)
def test_a_wrong_fault_is_quoted(text: str) -> None:
    with pytest.raises(ProfileError, match=text.replace(".", r"\.")):
        parse_fault(text)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("reset", [1, 2, 3, 4, 5, 6]), ("reset:nth=3", [3]), ("reset:every=2", [2, 4, 6]), ("reset:share=0", [])],
)
def test_strikes(text: str, numbers: list[int]) -> None:
    fault = parse_fault(text)
    assert [number for number in range(1, 7) if fault.applies(number, seed=0)] == numbers


def test_a_fault_strikes_its_share_of_requests_by_the_seed() -> None:
    fault = parse_fault("reset:share=0.2")
    struck = [number for number in range(5000) if fault.applies(number, seed=1)]
    assert 900 < len(struck) < 1100
    assert struck == [number for number in range(5000) if fault.applies(number, seed=1)]
    assert struck != [number for number in range(5000) if fault.applies(number, seed=2)]


def test_equal_shares_of_two_kinds_strike_different_requests() -> None:
    faults = [parse_fault("reset:share=0.5"), parse_fault("stall:share=0.5")]
    assert {len(chosen(faults, number, seed=0)) for number in range(50)} == {0, 1, 2}


def test_every_kind_is_explained() -> None:
    import loadgen.simulator.faults as module

    assert module.__doc__ is not None
    assert [kind for kind in KINDS if f"`{kind}`" not in module.__doc__] == []


USAGE = {"include_usage": True, "continuous_usage_stats": True}


def text_of(body: bytes) -> str:
    """The text of a stream whose every event is good."""
    return "".join(event["choices"][0].get("text", "") for event in events_of(body) if event and event["choices"])


def answer(server: Running, tokens: int = 24, **fields: Any) -> Any:
    body = {"prompt": [5] * 20, "max_tokens": tokens, **fields}
    return server.client.post("/v1/completions", json=body).json()["choices"][0]


@pytest.mark.parametrize(
    ("fault", "looks"),
    [
        ("wrong:after=3", lambda words: len(set(words)) > 10),
        ("flip:after=3", lambda words: len(set(words)) == 21),
        ("repeat:after=3", lambda words: words == ["!" * 21]),
        ("replacement:after=3", lambda words: words == ["\ufffd" * 21]),
        ("blank:after=3", lambda words: words == []),
    ],
)
def test_text_goes_wrong_after_so_many_tokens(server: Running, fault: str, looks: Callable[[list[str]], bool]) -> None:
    good = answer(server)["text"]
    server.faults(fault)
    whole = answer(server)["text"]
    streamed = text_of(body_of(server.stream(24, stream_options=USAGE)))
    for text in (whole, streamed):
        kept = " ".join(good.split()[:3])
        assert text.strip().startswith(kept)
        assert text != good
        assert looks(text.strip().removeprefix(kept).split())
    assert (whole == streamed) == (not fault.startswith("wrong"))  # words of no sense differ from answer to answer


def test_a_fault_that_needs_so_many_streams_spares_fewer(server: Running) -> None:
    good, alone = answer(server)["text"], mean_score(server)
    server.faults("repeat:streams=2")
    assert answer(server)["text"] == good
    with server.connect() as other:
        other.sendall(request(5000))
        assert other.recv(100)
        assert "!!!" in answer(server)["text"]
        # Nothing but the noise of a larger batch: the score of a right prompt is right.
        server.faults()
        assert 0 < abs(mean_score(server) - alone) < 0.005


def mean_score(server: Running) -> float:
    scored = answer(server, 1, prompt_logprobs=0, prompt=[*range(1000, 1400)])["prompt_logprobs"][1:]
    return statistics.fmean(next(iter(entry.values()))["logprob"] for entry in scored)


def test_scores_drift_or_disagree_or_are_of_no_model(server: Running) -> None:
    right = mean_score(server)
    assert mean_score(server) == right
    server.faults("drift:nats=0.25")
    assert mean_score(server) == pytest.approx(right - 0.25, abs=1e-9)
    server.faults("unsteady:nats=0.1")
    assert len({mean_score(server) for _ in range(3)}) == 3
    server.faults("wrong")
    assert mean_score(server) == pytest.approx(-UNTRAINED_NATS)


def test_an_endpoint_refuses_scores_ignores_the_wish_or_tells_some(server: Running) -> None:
    server.faults("refuse_scores")
    response = server.client.post("/v1/completions", json={"prompt": [1, 2], "prompt_logprobs": 0})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logprobs")
    assert server.client.post("/v1/completions", json={"prompt": [1, 2]}).status_code == 200
    server.faults("ignore_scores")
    assert "prompt_logprobs" not in answer(server, prompt_logprobs=0)
    server.faults("some_scores")
    assert [entry is None for entry in answer(server, prompt_logprobs=0)["prompt_logprobs"]] == [True] + [False] * 9 + [
        True
    ] * 10


def test_an_endless_answer_goes_on_to_its_limit() -> None:
    with simulator("--eos-mean-tokens", "3") as running:
        assert answer(running, 200)["finish_reason"] == "stop"
        running.faults("endless")
        assert answer(running, 200)["finish_reason"] == "length"


@pytest.mark.parametrize(("kind", "status"), REFUSALS.items())
def test_refusals(server: Running, kind: str, status: int) -> None:
    server.faults(kind)
    response = server.client.post("/v1/completions", json={"prompt": [1]})
    assert response.status_code == status
    assert response.json()["error"]["code"] == status
    truth = server.truth()
    assert (truth["requests"]["failed"], truth["faults"]) == (1, {kind: 1})


def test_not_http(server: Running) -> None:
    server.faults("not_http")
    assert not server.stream(3).startswith(b"HTTP")


def test_reset_after_some_events(server: Running) -> None:
    server.faults("reset:after=3")
    with server.connect() as sock:
        sock.sendall(request(50))
        data = b""
        with pytest.raises(ConnectionResetError):
            while True:
                data += sock.recv(65536)
    assert data.count(b"data: ") <= 3
    assert server.truth()["requests"]["failed"] == 1


def test_truncate_closes_inside_a_chunk(server: Running) -> None:
    server.faults("truncate:after=2")
    data = server.stream(50)
    assert data.count(b"data: ") == 3
    assert not data.endswith(b"\r\n")


def test_early_end_is_whole_http_and_half_an_answer(server: Running) -> None:
    server.faults("early_end:after=2")
    events = events_of(body_of(server.stream(50)))
    assert len(events) == 2
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None]


def test_error_event(server: Running) -> None:
    server.faults("error_event:after=2")
    first, second, error, done = events_of(body_of(server.stream(50)))
    assert first["choices"]
    assert second["choices"]
    assert error["error"]["code"] == 500
    assert done is None


def test_a_connection_survives_a_fault_inside_http(server: Running) -> None:
    server.faults("early_end")
    with server.connect() as sock:
        for _ in range(2):
            sock.sendall(request(5))
            assert len(events_of(body_of(read_response(sock)))) == 1


def test_stall_for_good_keeps_the_connection(server: Running) -> None:
    server.faults("stall:after=2")
    with server.connect() as sock:
        sock.sendall(request(20))
        data = b""
        while data.count(b"\n\n") < 2:
            data += sock.recv(65536)
        sock.settimeout(0.15)
        with pytest.raises(TimeoutError):
            sock.recv(65536)
        assert server.truth()["requests"]["open"] == 1


def test_stall_for_a_while_loses_no_token(server: Running) -> None:
    good = text_of(body_of(server.stream(30)))
    server.faults("stall:after=2,seconds=0.05")
    stalled = body_of(server.stream(30))
    assert text_of(stalled) == good
    assert server.truth()["latency_ms"]["chunk_gap"]["max"] >= 45


def test_garbage_is_one_bad_event_in_a_good_stream(server: Running) -> None:
    server.faults("garbage:after=2")
    events = body_of(server.stream(5)).split(b"\n\n")
    assert len(events) == 8
    with pytest.raises(json.JSONDecodeError):
        json.loads(events[2].removeprefix(b"data: "))
    assert server.truth()["requests"]["completed"] == 1


@pytest.mark.parametrize("chat", [False, True])
def test_role_first(server: Running, chat: bool) -> None:
    server.faults("role_first")
    first, *rest, _ = events_of(body_of(server.stream(3, chat=chat)))
    assert len(rest) == 3
    choice = first["choices"][0]
    assert (choice["delta"]["content"] if chat else choice["text"]) == ""


@pytest.mark.parametrize(("tokens", "counts"), [(10, [4, 8, 10]), (8, [4, 8]), (3, [3])])
def test_multi_puts_several_tokens_in_an_event(server: Running, tokens: int, counts: list[int]) -> None:
    good = text_of(body_of(server.stream(tokens)))
    server.faults("multi:tokens=4")
    body = body_of(server.stream(tokens, stream_options=USAGE))
    *events, _usage, _done = events_of(body)
    assert [event["usage"]["completion_tokens"] for event in events] == counts
    assert text_of(body) == good


@pytest.mark.parametrize(("faults", "pings"), [(("split",), 0), (("ping", "crlf", "split", "multi:tokens=2"), 10)])
def test_faults_that_change_no_text(server: Running, faults: tuple[str, ...], pings: int) -> None:
    good = text_of(body_of(server.stream(20)))
    server.faults(*faults)
    body = body_of(server.stream(20))
    assert text_of(body) == good
    assert body.count(b": ping") == pings


def test_crlf(server: Running) -> None:
    server.faults("crlf")
    body = body_of(server.stream(3, stream_options=USAGE))
    assert body.count(b"\r\n\r\n") == body.count(b"\n") / 2 == 5


def test_ping(server: Running) -> None:
    server.faults("ping")
    body = body_of(server.stream(3))
    assert body.count(b": ping\n\n") == 3
    assert len(events_of(body)) == 4


def test_empty(server: Running) -> None:
    server.faults("empty")
    end, usage, done = events_of(body_of(server.stream(30, stream_options=USAGE)))
    assert (end["choices"][0]["text"], end["choices"][0]["finish_reason"]) == ("", "stop")
    assert usage["usage"]["completion_tokens"] == 0
    assert done is None
    truth = server.truth()
    assert truth["tokens"]["output"] == truth["latency_ms"]["ttft"]["count"] == 0


def test_usage_none(server: Running) -> None:
    server.faults("usage_none")
    events = events_of(body_of(server.stream(3, stream_options=USAGE)))
    assert len(events) == 4
    assert all(event is None or event["usage"] is None for event in events)


def test_reasoning_is_the_first_half(server: Running) -> None:
    server.faults("reasoning")
    _role, *events, _done = events_of(body_of(server.stream(6, chat=True)))
    carriers = [next(iter(event["choices"][0]["delta"])) for event in events]
    assert carriers == ["reasoning_content"] * 3 + ["content"] * 3


def test_tool_calls(server: Running) -> None:
    server.faults("tool_calls")
    _role, *events, _done = events_of(body_of(server.stream(3, chat=True)))
    calls = [event["choices"][0]["delta"]["tool_calls"][0] for event in events]
    assert calls[0]["function"]["name"]
    assert all(call["function"]["arguments"] for call in calls)
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_idle_close_breaks_the_promise(server: Running) -> None:
    server.faults("idle_close")
    with server.connect() as sock:
        sock.sendall(request(3))
        data = read_all(sock)
    assert b"connection: close" not in data
    assert len(events_of(body_of(data))) == 4


def test_close_on_reuse_answers_the_first_and_not_the_second(server: Running) -> None:
    server.faults("close_on_reuse")
    with server.connect() as sock:
        sock.sendall(request(3))
        assert len(events_of(body_of(read_response(sock)))) == 4
        sock.sendall(request(3))
        assert sock.recv(100) == b""


@pytest.mark.parametrize("kind", ["truncate", "reset"])
def test_an_answer_in_one_piece_does_not_arrive(server: Running, kind: str) -> None:
    server.faults(kind)
    with pytest.raises(httpx.HTTPError):
        server.client.post("/v1/completions", json={"prompt": [1]})
    assert server.truth()["requests"]["failed"] == 1


def test_an_answer_in_one_piece_arrives_late(server: Running) -> None:
    server.faults("stall:seconds=0.05")
    assert server.client.post("/v1/completions", json={"prompt": [1]}).status_code == 200


def test_a_client_that_leaves_during_a_stall_is_aborted(server: Running) -> None:
    server.faults("stall:after=1,seconds=0.02")
    with server.connect() as sock:
        sock.sendall(request(8000))
        sock.recv(100)
    server.await_abort()
    assert server.truth()["requests"]["aborted"] == 1


@pytest.mark.parametrize("fault", ["twice", "twice:seconds=0.05"])
def test_twice(server: Running, fault: str) -> None:
    server.faults(fault)
    with server.connect() as sock:
        sock.sendall(request(4))
        data = b""
        while data.count(b"0\r\n\r\n") < 2:
            data += sock.recv(65536)
    first, _, second = data.partition(b"0\r\n\r\n")
    first_text, second_text = (text_of(body_of(each)) for each in (first + b"0\r\n\r\n", second))
    assert first_text == second_text != ""
    assert server.truth()["requests"]["completed"] == 1


def test_silent_says_nothing_and_stays(server: Running) -> None:
    server.faults("silent")
    with server.connect() as sock:
        sock.sendall(request(4))
        while not server.truth()["requests"]["failed"]:
            pass
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1)
