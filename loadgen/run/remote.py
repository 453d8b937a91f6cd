"""Watching a run from another process: snapshots on a socket in its folder, and operations from its watchers.

One JSON object per line: to a watcher each `Snapshot`, the first with the past of the charts; from it a `Hello`, then
an `Operation` per key. Invariants: a watcher never delays the run or makes it grow: snapshots that it does not read in
time are skipped, except the last; a watcher can send nothing but `Operation`s, and only if its `Hello` said that it
steers; from its creation on, the socket is accessible to its owner alone.
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

from loadgen.errors import UNDECODABLE, ResultError
from loadgen.format import user_name
from loadgen.metrics.series import TimeSeries
from loadgen.places import TRUST, is_trusted
from loadgen.run.operations import Operation
from loadgen.schema.snapshot import SeriesPoint, Snapshot
from loadgen.server.process.ports import peer_of

SOCKET = "watch.sock"
_FAREWELL_S = 1.0
_TURNS_TO_VISIT = 6  # of the event loop: asyncio takes four from a connection to the visit
_MAX_SNAPSHOT = 1 << 26
_SAME_MOMENT_S = 1e-3
operations: msgspec.json.Decoder[Operation] = msgspec.json.Decoder(Operation)


class Hello(msgspec.Struct, frozen=True):
    """A watcher's first line."""

    steers: bool


class SnapshotServer:
    """The run's side of the socket."""

    def __init__(
        self, folder: Path, *, apply: Callable[[Operation], None], past: Callable[[], tuple[SeriesPoint, ...]]
    ) -> None:
        """`apply` receives operations; `past` returns the points with which a late watcher's charts begin."""
        self._apply = apply
        self._folder = folder
        self._past = past
        self._newest: Snapshot | None = None
        self._server: asyncio.Server | None = None
        self._visitors: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # all connections
        self._watchers: set[asyncio.StreamWriter] = set()  # those that have sent a `Hello`

    async def open(self) -> str | None:
        """Listen; returns an error message if the run cannot be watched."""
        try:
            self._server = await asyncio.start_unix_server(self._visit, sock=_listening(self._folder))
        except OSError as error:
            return f"this run cannot be watched: {self._folder / SOCKET}: {error.strerror}"
        return None

    def publish(self, snapshot: Snapshot) -> Snapshot:
        """Send it to watchers that have read the previous one; without watchers it costs nothing."""
        self._newest = snapshot
        last = snapshot.phase == "done"
        ready = [writer for writer in self._watchers if last or not writer.transport.get_write_buffer_size()]
        if ready:
            line = _line(snapshot)
            for writer in ready:
                writer.write(line)
        return snapshot

    async def close(self) -> None:
        """Stop listening; slow watchers get a second to read the rest."""
        if self._server is None:
            return
        (self._folder / SOCKET).unlink(missing_ok=True)
        # Accept pending connections first: a server that closes between accept and the visit leaks the socket.
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
            # A watcher that is gone, or sends garbage: its connection ends, and nothing else is affected.
            with contextlib.suppress(OSError, *UNDECODABLE):
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
    """A run in another process, with the interface of a local one."""

    def __init__(self, folder: Path, *, steers: bool = False) -> None:
        """Without `steers` the run ignores its operations."""
        self._folder = folder
        self._steers = steers
        self._writer: asyncio.StreamWriter | None = None

    async def snapshots(self) -> AsyncGenerator[Snapshot, None]:
        """The run's snapshots, until one in phase `done`, which is synthesized if the run's process dies.

        Raises `ResultError` if nothing runs there, or an incompatible vramp.
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
            raise ResultError(f"{self._folder}: the run ended before it sent anything")
        if snapshot.phase != "done":
            words = f"the run's process is gone: make a result of its journal with `vramp recover {self._folder}`"
            yield msgspec.structs.replace(snapshot, phase="done", headline=words, healthy=False, past=())

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            with _short_path(self._folder) as path:
                reader, writer = await asyncio.open_unix_connection(path, limit=_MAX_SNAPSHOT)
        except OSError as error:
            why = "nothing runs there" if isinstance(error, (FileNotFoundError, ConnectionError)) else error.strerror
            raise ResultError(f"{self._folder}: cannot be watched: {why}") from error
        _, user = peer_of(writer.get_extra_info("socket"))
        if not is_trusted(user):
            writer.close()
            words = f"its run belongs to another user, {user_name(user)}; {TRUST} watches it all the same"
            raise ResultError(f"{self._folder}: is not watched: {words}")
        return reader, writer

    def apply(self, operation: Operation) -> None:
        """Send the operation to the run, if this watcher may steer."""
        if self._steers:
            self._send(operation)

    def _send(self, message: Hello | Operation) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(_line(message))


def points_of(series: TimeSeries) -> tuple[SeriesPoint, ...]:
    """A time series as points; a merged row yields its highest values and, just after them, its lowest."""
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
    """Snapshots up to the last, or until the connection ends."""
    decoder = msgspec.json.Decoder(Snapshot)
    with contextlib.suppress(ConnectionError):
        while True:
            try:
                line = await reader.readline()
                if not line.endswith(b"\n"):
                    return
                snapshot = decoder.decode(line)
            except UNDECODABLE as error:  # also for an overlong line
                raise ResultError(f"{folder}: that run uses another version of vramp: {error}") from error
            yield snapshot
            if snapshot.phase == "done":
                return


def _listening(folder: Path) -> socket.socket:
    """A socket that only its owner may connect to."""
    listening = socket.socket(socket.AF_UNIX)
    try:
        # Before it is bound to a name: on Linux the file gets the socket's mode.
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
    """A path to the socket that fits: the kernel allows 107 bytes, a folder's path may be longer."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
