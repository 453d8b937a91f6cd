"""Bytes over real sockets: kernel stamps, IPv4 and IPv6, TLS, and connections that fail."""

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable

import pytest
import trustme
import uvloop

from loadgen.stream.channel import Channel
from loadgen.stream.stream import Stream
from loadgen.stream.tally import Meter, Tally
from loadgen.stream.transport import Target, connect, hold_timestamps

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
)
BIG = b"POST / HTTP/1.1\r\n\r\n" + b"x" * 20_000_000


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(ANSWER)
    writer.close()


class Client:
    """A channel and an event for the end of its stream."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.tally = Tally()
        self.over = asyncio.Event()
        self.channel = Channel(self.meter, lambda *_: self.over.set(), lambda *_: self.over.set())

    async def exchange(self, target: Target, tls: ssl.SSLContext | None = None, wire: bytes = b"POST") -> None:
        await connect(self.channel, target, self.meter, tls)
        self.channel.begin(Stream(stage=0, tally=self.tally, wire=wire, intended_ns=time.time_ns()))
        await self.over.wait()
        self.channel.close()


async def serve(
    handler: Serve, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> tuple[asyncio.Server, Target]:
    server = await asyncio.start_server(handler, host, 0, ssl=tls)
    address = server.sockets[0].getsockname()
    family = server.sockets[0].family
    return server, Target(int(family), address[0], address[1], "localhost" if tls else None)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_reads_carry_the_kernels_stamp(host: str) -> None:
    server, target = await serve(answer, host)
    async with server:
        with hold_timestamps():
            # Switched on in the background: the first reads can still come without.
            for _ in range(100):
                client = Client()
                await client.exchange(target)
                if client.meter.unstamped_reads == 0:
                    break
    assert client.tally.completed == 1
    assert client.meter.unstamped_reads == 0
    assert all(lag_ns >= 0 for lag_ns in client.meter.read_lag_ns)
    assert 0 < client.tally.ttft_ns[0] < 10_000_000_000


async def test_tls_is_stamped_in_user_space_and_counted() -> None:
    authority = trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server_side)
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)
    server, target = await serve(answer, tls=server_side)
    async with server:
        client = Client()
        await client.exchange(target, client_side)
    assert client.tally.completed == 1
    assert client.meter.unstamped_reads > 0
    assert client.meter.read_lag_ns == []


async def test_a_certificate_that_nobody_signed_is_refused() -> None:
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(server_side)
    server, target = await serve(answer, tls=server_side)
    async with server:
        with pytest.raises(OSError, match="certificate verify failed"):
            await Client().exchange(target, ssl.create_default_context())


async def test_nobody_listening() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        target = Target(int(socket.AF_INET), *taken.getsockname())
        with pytest.raises(ConnectionRefusedError):
            await Client().exchange(target)


async def test_a_connection_that_dies_is_a_reset() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.transport.abort()

    server, target = await serve(hang_up)
    async with server:
        client = Client()
        await client.exchange(target)
    assert client.tally.errors == {"reset": 1}


def test_a_connection_that_dies_right_after_its_last_bytes_is_a_reset() -> None:
    async def die() -> Client:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client, read = Client(), asyncio.Event()
            client.channel.urgent = read.set
            await connect(client.channel, Target(int(socket.AF_INET), *listener.getsockname()), client.meter, None)
            client.channel.begin(Stream(stage=0, tally=client.tally, wire=b"POST", intended_ns=time.time_ns()))
            server, _ = listener.accept()
            # Both are there before the loop turns.
            server.sendall(ANSWER[:60])
            server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            server.close()
            async with asyncio.timeout(20):
                await read.wait()
                client.channel.look()
                await client.over.wait()
        return client

    assert uvloop.run(die()).tally.errors == {"reset": 1}


async def test_a_request_larger_than_the_socket_takes_goes_out_whole() -> None:
    received = asyncio.get_running_loop().create_future()

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(len(await reader.readexactly(len(BIG))))
        writer.write(ANSWER)
        writer.close()

    server, target = await serve(count)
    async with server:
        client = Client()
        await client.exchange(target, wire=BIG)
    assert received.result() == len(BIG)
    assert client.tally.completed == 1
