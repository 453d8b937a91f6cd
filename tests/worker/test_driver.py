"""A worker's driver against servers that read late, hang up, or listen with a short queue."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from loadgen.plan.stage import Stage
from loadgen.stream.request import ServerAddress, common_fields, request_template
from loadgen.worker import driver as driver_module
from loadgen.worker.driver import Driver
from loadgen.worker.messages import BeginStage, Configure, Vocabulary, prompts_of
from tests.server.fakes import eventually

_EVENTS = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(_EVENTS), _EVENTS)


def settings(listener: socket.socket, **changes: object) -> Configure:
    address = ServerAddress(int(listener.family), *listener.getsockname()[:2])
    given: dict[str, object] = {"timeout_s": 60, "stall_timeout_s": 60, "connect_timeout_s": 10}
    return Configure(address=address, vocabulary=Vocabulary(ids=(10, 11, 12)), seed=1, **given | changes)  # type: ignore[arg-type]


@asynccontextmanager
async def driven(configured: Configure, stage: Stage, *, ranks: int = 1) -> AsyncIterator[Driver]:
    """A driver whose stage has been told to begin."""
    driver = Driver(configured, prompts_of(configured.vocabulary, configured.seed), None)
    fields = common_fields("completions", model="m", temperature=0.0, options={}, extra={})
    url = f"http://{configured.address.ip}:{configured.address.port}"
    template = request_template(url, "completions", fields, osl=stage.osl, api_key=None)
    driver.begin_stage(
        BeginStage(index=0, stage=stage, template=template, rank=0, ranks=ranks, start_ns=time.monotonic_ns())
    )
    try:
        yield driver
    finally:
        driver.end_load(abort=True)
        driver.sockets.close()


@asynccontextmanager
async def serving(answer: Callable[[bytes], bool], reads: asyncio.Event) -> AsyncIterator[socket.socket]:
    """A server that reads once `reads` is set, and hangs up on a request that `answer` declines.

    At the end its connections are over, because the client has closed them.
    """
    tasks: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reads.wait()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while answer(await read_request(reader)):
                writer.write(ANSWER)
        writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(handle(reader, writer)))

    listener = socket.create_server(("127.0.0.1", 0))
    async with await asyncio.start_server(accepted, sock=listener):
        yield listener
        await asyncio.gather(*tasks)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return await reader.readexactly(length)


def finished(driver: Driver) -> bool:
    return driver.current is not None and driver.current.finished


async def test_long_prompts_are_sent_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads at first: what the kernel does not take stays in memory, but not of all streams."""
    monkeypatch.setattr(driver_module, "MOST_UNSENT_BYTES", 20_000_000)
    reads = asyncio.Event()
    sizes: list[int] = []

    def answer(body: bytes) -> bool:
        sizes.append(len(body))
        return True

    stage = Stage(concurrency=12, rate=None, isl=3_000_000, osl=1, requests=12)
    async with serving(answer, reads) as listener, driven(settings(listener), stage) as driver:
        await eventually(lambda: driver.sockets.unsent_bytes > 20_000_000)
        assert len(driver.open) < 12
        assert driver.sockets.unsent_bytes < 40_000_000
        assert all(channel.stream is not None and channel.stream.wire == b"" for channel in driver.open)
        reads.set()
        await eventually(lambda: finished(driver))
        assert (len(sizes), min(sizes) > 9_000_000, driver.sockets.unsent_bytes) == (12, True, 0)
        assert driver.stages[0].drain().completed == 12


async def test_a_request_is_written_again_where_an_idle_connection_was_closed() -> None:
    """The second request finds its connection closed before any answer, as by a server's keep-alive timeout."""
    reads = asyncio.Event()
    bodies: list[bytes] = []

    def answer(body: bytes) -> bool:
        bodies.append(body)
        return len(bodies) != 2

    reads.set()
    stage = Stage(concurrency=1, rate=None, isl=16, osl=1, requests=2)
    async with serving(answer, reads) as listener, driven(settings(listener), stage) as driver:
        await eventually(lambda: finished(driver))
        delta = driver.stages[0].drain()
    assert (delta.completed, delta.failed, delta.retried) == (2, 0, 1)
    assert (len(bodies), bodies[1]) == (3, bodies[2])
