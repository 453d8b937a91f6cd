"""One worker process as the fleet sees it: start it, send it commands, read its ticks, and end it in any state."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from loadgen.errors import WorkerError
from loadgen.format import counted
from loadgen.metrics.deltas import StageDelta
from loadgen.worker import messages
from loadgen.worker.messages import TICK_NS, Tick

_PROGRAM = (sys.executable, "-P", "-m", "loadgen.worker")  # -P: never import from the current folder
_LINE_LIMIT = 64 * 1024 * 1024
_STDERR_KEPT = 4000
SILENT_S = 5.0
START_S = 60.0
_CLOSE_S = 2.0
_KILLED_S = 2.0  # how long to wait after SIGKILL: a process stuck in the kernel survives it


class WorkerProcess:
    """A worker process; `on_change` is called whenever it ticks or dies."""

    def __init__(self, number: int, instance: int, on_change: Callable[[], None]) -> None:
        """`instance` is the number of the server that it drives."""
        self.number = number
        self.instance = instance
        self.last: Tick | None = None
        self.alive = True
        self.share: int | None = None  # its share of the running closed loop
        self.death: str | None = None  # why it died, until `take_death`
        self._ticks: list[Tick] = []
        self._lost: dict[int, StageDelta] = {}
        self._on_change = on_change
        self._silent_s = 0.0
        self._closing = False
        self._stderr = b""
        self._first_number = time.monotonic_ns() // TICK_NS
        self._tasks: list[asyncio.Task[None]] = []
        self._process: asyncio.subprocess.Process | None = None

    @property
    def ready(self) -> bool:
        """Whether it can take part."""
        return self.alive and self.last is not None

    @property
    def held(self) -> int:
        """Its open streams; its last tick may be older than its last command."""
        return max(self.last.held if self.last is not None else 0, self.share or 0)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self.alive and self._process is not None else None

    @property
    def has_ticked(self) -> bool:
        """Whether there is a tick to take."""
        return bool(self._ticks)

    def take(self) -> tuple[list[Tick], dict[int, StageDelta]]:
        """The ticks since the last call, and by stage the streams lost when it died."""
        taken = self._ticks, self._lost
        self._ticks, self._lost = [], {}
        return taken

    def take_death(self) -> str | None:
        """Why it died; returned only once."""
        death, self.death = self.death, None
        return death

    async def start(self, program: Sequence[str] = ()) -> None:
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *(program or _PROGRAM),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=_LINE_LIMIT,
                # Ctrl-C in the terminal goes to vramp alone, which ends its workers in order.
                start_new_session=True,
            )
        except OSError as error:
            self._gone(f"worker {self.number} could not be started: {error.strerror}")
            raise WorkerError(self.death) from error
        assert process.stdout is not None and process.stderr is not None
        errors = asyncio.create_task(self._read_stderr(process.stderr))
        self._tasks = [errors, asyncio.create_task(self._read_ticks(process, process.stdout, errors))]

    def send(self, command: messages.Command) -> None:
        """Send a command; does nothing if the worker is gone."""
        if self.alive and self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(messages.encode(command) + b"\n")

    def check_silence(self, span_s: float) -> None:
        """Add `span_s` to its silence, and kill it if it has been silent for too long.

        Silence is summed over calls, not read from a clock: if vramp itself was stopped, its workers were not silent.
        """
        if self._ticks or not self.alive:
            self._silent_s = 0.0
            return
        self._silent_s += span_s
        patience_s = START_S if self.last is None else SILENT_S
        if self._silent_s >= patience_s:
            words = "did not start within" if self.last is None else "sent no tick for"
            self.end(f"worker {self.number} {words} {patience_s:g} s and was killed")

    def end(self, why: str) -> None:
        """Kill it with SIGKILL, which works on a stopped process, too."""
        self._gone(why)
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        """Let it exit, or else kill it; safe to call at any time and more than once."""
        self._closing = True
        if self._process is None:
            self.alive = False
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        # When the tasks are done, all its output has been read and its exit status taken.
        _, running = await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        if running:
            self.end(f"worker {self.number} did not exit within {_CLOSE_S:g} s and was killed")
            await asyncio.wait(running, timeout=_KILLED_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read_ticks(
        self, process: asyncio.subprocess.Process, output: asyncio.StreamReader, errors: asyncio.Task[None]
    ) -> None:
        try:
            while self.alive and (line := await output.readline()):
                self._take(messages.decode_tick(line))
        except (msgspec.MsgspecError, ValueError) as error:
            self.end(f"worker {self.number} sent an invalid tick and was killed: {error}")
        # asyncio does not notice the end of a pipe that is not read.
        while await output.read(1 << 16):
            pass
        status = await process.wait()
        await errors
        lines = self._stderr.decode("utf-8", "replace").strip().splitlines()
        self._gone(": ".join([f"worker {self.number} {_ending(status)}", *lines[-1:]]))

    def _take(self, tick: Tick) -> None:
        before = self._first_number if self.last is None else self.last.number
        # Ticks are numbered by the machine's clock: a number ahead of it, or one that does not grow, is garbage.
        if tick.worker != self.number or not before < tick.number <= time.monotonic_ns() // TICK_NS + 1:
            raise ValueError(f"tick {tick.number} of worker {tick.worker} after {before}")
        if self.alive:
            self.last = tick
            self._ticks.append(tick)
            self._on_change()

    def _gone(self, why: str) -> None:
        if not self.alive:
            return
        self.alive = False
        last = self.last
        if last is not None and last.running is not None and last.open_sent:
            self._lost = {last.running: StageDelta(unfinished=last.open_sent, lost=last.open_sent)}
        if not self._closing or self._lost:
            streams = last.held if last is not None else 0
            lost = f"; {counted(streams, 'stream')} {'is' if streams == 1 else 'are'} lost with it" if streams else ""
            self.death = why + lost
        self._on_change()

    async def _read_stderr(self, errors: asyncio.StreamReader) -> None:
        while text := await errors.read(4096):
            self._stderr = (self._stderr + text)[-_STDERR_KEPT:]


def _ending(status: int) -> str:
    if status >= 0:
        return f"died with status {status}"
    # Real-time signals have numbers only.
    known = -status in set(signal.Signals)
    return f"was killed by {signal.Signals(-status).name if known else f'signal {-status}'}"
