"""Which stage a stream's times and its end count in, while stages begin and end around it."""

from collections.abc import Callable

import pytest

from loadgen.schema.deltas import StageDelta
from loadgen.stream.samples import StageSamples, StreamLimits
from loadgen.stream.stream import MIN_PART_TOKENS, Stream
from tests.stream.test_channel import DONE, END, MS, Wire, event, head, text, us


def events(wire: Wire, *, first: int, count: int, at_ms: float, every_ms: float = 10.0) -> float:
    """So many tokens in single events; returns the time of the last."""
    for number in range(count):
        wire.read(text("x", first + number), at_ms + number * every_ms)
    return at_ms + (count - 1) * every_ms


def reopened(samples: StageSamples, stream: Stream, at_ms: float) -> StageSamples:
    """The window of another stage, opened at a time of the test's own."""
    samples.open()
    samples.opened_ns = int(at_ms * MS)
    stream.enter_window(samples)
    return samples


def next_stage(wire: Wire, at_ms: float) -> tuple[StageDelta, StageSamples]:
    """End the stage of the stream, begin another; what the ended one has measured, and the new one's samples."""
    wire.stream.leave_window(int(at_ms * MS))
    ended = wire.samples.drain()
    return ended, reopened(StageSamples(is_open=False), wire.stream, at_ms)


def test_each_stage_has_the_gaps_and_the_part_that_lie_in_it() -> None:
    wire = Wire().read(head(), 40)
    last_ms = events(wire, first=1, count=10, at_ms=50, every_ms=10)
    ended, samples = next_stage(wire, last_ms + 5)
    assert us(ended.latency["itl"]) == (9, 10_000, 10_000)
    assert us(ended.latency["tpot"]) == (1, 10_000, 10_000)
    assert (ended.sent, ended.completed, ended.carried_over, ended.tpot_parts) == (0, 0, 1, 1)
    # The gap over the end of the stage is of two loads, and belongs to none of them.
    events(wire, first=11, count=10, at_ms=last_ms + 30, every_ms=30)
    wire.read(text("x", 21, "length") + DONE + END, last_ms + 30 + 9 * 30 + 30)
    found = samples.drain()
    assert us(found.latency["itl"]) == (10, 30_000, 30_000)
    assert us(found.latency["tpot"]) == (1, 30_000, 30_000)
    assert (found.completed, found.output_tokens, found.tpot_parts) == (0, 0, 1)
    assert "e2e" not in found.latency and "ttft" not in found.latency


def test_a_short_part_has_no_tpot() -> None:
    wire = Wire().read(head(), 40)
    last_ms = events(wire, first=1, count=MIN_PART_TOKENS, at_ms=50)
    ended, _ = next_stage(wire, last_ms + 5)
    assert "tpot" not in ended.latency and ended.tpot_parts == 0


def test_bytes_that_came_before_the_window_are_not_in_it() -> None:
    wire = Wire().read(head(), 40)
    last_ms = events(wire, first=1, count=2, at_ms=50)
    _, samples = next_stage(wire, last_ms + 50)
    # They were read after the window had been opened.
    events(wire, first=3, count=3, at_ms=last_ms + 10)
    events(wire, first=6, count=3, at_ms=last_ms + 60, every_ms=20)
    assert us(samples.drain().latency["itl"]) == (2, 20_000, 20_000)


def test_a_stream_still_waiting_is_censored_at_its_waiting_time() -> None:
    wire = Wire()
    wire.samples.limits = StreamLimits(ttft_ns=20 * MS)
    wire.stream.sent_ns = 1
    ended, samples = next_stage(wire, 30)
    assert us(ended.latency["ttft_censored"]) == us(ended.latency["e2e_censored"]) == (1, 30_000, 30_000)
    assert (ended.carried_over, ended.beyond) == (1, 1)
    # Its first token is no TTFT of a stage in which it was not sent.
    wire.read(head() + text("a", 1, "stop") + DONE + END, 90)
    found = samples.drain()
    assert us(found.latency["warmup_ttft"]) == (1, 90_000, 90_000)
    assert set(found.latency) == {"warmup_ttft"} and found.completed == 0


@pytest.mark.parametrize("end", [Stream.cancel, Stream.cut_off])
def test_who_ends_before_the_first_token_has_waited_at_least_so_long(end: Callable[[Stream, int], None]) -> None:
    wire = Wire()
    wire.samples.limits = StreamLimits(ttft_ns=20 * MS)
    wire.stream.sent_ns = 1
    end(wire.stream, 30 * MS)
    ended = wire.delta()
    assert set(ended.latency) == {"ttft_censored", "ttft_from_intended_censored", "e2e_censored"}
    assert {us(waits) for waits in ended.latency.values()} == {(1, 30_000, 30_000)}
    assert (ended.cancelled + ended.unfinished, ended.beyond) == (1, 1)


