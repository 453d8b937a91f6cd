"""Bytes over real sockets: kernel stamps, IPv4 and IPv6, TLS, and connections that fail."""

import asyncio
import gc
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

import pytest
import uvloop

from loadgen.stream.channel import Channel
from loadgen.stream.request import ServerAddress
from loadgen.stream.samples import ClientSamples, StageSamples
from loadgen.stream.stream import Stream
from loadgen.stream.transport import Sockets
from tests.conftest import Certificate
from tests.server.fakes import eventually

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
EVENT = b'data: {"choices": [{"text": "a"}]}\n\n'
ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
)
BIG = b"POST / HTTP/1.1\r\n\r\n" + b"x" * 20_000_000


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(ANSWER)
    writer.close()


_opened: list[Sockets] = []


def open_sockets(client: ClientSamples) -> Sockets:
    """Closed at the end of the test."""
    _opened.append(Sockets(client))
    return _opened[-1]


@pytest.fixture(autouse=True)
async def closes_sockets() -> AsyncIterator[None]:
    yield
    while _opened:
        _opened.pop().close()


class Client:
    """A channel and an event for the end of its stream; as many more on the same sockets as a test wants."""

    def __init__(self, sockets: Sockets | None = None, client: ClientSamples | None = None) -> None:
        self.client = client or ClientSamples()
        self.samples = StageSamples()
        self.over = asyncio.Event()
        self.sockets = sockets or open_sockets(self.client)
        self.channel = Channel(self.client, self.ended, self.ended)

    def ended(self, *_: object) -> None:
        self.over.set()

    async def begin(self, target: ServerAddress, tls: ssl.SSLContext | None = None, wire: bytes = b"POST") -> Stream:
        await self.sockets.connect(self.channel, target, tls)
        stream = Stream(stage=0, samples=self.samples, wire=wire, intended_ns=time.time_ns())
        self.channel.begin(stream)
        return stream

    async def exchange(self, target: ServerAddress, tls: ssl.SSLContext | None = None, wire: bytes = b"POST") -> Stream:
        stream = await self.begin(target, tls, wire)
        await self.over.wait()
        self.channel.close()
        return stream


def reset(server: socket.socket) -> None:
    """Close it so that the other side is told of a broken connection."""
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.close()


