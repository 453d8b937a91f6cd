"""Garbage over real sockets: after any of it the next client is answered, and nothing is printed.

`python -m tests.fuzz.test_sockets 3000` sends that many inputs to each.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from loadgen.run.metrics_port import MetricsPort
from loadgen.run.operations import Operation
from loadgen.run.remote import SOCKET, Hello, SnapshotServer, _line
from tests.fuzz.mutator import Mutator
from tests.fuzz.readers import READERS, corpus_of
from tests.tui.scripted import running
from tests.tui.web.test_server import door

_FEW = 25
_PATIENCE_S = 30.0
_Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def _send_all(connect: _Connect, name: str, count: int, seed: int, *seeds: bytes) -> None:
    """Each input on a connection of its own, whose answer is read to its end; the seeds as they are, too."""
    words = next(reader.words for reader in READERS if reader.name == name)
    inputs = chain(seeds, Mutator([*seeds, *corpus_of(name)], words).inputs(seed))
    async with asyncio.timeout(_PATIENCE_S + count):
        for _ in range(count):
            reader, writer = await connect()
            with suppress(OSError):
                writer.write(next(inputs))
                writer.write_eof()
                await reader.read()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def scrape(count: int = _FEW) -> None:
    port = MetricsPort("127.0.0.1", 0)
    try:
        parts = urlsplit(port.url)
        await _send_all(partial(asyncio.open_connection, parts.hostname, parts.port), "metrics-port", count, 1)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert b"200 OK" in await reader.read()
        writer.close()
    finally:
        port.close()


@asynccontextmanager
async def _offered(folder: Path) -> AsyncIterator[list[Operation]]:
    requested: list[Operation] = []
    offer = SnapshotServer(folder, apply=requested.append, past=tuple)
    assert await offer.open() is None
    offer.publish(running())
    try:
        yield requested
    finally:
        await offer.close()


async def watch(count: int = _FEW) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with _offered(folder):
            await _send_all(
                lambda: asyncio.open_unix_connection(folder / SOCKET, limit=1 << 24), "operations", count, 2
            )
            reader, writer = await asyncio.open_unix_connection(folder / SOCKET, limit=1 << 24)
            writer.write(_line(Hello(steers=False)))
            assert (await reader.readline()).endswith(b"\n")
            writer.close()


async def browse(count: int = _FEW) -> None:
    """Pages and the websocket of `vramp web`, with and without its token."""
    async with door() as (client, address):
        parts = urlsplit(address)
        token = parts.query.removeprefix("token=")
        upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        page = f"GET /?token={token} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
        guess = f"GET /ws/%ff%00guess HTTP/1.1\r\nHost: {parts.netloc}\r\nOrigin: null\r\n{upgrade}\r\n".encode()
        host = b"GET / HTTP/1.1\r\nHost: \xff\r\nConnection: close\r\n\r\n"
        connect = partial(asyncio.open_connection, parts.hostname, parts.port)
        await _send_all(connect, "metrics-port", count, 3, page, guess, host)
        async with client.get(address) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("talk", [scrape, watch, browse], ids=lambda talk: talk.__name__)
async def test_the_next_client_is_answered(
    talk: Callable[[], Awaitable[None]], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    await talk()
    assert capfd.readouterr().err == ""
    assert "Traceback" not in caplog.text


async def _main(count: int) -> None:
    for talk in (scrape, watch, browse):
        await talk(count)
        print(f"{talk.__name__}: {count:,} inputs", flush=True)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
