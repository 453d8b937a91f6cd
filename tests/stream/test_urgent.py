"""What cannot wait comes between: before a read is parsed, and between the histograms of a tick, without any loss."""

import asyncio
import socket

from loadgen.stream.channel import Channel
from loadgen.stream.request import ServerAddress
from loadgen.stream.samples import ClientSamples, StageSamples
from loadgen.stream.stream import Stream
from loadgen.stream.transport import Sockets
from tests.server.fakes import eventually


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
