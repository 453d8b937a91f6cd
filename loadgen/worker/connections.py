"""A worker's connections that carry no stream: the free ones and those being opened.

A free connection is used before a new one is opened, and at most `AT_ONCE` are opened at a time. Connections for the
next stage are opened ahead of it, no faster than a server can be expected to accept them: if its accept queue is full,
the kernel retries only after a second. After a failure the next attempt waits (`BackOff`), so that a dead server is
not hammered.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from itertools import cycle

from loadgen.stream.channel import Channel
from loadgen.stream.transport import Sockets
from loadgen.worker.messages import Configure

AT_ONCE = 128
AHEAD_AT_ONCE = 128  # of all workers together; the shortest queue that is usual (net.core.somaxconn before Linux 5.4)
AHEAD_PLACE_S = 0.02
"""How long a connection opened ahead keeps its place among these. At 6,400 a second, a queue of 2,048 (uvicorn's) is
full only once the server has accepted nothing for a third of a second."""
_ADVICE = {
    errno.EMFILE: "raise the limit with ulimit -n, or the number of workers with load.workers",
    errno.EADDRNOTAVAIL: "local ports are used up, or load.source_addresses is not of this machine: `vramp check`",
}

Opened = Callable[[Channel], None]
Failed = Callable[[str], None]


class BackOff:
    """Keeps a slot of the load empty for a while after a failure, longer the more streams have failed in a row."""

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
        self,
        settings: Configure,
        tls: ssl.SSLContext | None,
        sockets: Sockets,
        place_free: Callable[[], None],
        new_channel: Callable[[], Channel],
    ) -> None:
        """`place_free` is called when another connection may be opened ahead."""
        self._settings = settings
        self._tls = tls
        self._sockets = sockets
        self._new_channel = new_channel
        self.free: dict[Channel, None] = {}  # the last one put is the first one taken
        self.opening: set[asyncio.Task[None]] = set()  # for the running load; each takes one of its slots
        self._opening_ahead: set[asyncio.Task[None]] = set()  # for the next stage
        self._place_free = place_free
        self._places = 0  # places for connections opened ahead that are taken
        self._sources = cycle(settings.source_addresses or [None])

    def put(self, channel: Channel) -> None:
        self.free[channel] = None

    def drop(self, channel: Channel) -> None:
        """Forget a free connection that the server has closed: free ones count as ready for the next stage."""
        self.free.pop(channel, None)

    def take(self) -> Channel | None:
        return self.free.popitem()[0] if self.free else None

    def open(self, opened: Opened, failed: Failed) -> None:
        """Open one more connection, then call `opened` or `failed`."""
        self._open(self.opening, opened, failed)

    def open_up_to(self, wanted: int, opened: Opened, failed: Failed) -> None:
        """Open more until `wanted`, or `AT_ONCE`, are being opened."""
        for _ in range(min(wanted, AT_ONCE) - len(self.opening)):
            self.open(opened, failed)

    def open_ahead(self, wanted: int, workers: int, opened: Opened, failed: Failed) -> None:
        """Open more for the next stage until `wanted` are being opened, or this worker has no place for another."""
        on_their_way = len(self._opening_ahead)
        places = _places_of_each(workers) - max(self._places, on_their_way)
        for _ in range(min(wanted - on_their_way, places)):
            self._places += 1
            asyncio.get_running_loop().call_later(AHEAD_PLACE_S, self._leave_place)
            self._open(self._opening_ahead, opened, failed)

    def ahead_s(self, wanted: int, workers: int) -> float:
        """The shortest time in which `wanted` connections can be opened ahead."""
        return wanted * AHEAD_PLACE_S / _places_of_each(workers)

    def _leave_place(self) -> None:
        self._places -= 1
        self._place_free()

    def _open(self, tasks: set[asyncio.Task[None]], opened: Opened, failed: Failed) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(tasks, opened, failed))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def close(self) -> None:
        """Close free connections and open no more; connections in use are closed by their users."""
        for task in (*self.opening, *self._opening_ahead):
            task.cancel()
        for channel in self.free:
            channel.close()
        self.free.clear()

    async def _connect(self, tasks: set[asyncio.Task[None]], opened: Opened, failed: Failed) -> None:
        channel, limit_s = self._new_channel(), self._settings.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._sockets.connect(channel, self._settings.address, self._tls, next(self._sources))
        except TimeoutError:
            failed(f"no connection within {limit_s:g} s")
        except OSError as error:
            advice = _ADVICE.get(error.errno or 0)
            failed((error.strerror or str(error)) + (f"; {advice}" if advice else ""))
        else:
            # From now on its stream takes the slot: it must not count twice.
            tasks.difference_update([asyncio.current_task()])
            opened(channel)


def _places_of_each(workers: int) -> int:
    return max(1, AHEAD_AT_ONCE // workers)
