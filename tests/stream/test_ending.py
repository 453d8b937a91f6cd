"""How an answer ended: one decision, whatever form a server gives it, for the load and for untimed answers."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.stream.ending import read_answer
from loadgen.stream.events import EventSplitter
from tests.stream.test_channel import DONE, END, Wire, chunk, delta, event, head, text, total

WORDS = "upstream lost"


def judged(*reads: bytes) -> tuple[dict[str, int], str]:
    """How a stream ended, which must be how the same body is judged as a whole: kinds of failure, and the message."""
    wire = Wire()
    for at_ms, data in enumerate((head(), *reads, END), start=1):
        if wire.channel.stream is not None:
            wire.read(data, at_ms)
    found = wire.delta()
    assert found.completed + found.failed == 1
    body = b"".join(read.split(b"\r\n", 1)[1].removesuffix(b"\r\n") for read in reads)
    whole = read_answer(body)
    assert ([whole.failed.kind] if whole.failed is not None else []) == list(found.errors)
    messages = [message for kept in found.messages.values() for message in kept]
    assert messages == ([whole.failed.message] if whole.failed is not None else [])
    return found.errors, "".join(messages)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("stop", None),
        ("length", None),
        ("tool_calls", None),
        ("function_call", None),
        ("content_filter", None),
        ("eos_token", None),
        ("abort", "aborted"),
        ("cancelled", "aborted"),
        ("timeout", "aborted"),
        ("error", "engine_error"),
        ("insufficient_system_resource", "engine_error"),
        ("STOP", "finish_reason"),
        ("something new", "finish_reason"),
        (7, "finish_reason"),
        ({"type": "abort"}, "finish_reason"),
    ],
)
@pytest.mark.parametrize("chat", [False, True])
def test_finish_reason_decides(reason: Any, kind: str | None, *, chat: bool) -> None:
    output: dict[str, Any] = {"delta": {"content": "a"}} if chat else {"text": "a"}
    last: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
    errors, message = judged(
        event({"choices": [{**output, "finish_reason": None}]}),
        event({"choices": [{**last, "finish_reason": reason}]}),
        total(1),
        DONE,
    )
    assert errors == ({} if kind is None else {kind: 1})
    assert kind is None or str(reason).replace("'", '"')[:5] in message.replace("'", '"')


@pytest.mark.parametrize("nothing", ["", "null", None])
def test_an_empty_finish_reason_is_none(nothing: str | None) -> None:
    assert judged(text("a", finish=nothing), text("b", finish=nothing))[0] == {"truncated": 1}
    assert judged(text("a", finish=nothing), text("b", finish="stop"))[0] == {}
    assert judged(text("a", finish=nothing), DONE)[0] == {}


@pytest.mark.parametrize(("reasons", "kind"), [(("stop", "length"), None), (("stop", "abort"), "aborted")])
@pytest.mark.parametrize("turned", [False, True])
def test_of_two_finish_reasons_the_one_that_means_failure_counts(
    reasons: tuple[str, str], kind: str | None, *, turned: bool
) -> None:
    first, second = reversed(reasons) if turned else reasons
    errors, _ = judged(text("a", finish=first), text("b", finish=second), DONE)
    assert errors == ({} if kind is None else {kind: 1})


def test_text_after_the_finish_reason_is_output() -> None:
    wire = Wire()
    for at_ms, data in enumerate((head(), text("a", finish="stop"), text("b"), DONE + END), start=1):
        wire.read(data, at_ms)
    assert (wire.stream.tokens, wire.delta().completed) == (2, 1)


def test_the_reason_that_a_gateway_replaced_counts() -> None:
    native = {"delta": {}, "finish_reason": "stop", "provider_specific_fields": {"native_finish_reason": "abort"}}
    assert judged(delta(content="a"), event({"choices": [native]}), DONE)[0] == {"aborted": 1}


STATUSES = frozenset(map(str, range(400, 600)))
ERROR = {"message": WORDS, "type": "server_error", "code": 502}
ERRORS = {
    "error": event({"error": ERROR}),
    "error as a text": event({"error": WORDS, "error_type": "generation"}),
    "error without a code": event({"error": {"message": WORDS, "http_status_code": 422}}),
    "error within an error": event({"error": {"object": "error", "message": WORDS, "code": "500"}}),
    "next to a choice": event({"error": ERROR, "choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}),
    "next to a choice with text": event({"error": ERROR, "choices": [{"text": "x", "finish_reason": None}]}),
    "next to an empty choice": event({"error": ERROR, "choices": [{"delta": {}, "finish_reason": None}]}),
    "within a choice": event({"choices": [{"error": ERROR, "delta": {"content": ""}, "finish_reason": "error"}]}),
    "within a choice, unfinished": event({"choices": [{"error": WORDS, "index": 0}]}),
    "next to no choices": event({"error": ERROR, "choices": [], "usage": {"completion_tokens": 1}}),
    "errors": event({"errors": [{"message": WORDS}]}),
    "object": event({"object": "error", "message": WORDS, "type": "BadRequestError", "param": None, "code": 400}),
    "type": event({"type": "error", "error": {"type": "overloaded_error", "message": WORDS}}),
    "flat": event({"message": WORDS, "type": "InternalServerError", "param": None, "code": 500}),
    "error_code": event({"text": WORDS, "error_code": 50001}),
    "detail": event({"detail": WORDS}),
    "field": chunk(b'error: {"code": 500, "message": "upstream lost"}\n\n'),
    "field and data": chunk(b"event: error\ndata: upstream lost\n\n"),
    "event": chunk(b'event: error\ndata: {"type": "error", "message": "upstream lost"}\n\n'),
    "bare line": chunk(b'{"error": {"message": "upstream lost"}}\n\n'),
    "crlf": chunk(b'data: {"error": {"message": "upstream lost"}}\r\n\r\n'),
    "two lines": chunk(b'data: {"error":\ndata: {"message": "upstream lost"}}\n\n'),
    "response.failed": event(
        {"type": "response.failed", "response": {"error": {"message": WORDS}, "status": "failed"}}
    ),
}


CODES = st.integers() | st.text(max_size=4) | st.integers(0, 999).map(str) | st.integers(100, 599) | st.none()


@given(CODES, CODES, st.sampled_from(["code", "error_code"]))
@example(200, 422, "code")
@example(200, None, "code")
@example("201", 302, "error_code")
def test_an_error_has_the_status_of_an_error(outer: Any, inner: Any, key: str) -> None:
    error = {"error": {"message": WORDS, key: inner}, key: outer}
    named = next((int(code) for code in (outer, inner) if str(code) in STATUSES), 500)
    answer = read_answer(event(error).split(b"\r\n", 1)[1].removesuffix(b"\r\n"))
    assert answer.failed is not None
    assert answer.error_status == named


@pytest.mark.parametrize("form", ERRORS)
@pytest.mark.parametrize("where", ["first", "after a token", "after [DONE]"])
def test_an_error_in_any_form_fails_with_the_servers_words(form: str, where: str) -> None:
    before = {"first": b"", "after a token": text("a"), "after [DONE]": text("a", finish="stop") + DONE}[where]
    wire = Wire()
    for at_ms, data in enumerate((head() + before, ERRORS[form], DONE + END), start=1):
        if wire.channel.stream is not None:
            wire.read(data, at_ms)
    found = wire.delta()
    assert (found.completed, found.errors) == (0, {"engine_error": 1})
    assert WORDS in found.messages["engine_error"][0]
    whole = read_answer(ERRORS[form].split(b"\r\n", 1)[1].removesuffix(b"\r\n"))
    assert whole.failed is not None and whole.failed.kind == "engine_error"
    assert WORDS in whole.failed.message


@pytest.mark.parametrize(
    "harmless",
    [
        event({"choices": [{"text": "b", "finish_reason": None, "error": None}], "error": None}),
        event({"choices": [{"text": "b", "finish_reason": None}], "error": {}}),
        event({"choices": [{"text": "b", "error": ""}], "error": "", "errors": [], "error_code": 0}),
        event({"id": "1", "object": "chat.completion.chunk", "choices": [], "message": "hello", "detail": "x"}),
        event({"type": "ping"}),
        event({"type": "keepalive", "message": "still here"}),
        chunk(b"event: ping\ndata: {}\n\n"),
        chunk(b": OPENROUTER PROCESSING\n\n"),
        chunk(b"data:\n\n"),
        chunk(b"data: \n\n") * 3,
        chunk(b'{"note": "not in a field"}\n\n'),
    ],
)
def test_what_is_no_error_fails_nothing(harmless: bytes) -> None:
    wire = Wire()
    for at_ms, data in enumerate((head() + harmless, text("a"), harmless, text("b", finish="stop") + DONE + END)):
        wire.read(data, at_ms + 1)
    found = wire.delta()
    assert (found.completed, found.errors) == (1, {})


def test_an_error_in_place_of_a_stream_is_shown() -> None:
    for body in (b'{"error": {"message": "upstream lost"}}', b'{"detail": "upstream lost"}', b"upstream lost"):
        errors, message = judged(chunk(body))
        assert list(errors) == (["protocol"] if body == b"upstream lost" else ["engine_error"])
        assert WORDS in message


def test_the_last_event_may_lack_its_empty_line() -> None:
    assert judged(text("a"), chunk(b"data: [DONE]"))[0] == {}
    assert judged(text("a"), chunk(b'data: {"error": "upstream lost"}\n'))[0] == {"engine_error": 1}
    assert judged(text("a"), chunk(b'data: {"choices": [{"te'))[0] == {"truncated": 1}


def test_an_empty_answer_shows_its_last_event() -> None:
    wire = Wire()
    unknown = {"choices": [{"delta": {"role": "assistant", "hologram": "blue"}, "finish_reason": None}]}
    for at_ms, data in enumerate((head(), event(unknown), DONE + END), start=1):
        wire.read(data, at_ms)
    [message] = wire.delta().messages["empty"]
    assert "hologram" in message


def test_ten_thousand_events_without_data() -> None:
    wire = Wire().read(head() + b"".join([chunk(b"data:\n\n")] * 10_000), 1)
    wire.read(text("a", finish="stop") + DONE + END, 50)
    found = wire.delta()
    assert (found.completed, found.latency["ttft"].min_us) == (1, 50_000)


def test_a_long_event_in_pieces_is_joined_once() -> None:
    body = b"data: " + json.dumps({"choices": [{"text": "x" * (15 << 20), "finish_reason": "stop"}]}).encode() + b"\n\n"
    splitter = EventSplitter()
    pieces = [body[at : at + 1460] for at in range(0, len(body), 1460)]
    for number, piece in enumerate(pieces[:-1], start=1):
        assert splitter.feed(piece) == []
        assert len(splitter._parts) == number  # kept as they are: to join them at each piece is quadratic
    [found] = splitter.feed(pieces[-1])
    assert len(found.data) == len(body) - len(b"data: \n\n")


@given(st.binary() | st.text().map(lambda words: b"data: " + words.encode() + b"\n\n"))
def test_no_body_is_an_exception(content: bytes) -> None:
    answer = read_answer(content)
    assert answer.failed is not None or answer.text or answer.usage.completion_tokens or b"[DONE]" in content
