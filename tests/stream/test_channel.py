"""The timed path, fed with bytes: what counts as output, how streams end, and that no split of the reads matters."""

import json
import time
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, Self
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadgen.schema.deltas import StageDelta
from loadgen.stream import channel as channel_module
from loadgen.stream import events
from loadgen.stream.channel import Channel
from loadgen.stream.samples import ClientSamples, StageSamples
from loadgen.stream.stream import Stream

MS = 1_000_000


class Wire:
    """A channel with one stream on it; reads are what the test feeds, with stamps that the test chooses."""

    def __init__(self) -> None:
        self.client = ClientSamples()
        self.samples = StageSamples()
        self.ended: list[Stream] = []
        self.unanswered: list[Stream] = []
        self.sent: list[bytes] = []
        self.channel = Channel(self.client, lambda _, stream, __: self.ended.append(stream), self._unanswered)
        self.channel.write = self._write
        self.channel.usable = True
        self.begin()

    def _write(self, data: bytes) -> bool:
        self.sent.append(data)
        return True

    def _unanswered(self, _: Channel, stream: Stream) -> None:
        self.unanswered.append(stream)

    def begin(self, *, primes: bool = False) -> None:
        self.stream = Stream(stage=0, samples=self.samples, wire=b"POST", intended_ns=0, primes=primes)
        self.channel.begin(self.stream)
        # A schedule of the test's own: sent at zero.
        self.stream.sent_ns = self.stream.last_ns = 0

    def read(self, data: bytes, at_ms: float) -> Self:
        self.channel.feed(data, int(at_ms * MS))
        return self

    def delta(self) -> StageDelta:
        return self.samples.drain()


def head(status: str = "200 OK", *, framing: str = "Transfer-Encoding: chunked") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: text/event-stream\r\n{framing}\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(document: Any) -> bytes:
    return chunk(b"data: " + json.dumps(document).encode() + b"\n\n")


def text(word: str, usage: int | None = None, finish: str | None = None) -> bytes:
    document: dict[str, Any] = {"choices": [{"text": word, "finish_reason": finish}]}
    if usage is not None:
        document["usage"] = {"prompt_tokens": 7, "completion_tokens": usage}
    return event(document)


def delta(usage: int | None = None, **fields: Any) -> bytes:
    document: dict[str, Any] = {"choices": [{"delta": fields, "finish_reason": None}]}
    if usage is not None:
        document["usage"] = {"prompt_tokens": 7, "completion_tokens": usage}
    return event(document)


def total(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}})


DONE = chunk(b"data: [DONE]\n\n")
END = b"0\r\n\r\n"


COMPLETE = head() + text("a", 1, "stop") + DONE + END


def us(encoded: Any) -> tuple[int, int, int]:
    return (encoded.count, encoded.min_us, encoded.max_us)


def test_a_stream_in_numbers() -> None:
    wire = Wire()
    for data, at_ms in [
        (head(), 40),
        (text("a", 1), 50),
        (text("b", 2), 60),
        (text("c", 3, "length"), 75),
        (total(3) + DONE + END, 76),
    ]:
        wire.read(data, at_ms)
    result = wire.delta()
    assert (result.completed, result.failed) == (1, 0)
    assert (result.input_tokens, result.output_tokens, result.counted_by_events) == (7, 3, 0)
    assert us(result.latency["ttft"]) == (1, 50_000, 50_000)
    assert us(result.latency["tpot"]) == (1, 12_500, 12_500)
    assert us(result.latency["itl"]) == (2, 10_000, 15_000)
    assert us(result.latency["e2e"]) == (1, 75_000, 75_000)
    assert us(result.latency["normalized"]) == (1, 7_500, 7_500)
    assert wire.channel.usable


def test_the_answer_begins_after_the_reasoning() -> None:
    wire = Wire()
    wire.stream.sent_ns = 10 * MS
    wire.read(head() + delta(1, reasoning="hm"), 50)
    wire.read(delta(2, reasoning_content="well"), 60).read(delta(3, content="x"), 70).read(delta(4, content="y"), 80)
    result = wire.delta()
    assert (us(result.latency["ttft"]), us(result.latency["answer_ttft"])) == ((1, 40_000, 40_000), (1, 60_000, 60_000))
    assert (us(result.latency["itl"]), result.reasoned) == ((3, 10_000, 10_000), 1)