async def serve(
    handler: Serve, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> tuple[asyncio.Server, ServerAddress]:
    server = await asyncio.start_server(handler, host, 0, ssl=tls)
    address = server.sockets[0].getsockname()
    family = server.sockets[0].family
    return server, ServerAddress(int(family), address[0], address[1], "localhost" if tls else None)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_reads_carry_the_kernels_stamp(host: str) -> None:
    server, target = await serve(answer, host)
    async with server:
        open_sockets(ClientSamples())
        # Stamping is switched on in the background: the first reads can still come without.
        for _ in range(100):
            client = Client()
            await client.exchange(target)
            if client.client.unstamped_reads == 0:
                break
    assert client.samples.completed == 1
    assert client.client.unstamped_reads == 0
    assert client.client.reads > 0
    assert len(client.client.read_lag_ns) == 1
    assert client.client.read_lag_ns[0] >= 0
    assert 0 < client.samples.ttft_ns[0] < 10_000_000_000


async def test_tls_is_stamped_in_user_space_and_counted(certificate: Certificate) -> None:
    server, target = await serve(answer, tls=certificate.server)
    async with server:
        client = Client()
        await client.exchange(target, certificate.client)
    assert client.samples.completed == 1
    assert client.client.reads == client.client.unstamped_reads > 0
    assert client.client.read_lag_ns == []


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_closed_connection_leaves_nothing_for_the_collector(encrypted: bool, certificate: Certificate) -> None:
    """A worker collects rarely, and at 1,024 streams closes as many connections when the load is halved."""
    server, target = await serve(answer, tls=certificate.server if encrypted else None)
    sockets = open_sockets(ClientSamples())
    gc.collect()
    gc.disable()
    try:
        async with server:
            for _ in range(3):
                client = Client(sockets)
                await client.exchange(target, certificate.client if encrypted else None)
                del client.channel  # a worker's driver keeps no channel that is not usable
            await eventually(lambda: not any(isinstance(one, Channel) for one in gc.get_objects()))
    finally:
        gc.enable()


async def test_a_certificate_that_nobody_signed_is_refused(certificate: Certificate) -> None:
    server, target = await serve(answer, tls=certificate.server)
    async with server:
        with pytest.raises(OSError, match="certificate verify failed"):
            await Client().exchange(target, ssl.create_default_context())


async def test_nobody_listening() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        target = ServerAddress(int(socket.AF_INET), *taken.getsockname())
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
    assert client.samples.errors == {"reset": 1}


def test_a_connection_that_dies_right_after_its_last_bytes_is_a_reset() -> None:
    async def die() -> Client:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = Client()
            await client.begin(ServerAddress(int(socket.AF_INET), *listener.getsockname()))
            server, _ = listener.accept()
            # Both are there before the loop turns.
            server.sendall(ANSWER[:60])
            reset(server)
            async with asyncio.timeout(20):
                await client.over.wait()
        _opened.pop().close()
        return client

    assert uvloop.run(die()).samples.errors == {"reset": 1}


@pytest.mark.parametrize("encrypted", [False, True])
async def test_large_request_is_sent_with_its_last_byte(encrypted: bool, certificate: Certificate) -> None:
    wanted, received = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await wanted.wait()
        received.set_result((time.time_ns(), len(await reader.readexactly(len(BIG)))))
        writer.write(ANSWER)
        writer.close()

    server, target = await serve(count, tls=certificate.server if encrypted else None)
    async with server:
        client = Client()
        stream = await client.begin(target, certificate.client if encrypted else None, wire=BIG)
        at_first_ns = stream.sent_ns
        assert client.client.send_lag_ns == []
        assert (stream.wire, client.sockets.unsent_bytes) == (b"", len(BIG))
        wanted.set()
        await client.over.wait()
        client.channel.close()
    assert client.sockets.unsent_bytes == 0
    wanted_ns, size = received.result()
    assert size == len(BIG)
    assert client.samples.completed == 1
    assert stream.sent_ns > wanted_ns > at_first_ns
    assert client.client.send_lag_ns == [stream.sent_ns - stream.due_ns]
    assert client.samples.ttft_ns == [stream.first_ns - stream.sent_ns]


async def test_request_refused_before_it_was_read_is_not_late() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await over.wait()
        writer.close()

    over = asyncio.Event()
    server, target = await serve(refuse)
    async with server:
        client = Client()
        stream = await client.begin(target, wire=BIG)
        at_first_ns = stream.sent_ns
        await client.over.wait()
        assert client.sockets.unsent_bytes == len(BIG)
        client.channel.close()
        over.set()
    assert client.samples.errors == {"http_4xx": 1}
    assert client.sockets.unsent_bytes == 0
    assert stream.sent_ns == at_first_ns
    assert client.client.send_lag_ns == []


class NotedChannel(Channel):
    """Says when it is fed."""

    note: Callable[[], None] = staticmethod(lambda: None)

    def feed(self, data: bytes, stamp_ns: int) -> None:
        self.note()
        super().feed(data, stamp_ns)


async def streams_of(
    listener: socket.socket, count: int, read: Callable[[int], None] = lambda _: None
) -> list[tuple[Client, socket.socket]]:
    """Connections of one worker, each with a stream on it, and the server's ends; `read` is told of each read."""
    shared = ClientSamples()
    sockets = open_sockets(shared)
    pairs = []
    for number in range(count):
        client = Client(sockets, shared)
        noted = NotedChannel(shared, client.ended, client.ended)
        noted.note = partial(read, number)
        client.channel = noted
        await client.begin(ServerAddress(int(socket.AF_INET), *listener.getsockname()))
        pairs.append((client, listener.accept()[0]))
    return pairs


def close_all(pairs: list[tuple[Client, socket.socket]]) -> None:
    for client, server in pairs:
        client.channel.close()
        server.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listening:
        yield listening


@pytest.mark.parametrize("replaced", [False, True])
async def test_one_of_a_batch_may_close_the_next(replaced: bool, listener: socket.socket) -> None:
    """Both are ready; the first to be read closes the other, whose number another socket may take."""
    others: list[socket.socket] = []

    def close_the_other(number: int) -> None:
        other = pairs[1 - number][0].channel
        if other.stream is not None:
            other.close()
            if replaced:
                others.append(socket.create_connection(listener.getsockname()))

    pairs = await streams_of(listener, 2, close_the_other)
    for _, server in pairs:
        server.sendall(ANSWER)
        server.close()
    async with asyncio.timeout(20):
        over = [asyncio.ensure_future(client.over.wait()) for client, _ in pairs]
        await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        for waiting in over:
            waiting.cancel()
    assert sum(client.samples.completed for client, _ in pairs) == 1
    close_all(pairs)
    for sock in others:
        sock.close()


async def test_streams_of_a_batch_that_break_fail_each_for_itself(listener: socket.socket) -> None:
    pairs = await streams_of(listener, 40)
    for number, (_, server) in enumerate(pairs):
        if number % 2:
            server.sendall(ANSWER)
            server.close()
        else:
            reset(server)
    async with asyncio.timeout(20):
        for client, _ in pairs:
            await client.over.wait()
    assert [client.samples.completed for client, _ in pairs] == [0, 1] * 20
    assert [client.samples.errors for client, _ in pairs] == [{"reset": 1}, {}] * 20
    close_all(pairs)


async def test_first_tokens_are_read_before_others_of_a_large_batch(listener: socket.socket) -> None:
    order: list[int] = []
    pairs = await streams_of(listener, 64, lambda number: order.append(number))
    for _, server in pairs[:60]:
        server.sendall(HEAD + EVENT)
    await eventually(lambda: len(order) == 60)
    order.clear()
    for _, server in pairs[:60]:
        server.sendall(EVENT)
    for _, server in pairs[60:]:
        server.sendall(HEAD + EVENT)
    await eventually(lambda: len(order) == 64)
    assert set(order[:4]) == {60, 61, 62, 63}
    close_all(pairs)


async def test_a_first_request_that_the_kernel_sent_again_is_counted() -> None:
    """The client believes itself connected, but the server's queue is full and drops connection and request."""
    with socket.create_server(("127.0.0.1", 0), backlog=2) as listener:
        # A connection enters the queue, which holds three, with its first data, after the client has seen a handshake.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 10)
        shared = ClientSamples()
        clients: list[Client] = []
        for _ in range(2):
            clients += await two_at_once(listener, shared)
        listener.setblocking(False)
        for _ in clients:
            server, _ = await asyncio.get_running_loop().sock_accept(listener)
            with server:
                server.sendall(ANSWER)
                server.shutdown(socket.SHUT_WR)
        for client in clients:
            await client.over.wait()
            client.channel.close()
    assert sum(client.samples.completed for client in clients) == 4
    assert shared.resent_requests == 1


async def two_at_once(listener: socket.socket, shared: ClientSamples) -> list[Client]:
    """Two connections, and then a request on each."""
    clients = [Client(open_sockets(shared), shared) for _ in range(2)]
    for client in clients:
        await client.sockets.connect(client.channel, ServerAddress(int(socket.AF_INET), *listener.getsockname()), None)
    for client in clients:
        client.channel.begin(Stream(stage=0, samples=client.samples, wire=b"POST", intended_ns=time.time_ns()))
    return clients
