"""What a tick makes of the samples of a stage."""

import asyncio
import socket

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage import StageMetrics
from loadgen.stream.channel import Channel
from loadgen.stream.request import ServerAddress
from loadgen.stream.samples import ClientSamples, StageSamples
from loadgen.stream.stream import Stream
from loadgen.stream.transport import Sockets
from tests.server.fakes import eventually

MS = 1_000_000
gaps = st.integers(0, 10**9)


@given(st.lists(gaps, max_size=5), st.lists(gaps, min_size=1, max_size=5), st.integers(1, 2))
def test_chunk_gaps_are_told_apart_only_where_they_differ(plain: list[int], odd: list[int], tokens: int) -> None:
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