def test_an_answer_without_reasoning_has_no_time_of_its_own() -> None:
    result = Wire().read(head() + delta(1, content="x") + delta(2, content="y"), 50).delta()
    assert (result.latency.keys() & {"answer_ttft", "answer_ttft_censored"}, result.reasoned) == (set(), 0)


def test_a_stage_that_ends_before_the_answer_knows_a_lower_bound() -> None:
    wire = Wire()
    wire.stream.sent_ns = 10 * MS
    wire.read(head() + delta(1, reasoning="hm"), 50)
    wire.stream.leave_window(90 * MS)
    assert us(wire.delta().latency["answer_ttft_censored"]) == (1, 80_000, 80_000)


def test_reasoning_until_the_end_is_no_answer() -> None:
    wire = Wire().read(head() + delta(1, reasoning="hm"), 50)
    wire.read(event({"choices": [{"delta": {}, "finish_reason": "length"}]}) + DONE + END, 60)
    result = wire.delta()
    assert (result.completed, result.reasoned, result.unanswered, "answer_ttft" in result.latency) == (1, 1, 1, False)


def test_cached_tokens_are_those_that_the_usage_names() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    wire = Wire().read(head() + text("a", 1, "stop") + event({"choices": [], "usage": usage}) + DONE + END, 50)
    result = wire.delta()
    assert (result.cached_input_tokens, result.cached_tokens) == (7, 4)


@pytest.mark.parametrize(
    "early",
    [
        delta(0, role="assistant", content=""),
        delta(role="assistant", content=""),
        delta(content=None),
        text(""),
        event({"choices": []}),
        event({}),
        chunk(b": ping\n\n"),
    ],
)
def test_what_carries_no_output_is_not_the_first_token(early: bytes) -> None:
    wire = Wire().read(head() + early, 5)
    wire.read(delta(1, content="x"), 50)
    assert us(wire.delta().latency["ttft"]) == (1, 50_000, 50_000)


@pytest.mark.parametrize(
    "output",
    [
        delta(reasoning_content="hm"),
        delta(reasoning="hm"),
        delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]),
        delta(content="x"),
        text("x"),
        # A token whose character is not whole yet: the count has grown, the text has not.
        text("", usage=1),
    ],
)
def test_reasoning_tool_calls_and_held_back_tokens_are_output(output: bytes) -> None:
    wire = Wire().read(head() + output, 30)
    assert us(wire.delta().latency["ttft"]) == (1, 30_000, 30_000)


def test_chunks_of_several_tokens_are_counted_by_usage() -> None:
    wire = Wire().read(head() + text("abc", 3), 30)
    wire.read(text("defg", 7), 70)
    wire.read(text("h", 8, "stop") + DONE + END, 90)
    result = wire.delta()
    assert result.output_tokens == 8
    assert us(result.latency["tpot"]) == (1, 12_000, 12_000)
    assert us(result.latency["itl"]) == (5, 10_000, 20_000)
    assert result.latency["itl"].sum_us == 60_000
    assert us(result.latency["chunk_gap"]) == (2, 20_000, 40_000)


def test_without_usage_events_are_counted_and_it_is_said() -> None:
    wire = Wire().read(head() + text("a"), 10)
    wire.read(text("b") + text("c", finish="stop") + DONE + END, 20)
    result = wire.delta()
    assert (result.output_tokens, result.counted_by_events) == (3, 1)
    assert wire.client.coalesced_reads == 1


def test_a_request_that_primes_is_told_apart_and_in_no_send_lag() -> None:
    wire = Wire()
    wire.samples.rows = []
    wire.read(head() + text("a", finish="stop") + DONE + END, 10)
    wire.begin(primes=True)
    wire.read(head() + text("a", finish="stop") + DONE + END, 20)
    assert [row.priming for row in wire.samples.rows] == [False, True]
    assert len(wire.client.send_lag_ns) == 1


