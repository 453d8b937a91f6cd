"""The timed path on `/v1/responses`: the same numbers as for a chat that says the same."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.stream.events import EventSplitter, single_event
from tests.stream.test_channel import END, Wire, chunk, failure_of, head, us


def named(kind: str, **fields: Any) -> bytes:
    return chunk(f"event: {kind}\ndata: {json.dumps({**fields, 'type': kind})}\n\n".encode())


def text(word: str) -> bytes:
    return named("response.output_text.delta", delta=word, logprobs=[], output_index=0)


def completed(usage: dict[str, int] | None, kind: str = "response.completed") -> bytes:
    return named(kind, response={"id": "r", "usage": usage, "output": [{"type": "message"}], "error": None})


# The order in which vLLM 0.32 writes them.
OPENING = (
    named("response.created", response={"id": "r", "usage": None, "output": []})
    + named("response.in_progress", response={"id": "r", "usage": None})
    + named("response.output_item.added", item={"content": [], "type": "message"}, output_index=0)
    + named("response.content_part.added", part={"text": "", "type": "output_text"})
)
CLOSING = (
    named("response.output_text.done", text="abc")
    + named("response.content_part.done", part={"text": "abc"})
    + named("response.output_item.done", item={"content": [{"text": "abc"}], "type": "message"})
)
USAGE = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}


def test_a_response_in_numbers() -> None:
    wire = Wire().read(head() + OPENING, 40)
    for word, at_ms in (("a", 50), ("b", 60), ("c", 75)):
        wire.read(text(word), at_ms)
    wire.read(CLOSING + completed(USAGE) + END, 90)
    result = wire.delta()
    assert (result.completed, result.failed) == (1, 0)
    assert (result.input_tokens, result.output_tokens, result.counted_by_events) == (7, 3, 0)
    assert us(result.latency["ttft"]) == (1, 50_000, 50_000)
    assert us(result.latency["tpot"]) == (1, 12_500, 12_500)
    assert us(result.latency["itl"]) == (2, 10_000, 15_000)
    assert us(result.latency["e2e"]) == (1, 75_000, 75_000)
    assert wire.channel.usable


@pytest.mark.parametrize(
    "kind", ["output_text", "reasoning_text", "reasoning_summary_text", "function_call_arguments", "refusal"]
)
def test_text_reasoning_and_tool_calls_are_output(kind: str) -> None:
    wire = Wire().read(head() + named(f"response.{kind}.delta", delta=""), 10)
    wire.read(named(f"response.{kind}.delta", delta="x"), 30)
    assert us(wire.delta().latency["ttft"]) == (1, 30_000, 30_000)


def test_answer_cut_short_by_its_limit_is_complete() -> None:
    wire = Wire().read(head() + text("a") + text("b") + completed(None, "response.incomplete") + END, 10)
    result = wire.delta()
    assert (result.completed, result.output_tokens, result.counted_by_events) == (1, 2, 1)


@pytest.mark.parametrize(
    ("kind", "reads"),
    [
        ("engine_error", [head(), text("a"), named("response.failed", response={"error": {"message": "died"}})]),
        ("engine_error", [head(), named("error", code="server_error", message="died")]),
        ("truncated", [head(), text("a"), END]),
        ("empty", [head(), OPENING, completed(USAGE) + END]),
        ("bad_event", [head(), chunk(b"event: x\ndata: {oops\n\n")]),
    ],
)
def test_failures_are_data(kind: str, reads: list[bytes]) -> None:
    errors, messages, _ = failure_of(*reads)
    assert errors == {kind: 1}
    assert messages[kind][0]


WHOLE = head() + OPENING + text("a") + chunk(b": ping\n\n") + text("bc") + text("d\u00e9") + CLOSING
WHOLE += completed(USAGE) + END


@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=10, unique=True))
def test_no_split_of_the_reads_changes_what_is_counted(places: list[int]) -> None:
    whole, split = Wire(), Wire()
    whole.read(WHOLE, 10)
    for low, high in pairwise([0, *sorted(places), len(WHOLE)]):
        split.read(WHOLE[low:high], 10)
    assert split.delta() == whole.delta()


@given(
    st.lists(
        st.sampled_from(
            [b"event: ", b"data: ", b"\n", b"\n\n", b"\r\n", b"a", b": c", b"id: 1", b"event: a\ndata: b\n\n"]
        ),
        max_size=8,
    )
)
def test_the_short_way_sees_what_the_splitter_sees(pieces: list[bytes]) -> None:
    body = b"".join(pieces)
    data = single_event(body)
    if data is not None:
        splitter = EventSplitter()
        assert splitter.feed(body) == [data]
        assert not splitter.holds
