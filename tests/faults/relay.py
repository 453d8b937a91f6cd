"""A relay in front of a server, which spoils answers on demand: what no simulator of an engine would send.

It runs in a thread of its own, on its own event loop. While `trouble` is empty, bytes pass as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import ssl
import threading
from collections.abc import Awaitable, Callable

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
_EVENT = b'data: {"choices": [{"index": 0, "text": " a", "finish_reason": null}]}\n\n'
_BEGINS = b"HTTP/1.1 "


async def _slow_headers(writer: asyncio.StreamWriter, data: bytes) -> None:
    for at in range(len(data)):
        writer.write(data[at : at + 1])
        await writer.drain()
        await asyncio.sleep(0.1)


async def _endless_event(writer: asyncio.StreamWriter, _: bytes) -> None:
    writer.write(_HEAD + b"\r\ndata: ")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()
        await asyncio.sleep(0.001)


def _instead(answer: bytes) -> Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]:
    async def spoil(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    return spoil


async def _broken_tls(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Bytes that are no record of TLS, past the encryption."""
    writer.write(data[: len(data) // 2])
    with contextlib.suppress(OSError):
        os.write(writer.get_extra_info("socket").fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))


TROUBLES: dict[str, Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]] = {
    "slow headers": _slow_headers,
    "endless event": _endless_event,
    "wrong length": _instead(_HEAD + b"content-length: 5000\r\n\r\n" + _EVENT),
    "compressed": _instead(_HEAD + b"content-encoding: gzip\r\nconnection: close\r\n\r\n" + gzip.compress(_EVENT)),
    "redirect": _instead(
        b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:8000/elsewhere\r\ncontent-length: 0\r\n\r\n"
    ),
    "broken TLS": _broken_tls,
}


class Relay:
    """Listens on 127.0.0.1 until the process ends."""

    def __init__(self, port: int, behind: int, tls: ssl.SSLContext | None = None) -> None:
        self.trouble = ""
        self._port, self._behind, self._tls = port, behind, tls
        self._listens = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        assert self._listens.wait(10.0), "the relay does not listen"

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # connections that break are the point
        async with await asyncio.start_server(self._forward, "127.0.0.1", self._port, ssl=self._tls, backlog=1024):
            self._listens.set()
            await asyncio.Event().wait()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            upstream, downstream = await asyncio.open_connection("127.0.0.1", self._behind)
            await asyncio.gather(self._pump(reader, downstream, spoil=False), self._pump(upstream, writer, spoil=True))
        writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, spoil: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if spoil and self.trouble and (data.startswith(_BEGINS) or self.trouble == "broken TLS"):
                    await TROUBLES[self.trouble](writer, data)
                    continue
                writer.write(data)
                await writer.drain()
        writer.close()