def test_a_first_token_read_with_later_ones_has_a_time_that_is_not_sure() -> None:
    together, apart = Wire(), Wire()
    together.read(head() + text("a") + text("b") + text("c"), 10)
    apart.read(head() + text("a"), 10)
    apart.read(text("b") + text("c"), 20)
    assert (together.client.coalesced_ttfts, apart.client.coalesced_ttfts) == (1, 0)
    assert together.client.coalesced_reads == apart.client.coalesced_reads == 1


def test_a_total_at_the_end_is_no_output_of_its_own() -> None:
    wire = Wire().read(head() + text("ab"), 10)
    wire.read(text("cd"), 20)
    wire.read(text("", usage=4, finish="stop") + DONE + END, 30)
    result = wire.delta()
    assert (result.output_tokens, result.counted_by_events) == (4, 0)
    assert us(result.latency["e2e"]) == (1, 20_000, 20_000)


def test_text_that_was_held_back_keeps_its_time_in_the_itl() -> None:
    wire = Wire().read(head() + text("a", 1), 10)
    wire.read(text("late half", 1), 14)
    wire.read(text("b", 2), 20)
    result = wire.delta()
    assert us(result.latency["itl"]) == (1, 10_000, 10_000)
    assert us(result.latency["chunk_gap"]) == (2, 4_000, 6_000)


def test_a_total_at_the_end_corrects_what_was_metered() -> None:
    wire = Wire().read(head() + text("abc"), 10)
    wire.read(text("defg"), 20)
    assert wire.client.output_tokens == 2
    wire.read(text("", finish="stop") + total(7) + DONE + END, 30)
    assert wire.client.output_tokens == 7
    assert wire.delta().output_tokens == 7


def test_the_request_is_not_kept_once_it_is_on_its_way() -> None:
    assert Wire().stream.wire == b""


def test_a_request_that_goes_late_is_timed_from_its_last_byte() -> None:
    wire = Wire()
    assert len(wire.client.send_lag_ns) == 1
    wire.channel.sent_late(25 * MS)
    wire.read(COMPLETE, 30)
    assert us(wire.delta().latency["ttft"]) == (1, 5_000, 5_000)
    assert wire.client.send_lag_ns[1] == 25 * MS


def test_reads_with_several_events_are_counted_with_the_time_before_them() -> None:
    wire = Wire().read(head() + text("a", 1) + text("b", 2), 100)
    wire.read(text("c", 3), 110)
    wire.read(text("d", 4) + text("e", 5) + text("f", 6), 140)
    delta = wire.delta()
    assert (delta.bursts, delta.burst_events, delta.burst_moments) == (2, 5, 2)
    assert delta.burst_gap_ns == 130 * MS
    assert (delta.first_bursts, delta.first_burst_events, delta.first_burst_gap_ns) == (1, 2, 100 * MS)
    assert (wire.client.coalesced_reads, wire.client.coalesced_ttfts) == (2, 1)


def test_a_burst_after_a_step_back_of_the_clock_has_no_gap() -> None:
    wire = Wire().read(head(), at_ms=10)
    wire.read(text("a"), at_ms=20)
    wire.read(text("b") + text("c"), at_ms=5)
    delta = wire.delta()
    assert (delta.bursts, delta.burst_gap_ns, delta.burst_events) == (0, 0, 0)


def test_tokens_that_a_stalled_server_sends_at_once_when_it_goes_on_are_no_burst() -> None:
    wire = Wire().read(head() + text("a", 1), 10)
    wire.read(text("b", 2) + text("c", 3), 40_000)
    assert (wire.delta().bursts, wire.delta().burst_events) == (0, 0)


def test_streams_that_one_late_moment_struck_count_it_once() -> None:
    one, other = Wire(), Wire()
    other.channel._client = one.client
    for wire, at_ms in ((one, 100), (other, 104)):
        wire.read(head() + text("a", 1) + text("b", 2), at_ms)
    assert (one.delta().burst_moments, other.delta().burst_moments) == (1, 0)


