"""A run that can be watched from elsewhere: its snapshots on a socket in its folder, and what its watchers ask for.

One JSON object a line: to a watcher each `Snapshot`, the first with the past of the charts; from it a `Hello`, then an
`Operation` for each key. Invariants: a watcher never holds up the run and makes nothing grow: what it does not read in
time it misses, but for the last snapshot; only an `Operation` can be asked for, and only by a watcher that said at
first that it steers; the socket is its owner's alone from the moment that it exists.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadgen.errors import ResultError
from loadgen.metrics.series import TimeSeries
from loadgen.metrics.snapshot import SeriesPoint, Snapshot
from loadgen.run.operations import Operation

SOCKET = "watch.sock"
_FAREWELL_S = 1.0
_TURNS_TO_VISIT = 6  # of the event loop: asyncio takes four from a connection to the visit
_LONGEST_SNAPSHOT = 1 << 26
_SAME_MOMENT_S = 1e-3
operations: msgspec.json.Decoder[Operation] = msgspec.json.Decoder(Operation)


class Hello(msgspec.Struct, frozen=True):
    """A watcher says what it is."""

    steers: bool


class SnapshotServer:
    """The run's side of the socket."""

    def __init__(
        self, folder: Path, *, apply: Callable[[Operation], None], past: Callable[[], tuple[SeriesPoint, ...]]
    ) -> None:
        """`apply` gets what is asked for; `past` tells a late watcher what its charts begin with."""
        self._apply = apply
        self._folder = folder
        self._past = past
        self._newest: Snapshot | None = None
        self._server: asyncio.Server | None = None
        self._visitors: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # everybody who is connected
        self._watchers: set[asyncio.StreamWriter] = set()  # those who have said hello

    async def open(self) -> str | None:
        """Listen; returns why nobody will be able to watch, where that is so."""
        try:
            self._server = await asyncio.start_unix_server(self._visit, sock=_listening(self._folder))
        except OSError as error:
            return f"this run cannot be watched: {self._folder / SOCKET}: {error.strerror}"
        return None

    def publish(self, snapshot: Snapshot) -> Snapshot:
        """Send it to all who have read what was sent before; without watchers it costs nothing."""
        self._newest = snapshot
        last = snapshot.phase == "done"
        ready = [writer for writer in self._watchers if last or not writer.transport.get_write_buffer_size()]
        if ready:
            line = _line(snapshot)
            for writer in ready:
                writer.write(line)
        return snapshot

    async def close(self) -> None:
        """Listen no more; who is slow gets a second to read the rest."""
        if self._server is None:
            return
        (self._folder / SOCKET).unlink(missing_ok=True)
        # Who has connected by now is let in: a server that closes between accepting and that leaves the socket open.
        for _ in range(_TURNS_TO_VISIT):
            await asyncio.sleep(0)
        self._server.close()
        for writer in self._visitors.values():
            writer.close()
        if self._visitors:
            _, slow = await asyncio.wait(set(self._visitors), timeout=_FAREWELL_S)
            for visit in slow:
                self._visitors[visit].transport.abort()

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.current_task()
        assert visit is not None
        self._visitors[visit] = writer
        try:
            # One that is gone, or speaks another language: the connection ends, and nobody else notices.
            with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
                await self._talk(reader, writer)
        finally:
            self._watchers.discard(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            del self._visitors[visit]

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = msgspec.json.decode(await reader.readline(), type=Hello)
        self._watchers.add(writer)
        if self._newest is not None:
            writer.write(_line(msgspec.structs.replace(self._newest, past=self._past())))
        async for line in reader:
            if not hello.steers:
                return
            self._apply(operations.decode(line))


class RemoteRun:
    """A run of another process; a cockpit cannot tell it from its own."""

    def __init__(self, folder: Path, *, steers: bool = False) -> None:
        """Only with `steers` does the run hear what it asks for."""
        self._folder = folder
        self._steers = steers
        self._writer: asyncio.StreamWriter | None = None

    async def snapshots(self) -> AsyncGenerator[Snapshot, None]:
        """What the run publishes, until one whose phase is `done`; that one is ours if the run's process dies.

        Raises `ResultError` when nothing runs there, or a vramp that speaks differently.
        """
        reader, self._writer = await self._connect()
        snapshot: Snapshot | None = None
        try:
            self._send(Hello(steers=self._steers))
            async for snapshot in _read(reader, self._folder):
                yield snapshot
        finally:
            self._writer.close()
        if snapshot is None:
            raise ResultError(f"{self._folder}: the run ended before it told anything")
        if snapshot.phase != "done":
            words = f"the run's process is gone: `vramp recover {self._folder}` makes a result of its journal"
            yield msgspec.structs.replace(snapshot, phase="done", headline=words, healthy=False, past=())

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            with _short_path(self._folder) as path:
                return await asyncio.open_unix_connection(path, limit=_LONGEST_SNAPSHOT)
        except OSError as error:
            why = "no run goes on there" if isinstance(error, (FileNotFoundError, ConnectionError)) else error.strerror
            raise ResultError(f"{self._folder}: cannot be watched: {why}") from error

    def apply(self, operation: Operation) -> None:
        """Ask the run for it, if this watcher may steer."""
        if self._steers:
            self._send(operation)

    def _send(self, message: Hello | Operation) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(_line(message))


def points_of(series: TimeSeries) -> tuple[SeriesPoint, ...]:
    """A time series as points; of rows that were merged the highest values and, just after them, the lowest."""
    columns = series.columns()
    names = [name for name in columns if not name.endswith("_min")]
    points = []
    for row in range(len(columns["t_s"])):
        highest: dict[str, Any] = {name: columns[name][row] for name in names}
        lowest: dict[str, Any] = {name: columns.get(f"{name}_min", columns[name])[row] for name in names}
        points.append(SeriesPoint(**highest))
        if lowest != highest:
            points.append(SeriesPoint(**lowest | {"t_s": lowest["t_s"] + _SAME_MOMENT_S}))
    return tuple(points)


def _line(message: Snapshot | Hello | Operation) -> bytes:
    return msgspec.json.encode(message) + b"\n"


async def _read(reader: asyncio.StreamReader, folder: Path) -> AsyncIterator[Snapshot]:
    """Snapshots until the last, or until nobody sends any more."""
    decoder = msgspec.json.Decoder(Snapshot)
    with contextlib.suppress(ConnectionError):
        while True:
            try:
                line = await reader.readline()
                if not line.endswith(b"\n"):
                    return
                snapshot = decoder.decode(line)
            except (msgspec.DecodeError, ValueError) as error:  # the latter for a line without an end
                raise ResultError(f"{folder}: that run is one of another version of vramp: {error}") from error
            yield snapshot
            if snapshot.phase == "done":
                return


def _listening(folder: Path) -> socket.socket:
    """A socket that only its owner may connect to."""
    listening = socket.socket(socket.AF_UNIX)
    try:
        # Before it has a name: on Linux the file gets the mode that the socket has.
        os.fchmod(listening.fileno(), 0o600)
        with _short_path(folder) as path:
            listening.bind(path)
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A name of the socket that fits: an address of the kernel has 107 bytes, a folder may have more."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
