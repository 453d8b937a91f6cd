"""The connections of one worker that carry no stream: those that are free, and those that are being opened.

A free one is used before a new one is opened; no more than `AT_ONCE` are opened at a time. After a failure the next
try waits (`BackOff`), so that a dead server is not hammered.
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
    """After a failure, a place of the load stays empty a little; longer, the more streams have failed in a row."""

    def __init__(self, place_free: Callable[[], None]) -> None:
        """`place_free` is called when a place may be filled again."""
        self._place_free = place_free
        self.places = 0  # that stay empty
        self.failures_in_row = 0

    def begin(self, open_streams: int) -> None:
        """Leave a place empty, beside so many that are filled."""
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
        self.opening: set[asyncio.Task[None]] = set()  # for the load that runs: each has a place of it
        self._opening_ahead: set[asyncio.Task[None]] = set()  # for a stage that is to begin

    def take(self) -> Channel | None:
        while self.free:
            channel = self.free.pop()
            if channel.usable:
                return channel
        return None

    def open(self, opened: Opened, failed: Failed, *, ahead: bool = False) -> None:
        """Open one more, and call one of the two; `ahead` for a stage that is to begin."""
        tasks = self._opening_ahead if ahead else self.opening
        task = asyncio.get_running_loop().create_task(self._connect(tasks, opened, failed))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def open_up_to(self, wanted: int, opened: Opened, failed: Failed, *, ahead: bool = False) -> None:
        """Open until so many are on their way."""
        on_their_way = len(self._opening_ahead if ahead else self.opening)
        for _ in range(min(wanted, AT_ONCE) - on_their_way):
            self.open(opened, failed, ahead=ahead)

    def close(self) -> None:
        """Close what is free and open no more; what is taken belongs to whoever took it."""
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
            # Its stream has a place of the load from now on: it must not count twice.
            tasks.difference_update([asyncio.current_task()])
            opened(channel)