def failure_of(*reads: bytes, lost: bool = False) -> tuple[dict[str, int], dict[str, list[str]], bool]:
    wire = Wire()
    for number, data in enumerate(reads):
        wire.read(data, 10 * (number + 1))
    if lost:
        wire.channel.lost("reset", "connection lost")
    result = wire.delta()
    assert result.completed == 0
    assert len(wire.ended) == result.failed
    return result.errors, result.messages, wire.channel.usable


def plain(status: str, body: bytes) -> bytes:
    return head(status, framing=f"Content-Length: {len(body)}") + body


@pytest.mark.parametrize(
    ("kind", "reads", "lost", "usable"),
    [
        ("http_429", [plain("429 Too Many RequestQueue", b"slow down")], False, True),
        ("http_4xx", [plain("401 Unauthorized", b"who are you")], False, True),
        ("http_5xx", [plain("503 Service Unavailable", b"full")], False, True),
        # Without a length, and cut short: the status says it.
        ("http_5xx", [head("503 Service Unavailable", framing="Connection: close") + b"full"], True, False),
        ("http_429", [head("429 Too Many Requests", framing="Content-Length: 9") + b"slow"], True, False),
        ("reset", [b"HTTP/1.1 100 Continue\r\n\r\n"], True, False),
        ("protocol", [plain("302 Found", b"")], False, True),
        ("protocol", [b"SSH-2.0-OpenSSH_9.2\r\n"], False, False),
        ("protocol", [head() + END], False, True),
        ("truncated", [head(), text("a", 1), END], False, True),
        ("protocol", [plain("200 OK", b'{"choices": [{"text": "all at once"}]}')], False, True),
        ("bad_event", [head(), text("a", 1), chunk(b"data: {oops\n\n")], False, False),
        ("bad_event", [head(), chunk(b"data: 17\n\n")], False, False),
        ("engine_error", [head(), text("a", 1), event({"error": {"message": "engine died"}})], False, False),
        ("engine_error", [head(), event({"error": "engine died"})], False, False),
        ("empty", [head() + DONE + END], False, True),
        ("empty", [head(), text("", finish="stop") + DONE + END], False, True),
        ("reset", [head(), text("a", 1)], True, False),
        ("reset", [head() + b"5\r\nda"], True, False),
        ("reset", [], True, False),
    ],
)
def test_failures_are_data(kind: str, reads: list[bytes], lost: bool, usable: bool) -> None:
    errors, messages, still_usable = failure_of(*reads, lost=lost)
    assert errors == {kind: 1}
    assert messages[kind][0]
    assert still_usable == usable


def test_message_of_the_server_is_kept_and_harmless() -> None:
    _, messages, _ = failure_of(plain("400 Bad Request", b'{"error": "too large"}\x1b[2J\x1b]0;owned\x07\nnew line'))
    (message,) = messages["http_4xx"]
    assert message.startswith('HTTP 400: {"error": "too large"}')
    assert "\x1b" not in message and "\n" not in message


@pytest.mark.parametrize(
    ("reused", "retried", "sent_ms_ago", "is_sent_again"),
    [
        (True, False, 0, True),  # the server closed an idle connection
        (True, False, 3_000, False),  # it has had the request for long
        (True, True, 0, False),
        (False, False, 0, False),
    ],
)
def test_connection_that_dies_unanswered(reused: bool, retried: bool, sent_ms_ago: int, is_sent_again: bool) -> None:
    wire = Wire()
    if reused:
        wire.read(COMPLETE, 10).begin()
    wire.stream.retried = retried
    wire.stream.sent_ns = time.time_ns() - sent_ms_ago * MS
    wire.channel.lost("reset", "closed")
    assert wire.unanswered == ([wire.stream] if is_sent_again else [])
    assert wire.delta().errors == ({} if is_sent_again else {"reset": 1})


