"""A worker's connections that carry no stream: those that are free, and those that are being opened.

A free connection is used before a new one is opened, and at most `AT_ONCE` are opened at a time. After a failure the
next attempt waits (`BackOff`), so that a dead server is not hammered.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from loadgen.stream.channel import Channel
from loadgen.stream.transport import Sockets
from loadgen.worker.messages import Configure

AT_ONCE = 128

Opened = Callable[[Channel], None]
Failed = Callable[[str], None]


class BackOff:
    """After a failure, keeps a slot of the load empty for a while; longer, the more streams failed in a row."""

    def __init__(self, place_free: Callable[[], None]) -> None:
        """`place_free` is called when a slot may be filled again."""
        self._place_free = place_free
        self.places = 0  # slots kept empty
        self.failures_in_row = 0

    def begin(self, open_streams: int) -> None:
        """Keep one more slot empty, while `open_streams` are filled."""
        self.places += 1
        doublings = min(10, self.failures_in_row // max(1, open_streams + 1))
        asyncio.get_running_loop().call_later(min(1.0, 0.01 * 2**doublings), self._over)

    def _over(self) -> None:
        self.places -= 1
        self._place_free()


class Connections:
    def __init__(
        self, settings: Configure, tls: ssl.SSLContext | None, sockets: Sockets, new_channel: Callable[[], Channel]
    ) -> None:
        self._settings = settings
        self._tls = tls
        self._sockets = sockets
        self._new_channel = new_channel
        self.free: list[Channel] = []
        self.opening: set[asyncio.Task[None]] = set()  # for the running load; each takes one of its slots
        self._opening_ahead: set[asyncio.Task[None]] = set()  # for the next stage

    def take(self) -> Channel | None:
        while self.free:
            channel = self.free.pop()
            if channel.usable:
                return channel
        return None

    def open(self, opened: Opened, failed: Failed, *, ahead: bool = False) -> None:
        """Open one more connection, then call `opened` or `failed`; `ahead` if it is for the next stage."""
        tasks = self._opening_ahead if ahead else self.opening
        task = asyncio.get_running_loop().create_task(self._connect(tasks, opened, failed))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def open_up_to(self, wanted: int, opened: Opened, failed: Failed, *, ahead: bool = False) -> None:
        """Open more until `wanted`, or `AT_ONCE`, are being opened."""
        on_their_way = len(self._opening_ahead if ahead else self.opening)
        for _ in range(min(wanted, AT_ONCE) - on_their_way):
            self.open(opened, failed, ahead=ahead)

    def close(self) -> None:
        """Close free connections and open no more; those in use are their users' to close."""
        for task in (*self.opening, *self._opening_ahead):
            task.cancel()
        for channel in self.free:
            channel.close()
        self.free.clear()

    async def _connect(self, tasks: set[asyncio.Task[None]], opened: Opened, failed: Failed) -> None:
        channel, limit_s = self._new_channel(), self._settings.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._sockets.connect(channel, self._settings.address, self._tls)
        except TimeoutError:
            failed(f"no connection within {limit_s:g} s")
        except OSError as error:
            failed(error.strerror or str(error))
        else:
            # From now on its stream takes the slot: it must not count twice.
            tasks.difference_update([asyncio.current_task()])
            opened(channel)
