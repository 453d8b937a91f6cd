"""The parent's side of a child: start it, read its lines under limits, send it orders, and end it within a time limit.

Invariants: what a child sends is limited in size and rate before it is parsed; every way to fail is a `TelemetryError`
that says which; ending a child never waits longer than its two deadlines, whatever its state.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadgen.errors import UNDECODABLE, TelemetryError
from loadgen.format import harmless, signal_name
from loadgen.places import open_private
from loadgen.telemetry.protocol import Opened, Refused, Sampled, decode_line

OPEN_S = 60.0
"""For a child to open: 64 partitions and first reads of every error counter take a while, and a busy driver answers
late; AMD's own tool waits as long for its library."""
_LINE_LIMIT = 1 << 20
_FLOOD_LINES = 500  # per second; what a suspended parent finds in a full pipe is far less
_FLOOD_BYTES = 8 << 20
_PRINTED_BYTES = 16384
_KILL_WAIT_S = 2.0
_POLL_S = 0.02


@dataclass(slots=True)
class Child:
    """One telemetry process; `start_child` makes it."""

    _process: subprocess.Popen[bytes]
    _reader: asyncio.StreamReader
    _pipe: asyncio.ReadTransport
    _log_path: Path
    _log_start: int  # where this child's output begins in the log
    _second: float = 0.0
    _lines: int = 0
    _bytes: int = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    async def opened(self, *, within_s: float) -> Opened:
        """A working child's first line; raises `TelemetryError` with what comes instead."""
        line = await self._line(within_s)
        if not isinstance(line, Opened):
            raise TelemetryError("it sent a sample before its first line")
        named = tuple(msgspec.structs.replace(gpu, name=harmless(gpu.name)) for gpu in line.gpus)
        return msgspec.structs.replace(line, gpus=named)

    async def sampled(self, *, within_s: float) -> Sampled:
        """A working child's later line; raises `TelemetryError` with what comes instead."""
        line = await self._line(within_s)
        if not isinstance(line, Sampled):
            raise TelemetryError("it opened twice")
        return line

    async def _line(self, within_s: float) -> Opened | Sampled:
        """The next line; raises `TelemetryError` for a refusal, silence, an end, a flood or garbage."""
        try:
            async with asyncio.timeout(within_s):
                data = await self._reader.readline()
        except TimeoutError:
            raise TelemetryError(f"it sent nothing for {within_s:g} s") from None
        except ValueError:
            raise TelemetryError(f"it sent a line of more than {_LINE_LIMIT >> 20} MiB") from None
        if not data:
            raise TelemetryError(await self._how_it_ended())
        now_s = time.monotonic()
        if now_s - self._second > 1:
            self._second, self._lines, self._bytes = now_s, 0, 0
        self._lines += 1
        self._bytes += len(data)
        if self._lines > _FLOOD_LINES or self._bytes > _FLOOD_BYTES:
            raise TelemetryError(f"it flooded: {self._lines} lines and {self._bytes} bytes within a second")
        try:
            line = decode_line.decode(data)
        except UNDECODABLE as error:
            start = harmless(data[:60].decode("utf-8", "replace").strip())
            raise TelemetryError(f"it sent an invalid line ({harmless(str(error))}): {start}") from None
        if isinstance(line, Refused):
            raise TelemetryError(harmless(line.reason))
        return line

    def show_processes(self, wanted: bool) -> None:
        """Have it list processes or not; does not wait for a child that does not read."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._process.stdin.fileno(), msgspec.json.encode(wanted) + b"\n")

    async def end(self, *, grace_s: float) -> None:
        """Let it exit, then kill it; a process that survives SIGKILL is left to the kernel."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            if not await self._gone(grace_s):
                self._process.kill()
                await self._gone(_KILL_WAIT_S)
        finally:
            self._pipe.close()
            if self._process.poll() is None:
                self._process.kill()
                self._process.returncode = -signal.SIGKILL  # no longer waited for; otherwise subprocess would warn

    async def _how_it_ended(self) -> str:
        if not await self._gone(1.0):
            return "it closed its output and runs on"
        status = self._process.returncode
        how = f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
        printed = last_lines(self._log_path, 1, start=self._log_start)
        return f"it {how}: {printed[-1]}" if printed else f"it {how}"

    async def _gone(self, within_s: float) -> bool:
        for _ in range(round(within_s / _POLL_S)):
            if self._process.poll() is not None:
                return True
            await asyncio.sleep(_POLL_S)
        return self._process.poll() is not None


async def start_child(command: Sequence[str], env: Mapping[str, str], log_path: Path) -> Child:
    """Start a command that speaks the telemetry protocol; raises `TelemetryError` if it cannot be started.

    `env` is added to our environment; its stderr is appended to `log_path`.
    """
    try:
        process, log_start = _spawn(command, env, log_path)
    except OSError as error:
        raise TelemetryError(f"its process could not be started: {error.strerror}: {error.filename}") from error
    # Not asyncio's subprocess: that waits for the end of a pipe that it has stopped reading.
    reader = asyncio.StreamReader(limit=_LINE_LIMIT)
    try:
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
    except BaseException:
        process.kill()
        with process:  # closes its pipes and waits for it
            raise
    return Child(process, reader, pipe, log_path, log_start)


def _spawn(command: Sequence[str], env: Mapping[str, str], log_path: Path) -> tuple[subprocess.Popen[bytes], int]:
    log = open_private(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        log_start = os.fstat(log).st_size
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # AMD's library shares a lock among all users of a GPU; a process killed while holding it blocks them all.
            env={**os.environ, "RSMI_MUTEX_THREAD_ONLY": "1", **env},
            bufsize=0,
            # Ctrl-C in the terminal goes to vramp alone, which ends its children in order.
            start_new_session=True,
        )
    finally:
        os.close(log)
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process, log_start


def last_lines(log_path: Path, count: int, *, start: int = 0) -> list[str]:
    """The last lines of a log from an offset on; empty if it does not exist."""
    try:
        with log_path.open("rb") as log:
            log.seek(max(start, log.seek(0, os.SEEK_END) - _PRINTED_BYTES))
            lines = log.read().decode("utf-8", "replace").split("\n")
    except FileNotFoundError:
        return []
    return [harmless(line).strip() for line in lines if line.strip()][-count:]