def test_a_request_that_is_sent_again_was_not_sent_late() -> None:
    wire = Wire()
    wire.client.send_lag_ns.clear()
    for retried in (True, False):
        wire.channel.begin(Stream(stage=0, samples=wire.samples, wire=b"POST", intended_ns=0, retried=retried))
        assert len(wire.client.send_lag_ns) == int(not retried)


def test_a_connection_that_closes_after_everything_arrived_is_complete() -> None:
    """HTTP/1.0 servers and sloppy proxies: the end of the connection is the end of the body."""
    wire = Wire().read(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", 5)
    wire.read(b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n', 10)
    wire.channel.lost("reset", "closed")
    assert wire.delta().completed == 1
    assert not wire.channel.usable


def test_connection_close_is_honoured() -> None:
    wire = Wire().read(head().replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), 5)
    wire.read(text("a", 1, "stop") + DONE + END, 10)
    assert wire.delta().completed == 1
    assert not wire.channel.usable


def test_a_clock_step_takes_the_times_and_leaves_the_counts() -> None:
    wire = Wire().read(head() + text("a", 1), 10)
    wire.stream.note_clock_step()
    wire.samples.note_clock_step()
    wire.read(text("b", 2, "stop") + DONE + END, 20)
    result = wire.delta()
    assert (result.completed, result.clock_steps, result.output_tokens) == (1, 1, 2)
    assert result.latency == {}


def test_bytes_that_nobody_requested_end_the_connection() -> None:
    wire = Wire().read(COMPLETE, 10)
    wire.read(b"HTTP/1.1 200 OK\r\n\r\n", 20)
    assert not wire.channel.usable


WHOLE = head() + delta(0, role="assistant", content="") + text("a", 1) + text("bc", 3) + chunk(b": ping\n\n")
WHOLE += text("", 4) + text("d\u00e9", 5, "stop") + total(5) + DONE + END


@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=10, unique=True))
def test_no_split_of_the_reads_changes_what_is_counted(places: list[int]) -> None:
    whole, split = Wire(), Wire()
    whole.read(WHOLE, 10)
    edges = [0, *sorted(places), len(WHOLE)]
    for low, high in pairwise(edges):
        split.read(WHOLE[low:high], 10)
    ours, theirs = split.delta(), whole.delta()
    assert ours == theirs
    assert split.client.output_tokens == whole.client.output_tokens == 5


JSON = b'{"choices": [{"text": "x"}], "usage": {"prompt_tokens": 7, "completion_tokens": %d}}'


def in_pieces(number: int) -> list[bytes]:
    """A chunk whose head comes in two reads, the second of which looks like a whole chunk."""
    inner = text("inner", number)
    filler = b": " + b"p" * (256 - 6) + b"\n\n"
    return [text("before") + b"1", inner, filler + b"\r\n"]


def pretender(number: int) -> list[bytes]:
    """A chunk that looks like another inside, right behind its head."""
    inner = text("inner", number)
    return [b"%x\r\n" % len(inner), inner, b"\r\n"]


FRAMES: list[Callable[[int], list[bytes]]] = [
    lambda number: [text("word", number)],
    lambda number: [text("", number)],
    lambda number: [delta(number, content="d\u00e9")],
    lambda number: [delta(number - 1, role="assistant", content="")],
    lambda _: [text("no usage")],
    lambda _: [text("long" * 400)],
    lambda _: [text("x" * 200) + text("y")],
    lambda _: [chunk(b": ping\n\n")],
    lambda _: [DONE],
    # Two events in a chunk, a comment behind one, an event in two chunks, other line ends, no end.
    lambda number: [chunk(b"data: " + JSON % number + b"\n\ndata: " + JSON % (number + 1) + b"\n\n")],
    lambda number: [chunk(b"data: " + JSON % number + b"\n\n: ping\n\n")],
    lambda number: [chunk(b"data: " + JSON[:20]), chunk(JSON[20:] % number + b"\n\n")],
    lambda number: [chunk(b"data: [\n"), text("x", number)],
    lambda number: [chunk(b"data: " + JSON % number + b"\r\n\r\n")],
    lambda number: [chunk(b"data: " + JSON % number + b"\n")],
    lambda number: [chunk(b"data: " + JSON % number + b"  ")],
    lambda _: [chunk(b"\n")],
    # Chunk heads as others write them, and what looks like a chunk inside of one.
    lambda number: [text("x", number).replace(b"\r\n", b" ;a=b\r\n", 1)],
    lambda number: [b"000" + text("zeros", number)],
    lambda number: [b"%X\r\ndata: %b\n\n\r\n" % (len(JSON % number) + 8, JSON % number)],
    pretender,
    in_pieces,
]


