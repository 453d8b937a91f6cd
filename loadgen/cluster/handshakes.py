"""Bounds the connections to a port of Dask that have not shown a certificate; Dask would keep each for ever.

Its port is open to the network. Invariant: what others connect to it costs few descriptors, and for seconds only.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from distributed.comm.tcp import BaseTCPListener

if TYPE_CHECKING:
    import distributed
    from tornado.iostream import IOStream

    HandleStream = Callable[[IOStream, tuple[str, int]], Awaitable[None]]

MAX_STRANGERS = 64
_HANDSHAKE_S = 10.0


def bound_handshakes(server: distributed.core.Server) -> None:
    """Close connections without a handshake after seconds, and the oldest of too many."""
    for listener in server.listeners:
        assert isinstance(listener, BaseTCPListener)
        tcp_server = listener.tcp_server
        assert tcp_server is not None
        tcp_server.handle_stream = _bounded(tcp_server.handle_stream)


def _bounded(handle_stream: HandleStream) -> HandleStream:
    strangers: dict[IOStream, None] = {}  # the oldest first

    def end(stream: IOStream) -> None:
        if stream in strangers:
            del strangers[stream]
            if not _has_shaken_hands(stream):
                stream.close()

    async def handle(stream: IOStream, address: tuple[str, int]) -> None:
        if len(strangers) >= MAX_STRANGERS:
            end(next(iter(strangers)))
        strangers[stream] = None
        asyncio.get_running_loop().call_later(_HANDSHAKE_S, end, stream)
        await handle_stream(stream, address)

    return handle


def _has_shaken_hands(stream: IOStream) -> bool:
    # A closed stream has no socket.
    return isinstance(stream.socket, ssl.SSLSocket) and stream.socket.version() is not None
