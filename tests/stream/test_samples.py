"""What a tick makes of the samples of a stage."""

import asyncio
import socket
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage import StageMetrics
from loadgen.stream.channel import Channel
from loadgen.stream.request import ServerAddress
from loadgen.stream.samples import ClientSamples, StageSamples, StreamLimits
from loadgen.stream.stream import Stream
from loadgen.stream.transport import Sockets
from tests.server.fakes import eventually
from tests.stream.test_channel import DONE, END, Wire, head, text, us

MS = 1_000_000
gaps = st.integers(0, 10**9)


@given(st.lists(gaps, max_size=5), st.lists(gaps, min_size=1, max_size=5), st.integers(1, 2))
def test_chunk_gaps_are_distinguished_only_where_they_differ(plain: list[int], odd: list[int], tokens: int) -> None:
    samples, by_hand = StageSamples(), StageSamples()
    samples.gaps_ns.extend(plain)
    samples.odd_gaps.extend((gap, gap, tokens) for gap in odd)
    by_hand.gaps_ns.extend([*plain, *(gap // tokens for gap in odd for _ in range(tokens))])
    delta = samples.drain()
    assert ("chunk_gap" in delta.latency) == (tokens > 1)
    metrics = StageMetrics.of(delta)
    assert metrics.latency["itl"] == Histogram.decode(by_hand.drain().latency["itl"])
    assert metrics.latency["chunk_gap"].count == len(plain) + len(odd)


@given(st.integers(0, 10**10))
@example(35840)
def test_lags_are_rounded_by_a_32nd_at_most(lag_ns: int) -> None:
    client = ClientSamples()
    client.read_lag_ns.append(lag_ns)
    client.send_lag_ns.append(lag_ns)
    delta = client.drain(0)
    assert delta.read_lag is not None and delta.read_lag == delta.send_lag
    rounding_us = lag_ns / 1000 / 32 + 1  # to a 32nd, and then to whole microseconds
    assert delta.read_lag.sum_us == pytest.approx(lag_ns / 1000, rel=0, abs=rounding_us)


async def test_it_comes_before_each_read_of_a_stream() -> None:
    client, over = ClientSamples(), asyncio.Event()
    channel = Channel(client, lambda *_: over.set(), lambda *_: over.set())
    sockets = Sockets(client)
    seen: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sockets.send_due = lambda: seen.append(channel.stream.events if channel.stream is not None else -1)
        await sockets.connect(channel, ServerAddress(int(socket.AF_INET), *listener.getsockname()), None)
        channel.begin(Stream(stage=0, samples=StageSamples(), wire=b"POST", intended_ns=0))
        server, _ = listener.accept()
        server.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b'data: {"choices": [{"text": "a"}]}\n\n')
        await eventually(lambda: bool(channel.stream and channel.stream.events))
        server.close()
        await over.wait()
    sockets.close()
    assert seen == [0, 1]


def test_requests_sent_while_a_tick_is_drained_are_counted_once() -> None:
    samples, client = StageSamples(), ClientSamples()
    samples.ttft_ns.append(5_000_000)
    client.read_lag_ns.append(1000)
    sent = 0

    def send() -> None:
        nonlocal sent
        sent += 1
        samples.sent += 1
        client.send_lag_ns.append(1000)

    counted, lags, timed = 0, 0, 0
    for send_due in (send, send, lambda: None):
        stage, delta = samples.drain(send_due), client.drain(0, 0, send_due)
        counted += stage.sent
        lags += delta.send_lag.count if delta.send_lag is not None else 0
        timed += stage.latency["ttft"].count if "ttft" in stage.latency else 0
    assert (counted, lags) == (sent, sent)
    assert sent > 10
    assert timed == 1


def test_streams_completed_before_a_clock_step_have_no_times() -> None:
    wire = Wire()
    wire.samples.limits, wire.samples.rows = StreamLimits(ttft_ns=20 * MS), []
    wire.samples.tpot_parts = 1
    wire.read(head() + text("a", 1), 10)
    wire.read(text("b", 2, "stop") + DONE + END, 20)
    assert wire.samples.good == 1
    wire.samples.note_clock_step()
    (row,) = wire.samples.rows
    result = wire.delta()
    assert (result.completed, result.clock_steps, result.good, result.tpot_parts) == (1, 1, 0, 0)
    assert result.latency == {}
    assert (row.outcome, row.ttft_ms, row.tpot_ms, row.e2e_ms) == ("completed", None, None, None)


def test_gaps_are_recorded_at_once_after_the_clock_was_stepped_back() -> None:
    wire = Wire()
    wire.samples.opened_ns = 1 << 62
    wire.samples.note_clock_step()
    now_ns = time.time_ns()
    for number, data in enumerate([head() + text("a", 1), text("b", 2), text("c", 3)]):
        wire.channel.feed(data, now_ns + 10 * number * MS)
    assert us(wire.delta().latency["itl"]) == (2, 10_000, 10_000)