@example([FRAMES[0], pretender, FRAMES[0]], [], True)
@example([FRAMES[0], in_pieces, FRAMES[0]], [], True)
@settings(max_examples=100)
@given(
    st.lists(st.sampled_from(FRAMES), max_size=8),
    st.lists(st.floats(0, 1, exclude_max=True), max_size=3),
    st.booleans(),
)
def test_chunks_that_pass_the_parser_by_are_what_the_parser_sees(
    frames: list[Callable[[int], list[bytes]]], cuts: list[float], ends: bool
) -> None:
    """Some reads are cut in two; two answers on one connection, the second regular."""
    first = [head(), *(read for number, frame in enumerate(frames, 1) for read in frame(number))]
    if ends:
        first.append(text("end", len(frames) + 1, "stop") + DONE + END)
    size = len(b"".join(first))
    edges = {int(cut * size) for cut in cuts} | {0, *accumulate(map(len, first))}
    reads = [b"".join(first)[low:high] for low, high in pairwise(sorted(edges))]
    wire, slow = Wire(), Wire()
    for each, below in ((wire, events.EVENT_BELOW), (slow, 0)):
        with patch.object(channel_module, "EVENT_BELOW", below):
            for number, data in enumerate(reads):
                each.read(data, 10 * number + 1)
            if each.channel.usable and each.channel.stream is None:
                each.begin()
                for at_ms, data in [(1, head()), (2, text("a", 1)), (3, text("b", 2, "stop")), (4, DONE + END)]:
                    each.read(data, at_ms)
    assert wire.delta() == slow.delta()
    assert wire.client.output_tokens == slow.client.output_tokens
    assert wire.channel.usable == slow.channel.usable
    assert len(wire.ended) == len(slow.ended)


@given(st.lists(st.sampled_from(FRAMES), max_size=12), st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_a_stream_whose_answer_is_followed_is_timed_like_any_other(
    frames: list[Callable[[int], list[bytes]]], waits_ms: list[int]
) -> None:
    wire, followed = Wire(), Wire()
    followed.stream.pieces = []
    reads = [head(), *(b"".join(frame(number)) for number, frame in enumerate(frames, 1)), text("z") + DONE + END]
    for each in (wire, followed):
        at_ms = 10
        for data, wait_ms in zip(reads, [*waits_ms, 1, 1], strict=False):
            at_ms += wait_ms
            each.read(data, at_ms)
    assert followed.delta() == wire.delta()
    assert followed.client.output_tokens == wire.client.output_tokens
    assert not followed.ended[0].plain
    assert (len(followed.stream.pieces or []) > 0) == (followed.stream.first_ns > 0)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_garbage_never_breaks_us(body: bytes, places: list[int]) -> None:
    wire = Wire()
    edges = [0, *sorted(place for place in places if place < len(body)), len(body)]
    for low, high in pairwise(edges):
        if wire.channel.stream is not None:
            wire.read(body[low:high], 10)
    if wire.channel.stream is not None:
        wire.channel.lost("reset", "over")
    assert len(wire.ended) == 1


def test_an_error_of_ours_is_not_the_servers() -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError

    channel = Channel(ClientSamples(), fault, fault)
    channel.write = lambda _: True
    channel.usable = True
    channel.begin(Stream(stage=0, samples=StageSamples(), wire=b"POST", intended_ns=0))
    with pytest.raises(ZeroDivisionError):
        channel.feed(head("500 Internal Server Error", framing="Content-Length: 0"), 1)