def test_who_hangs_up_later_would_have_taken_longer() -> None:
    wire = Wire()
    wire.samples.limits = StreamLimits(ttft_ns=20 * MS)
    wire.stream.sent_ns = 1
    wire.read(head() + text("a", 1), 10)
    wire.stream.cancel(30 * MS)
    ended = wire.delta()
    assert set(ended.latency) == {"ttft", "ttft_from_intended", "e2e_censored"}
    assert us(ended.latency["e2e_censored"]) == (1, 30_000, 30_000)
    assert (ended.cancelled, ended.beyond) == (1, 0)


@pytest.mark.parametrize("kind", ["first_wave", "clock_stepped", "carried", "unsent", "warmup"])
def test_other_streams_on_which_the_client_hangs_up_leave_no_wait(kind: str) -> None:
    wire = Wire()
    wire.stream.sent_ns = int(kind != "unsent")
    wire.stream.first_wave, wire.stream.clock_stepped = kind == "first_wave", kind == "clock_stepped"
    wire.stream.measured = kind != "warmup"
    if kind == "carried":
        wire.stream.leave_window(20 * MS)
        wire.delta()
    wire.stream.cancel(30 * MS)
    assert not [name for name in wire.delta().latency if name.endswith("censored")]


def test_a_stream_that_fails_after_its_stage_fails_in_the_next() -> None:
    wire = Wire()
    ended, samples = next_stage(wire, 30)
    wire.channel.lost("reset", "gone")
    found = samples.drain()
    assert (ended.failed, ended.carried_over) == (0, 1)
    assert (found.failed, found.carried_failed, found.errors) == (0, 1, {"reset": 1})


def test_the_ttft_of_a_stream_that_fails_later_is_known_as_such() -> None:
    wire = Wire()
    wire.stream.sent_ns = 1
    wire.read(head() + text("a", 1), 20)
    wire.channel.lost("reset", "gone")
    found = wire.delta()
    assert us(found.latency["ttft_failed"]) == us(found.latency["ttft"]) == (1, 20_000, 20_000)
    assert us(found.latency["ttft_from_intended_failed"]) == us(found.latency["ttft_from_intended"])


def test_events_of_several_tokens_without_usage_make_no_parts() -> None:
    wire = Wire()
    usage = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 90}})
    wire.read(head() + text("a" * 90), 10)
    wire.read(text("b" * 90, None, "stop") + usage + DONE + END, 20)
    wire.begin()
    wire.read(head(), 40)
    for number in range(20):
        wire.read(text("abc"), 50 + 10 * number)
    ended, _ = next_stage(wire, 300)
    assert ended.tpot_parts == 0 and us(ended.latency["tpot"])[0] == 1


def test_the_first_wave_is_distinguished() -> None:
    wire = Wire()
    wire.samples.first_wave_waiting = 1
    stream = Stream(stage=0, samples=wire.samples, wire=b"POST", intended_ns=0, first_wave=True)
    wire.channel.begin(stream)
    stream.sent_ns = stream.last_ns = 0
    wire.read(head() + text("a", 1), 50)
    assert wire.samples.first_wave_waiting == 0
    wire.read(text("b", 2, "stop") + DONE + END, 60)
    found = wire.delta()
    assert us(found.latency["first_wave_ttft"]) == (1, 50_000, 50_000)
    assert set(found.latency) == {"first_wave_ttft"}
    assert (found.completed, found.output_tokens) == (1, 2)


def test_a_first_wave_that_fails_is_not_awaited() -> None:
    samples = StageSamples()
    samples.first_wave_waiting = 3
    ends: list[Callable[[Stream], None]] = [
        lambda one: one.fail("connect", "refused"),
        lambda one: one.cancel(30),
        lambda one: one.cut_off(30),
    ]
    for end in ends:
        end(Stream(stage=0, samples=samples, wire=b"", intended_ns=0, first_wave=True))
    assert samples.first_wave_waiting == 0


def test_whole_streams_only_where_requests_bound_the_stage() -> None:
    wire = Wire().read(head(), 40)
    last_ms = events(wire, first=1, count=3, at_ms=50)
    wire.stream.leave_window(int((last_ms + 5) * MS))
    samples = reopened(StageSamples(is_open=False, whole_only=True), wire.stream, last_ms + 5)
    events(wire, first=4, count=20, at_ms=last_ms + 10)
    wire.read(text("x", 24, "stop") + DONE + END, last_ms + 500)
    assert samples.drain().latency == {}


def test_warm_up_streams_have_only_gaps_in_the_window() -> None:
    wire = Wire()
    wire.samples.is_open = False
    wire.stream.measured, wire.stream.warmup = False, True
    wire.read(head(), 5)
    last_ms = events(wire, first=1, count=4, at_ms=50)
    reopened(wire.samples, wire.stream, last_ms + 1)
    events(wire, first=5, count=3, at_ms=last_ms + 20)
    found = wire.delta()
    assert us(found.latency["itl"]) == (2, 10_000, 10_000)
    assert us(found.latency["warmup_ttft"]) == (1, 50_000, 50_000)
    assert "ttft" not in found.latency
