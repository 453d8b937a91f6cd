"""Where workers run, and the two ends of each: commands in, tick lines out, and how it ended.

`LocalHost` is this machine, and a `LocalPipe` one of its processes. Invariants: whatever the process does (dies, hangs,
floods its output), all its output is read, its end is reported once, and `close` leaves no process behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from loadgen.errors import WorkerError
from loadgen.format import signal_name
from loadgen.system import usable_cores

_PROGRAM = (sys.executable, "-P", "-m", "loadgen.worker")  # -P: never import from the current folder
_LINE_LIMIT = 64 * 1024 * 1024
_STDERR_KEPT = 4000
CLOSE_S = 2.0
_KILLED_S = 2.0  # how long to wait after SIGKILL: a process stuck in the kernel survives it

Heard = Callable[[bytes], None]
Ended = Callable[[str], None]


class Host(Protocol):
    """A machine that runs workers, and its clock."""

    @property
    def name(self) -> str: ...

    @property
    def cores(self) -> float:
        """The cores that workers may use there."""

    @property
    def offset_ns(self) -> int:
        """Its CLOCK_MONOTONIC minus that of this machine."""

    @property
    def uncertainty_ns(self) -> int:
        """The most by which the true offset differs from `offset_ns`."""

    @property
    def rtt_ns(self) -> int:
        """The round-trip time of the last message."""

    @property
    def delivery_ns(self) -> int:
        """The most time that a command takes to reach every worker there."""

    @property
    def lifeline_s(self) -> float:
        """The silence after which a worker there exits by itself; 0: never."""

    @property
    def lost(self) -> str | None:
        """Why it cannot be reached; None while it can."""

    @property
    def moved_ns(self) -> int:
        """By how much its clock has been stepped relative to ours, in total."""

    def open_pipe(self, number: int) -> Pipe:
        """The pipe of a new worker, not started yet."""


class Pipe(Protocol):
    """A worker's pipes, wherever it runs."""

    @property
    def pid(self) -> int | None:
        """Its process on this machine, while it lives."""

    async def start(self, heard: Heard, ended: Ended) -> None:
        """Start the worker; `heard` gets each whole line of its output, `ended` its end in words, once.

        Raises `WorkerError` if it cannot be started.
        """

    def write(self, line: bytes) -> None:
        """Send it a line; does nothing if it is gone."""

    def kill(self) -> None:
        """End it at once, in any state."""

    async def close(self) -> None:
        """Let it exit, or else kill it; safe to call at any time and more than once."""


class LocalHost:
    """This machine."""

    name = ""
    offset_ns = uncertainty_ns = rtt_ns = delivery_ns = moved_ns = 0
    lifeline_s = 0.0
    lost = None

    @property
    def cores(self) -> float:
        return usable_cores()

    def open_pipe(self, number: int) -> Pipe:
        return LocalPipe()


class LocalPipe:
    """A worker process of this machine, by its stdin and stdout."""

    def __init__(self, program: Sequence[str] = ()) -> None:
        self._program = program or _PROGRAM
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stderr = b""
        self._fault = ""  # why it was killed

    @property
    def pid(self) -> int | None:
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process is not None and running else None

    async def start(self, heard: Heard, ended: Ended) -> None:
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._program,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=_LINE_LIMIT,
                # Ctrl-C in the terminal goes to vramp alone, which ends its workers in order.
                start_new_session=True,
            )
        except OSError as error:
            raise WorkerError(f"could not be started: {error.strerror}") from error
        errors = asyncio.create_task(self._read_stderr(process))
        self._tasks = [errors, asyncio.create_task(self._read_lines(process, errors, heard, ended))]

    def write(self, line: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(line)

    def kill(self) -> None:
        """SIGKILL works on a stopped process, too."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        # When the tasks are done, all its output has been read and its exit status taken.
        _, running = await asyncio.wait(self._tasks, timeout=CLOSE_S)
        if running:
            self._fault = f"did not exit within {CLOSE_S:g} s and was killed"
            self.kill()
            await asyncio.wait(running, timeout=_KILLED_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read_lines(
        self, process: asyncio.subprocess.Process, errors: asyncio.Task[None], heard: Heard, ended: Ended
    ) -> None:
        output = process.stdout
        assert output is not None
        try:
            # What is cut off at the end is no line; how the worker ended says more.
            while (line := await output.readline()).endswith(b"\n"):
                heard(line)
        except ValueError as error:
            self._fault = f"sent an invalid tick and was killed: {error}"
            self.kill()
        # asyncio does not notice the end of a pipe that is not read.
        while await output.read(1 << 16):
            pass
        status = await process.wait()
        await errors
        last_words = self._stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        ending = f"was killed by {signal_name(-status)}" if status < 0 else f"died with status {status}"
        ended(self._fault or ": ".join([ending, *last_words]))

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while text := await process.stderr.read(4096):
            self._stderr = (self._stderr + text)[-_STDERR_KEPT:]
