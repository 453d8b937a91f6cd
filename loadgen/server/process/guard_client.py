"""vramp's side of a guard: start one, talk to it, and end a server whose guard belongs to another vramp, or is lost.

Invariants: only processes that vramp started are signalled, each known by pid and start time; every wait is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal as signals
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec

import loadgen
from loadgen.errors import UNDECODABLE
from loadgen.format import signal_name
from loadgen.places import open_private
from loadgen.server.process import guard, tree
from loadgen.server.process.container import Container, remove_container
from loadgen.server.process.records import ServerRecord, forget

NOT_CHECKED = "not checked"
PACKAGE_ROOT = Path(loadgen.__file__).parents[1]
_LINE_LIMIT = 1 << 22
_POLL_S = 0.05


class ServerExit(msgspec.Struct, frozen=True):
    """How the server's main process ended; both None if its guard was lost, so that nothing observed it."""

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal == signals.SIGKILL:
            return "was killed by SIGKILL (by a user, or by the kernel's OOM killer)"
        if self.signal is not None:
            return f"was killed by {signal_name(self.signal)}"
        if self.code is None:
            return "lost its guard process and was killed"
        return f"ended with exit code {self.code}"


class ProcessName(msgspec.Struct, frozen=True):
    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})"


class StopReport(msgspec.Struct, frozen=True):
    """How ending the server's tree went; `left` is empty unless the kernel could not end a process."""

    elapsed_s: float
    killed: tuple[ProcessName, ...] = ()
    left: tuple[ProcessName, ...] = ()
    problem: str = ""  # what else went wrong, such as a container that could not be removed
    gpu_memory: str = NOT_CHECKED
    """Whether the GPUs' memory is back at its level before the start; if not, who holds it; or why that is unknown."""

    @property
    def clean(self) -> bool:
        return not self.left and not self.problem

    @property
    def sentence(self) -> str:
        killed, left = (", ".join(map(str, processes)) for processes in (self.killed, self.left))
        parts = [
            f"stopped in {self.elapsed_s:.1f} s",
            f"had to be killed: {killed}" if killed else "",
            f"could not be ended: {left}" if left else "no process left",
            self.problem,
            f"GPU memory: {self.gpu_memory}" if self.gpu_memory != NOT_CHECKED else "",
        ]
        return "; ".join(filter(None, parts))


def start_guard(log_path: Path) -> subprocess.Popen[bytes]:
    """A guard that waits for its order; its own errors go to the server's log."""
    blocked_before = signals.pthread_sigmask(signals.SIG_BLOCK, guard.SIGNALS)
    try:
        # Not asyncio's subprocess: that kills its child when the loop is closed, and the guard must outlive that.
        with open(log_path, "ab", opener=open_private) as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", guard.__name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=PACKAGE_ROOT,
                start_new_session=True,
            )
    finally:
        signals.pthread_sigmask(signals.SIG_SETMASK, blocked_before)


def send(process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    """Send one message; does nothing if the guard has ended, or was hung up on. It blocks."""
    assert process.stdin is not None
    line = json.dumps(message).encode() + b"\n"
    # The last report of a guard that has ended says why. A `hang_up` meanwhile closes the file, which is a ValueError.
    with contextlib.suppress(BrokenPipeError, ValueError):
        process.stdin.write(line)
        process.stdin.flush()


def hang_up(process: subprocess.Popen[bytes]) -> None:
    """Close its stdin as if vramp were gone: the fastest way to end a tree, unless the guard was told to leave it."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


async def events(process: subprocess.Popen[bytes]) -> AsyncIterator[dict[str, Any]]:
    """What the guard reports, until it closes its end of the pipe or dies in the middle of a line."""
    reader = asyncio.StreamReader(limit=_LINE_LIMIT)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), process.stdout
    )
    try:
        with contextlib.suppress(*UNDECODABLE):  # a guard that says anything else is treated like one that is gone
            while line := await reader.readline():
                yield json.loads(line)
    finally:
        transport.close()


async def stop_server(record: ServerRecord, *, timeout_s: float) -> StopReport:
    """Have its guard stop this server in order; after `timeout_s`, or if the guard is lost, kill everything from here.

    What the guard itself had to kill is unknown here, and so is the GPUs' memory before the start.
    """
    began = time.monotonic()
    seen = [record.server, *record.tree] if record.mark.is_here else []
    if record.mark.guarded:
        guard_process = record.mark.guard
        if not (tree.send_signal(guard_process, signals.SIGTERM) and await _ended(guard_process, within_s=timeout_s)):
            seen += [info.id for info in tree.descendants(guard_process.pid)]
            tree.send_signal(guard_process, signals.SIGKILL)  # a guard that hangs is treated like one that is gone
    report = await end_without_guard(seen, record.container)
    if report.clean:
        forget(record.mark)
    unknown = f"{NOT_CHECKED}: its level before the start is not known here"
    return msgspec.structs.replace(report, elapsed_s=time.monotonic() - began, gpu_memory=unknown)


async def end_without_guard(seen: Iterable[tree.ProcessId], container: Container | None) -> StopReport:
    """End these processes and everything that belongs to them, and remove the container."""
    problem = await asyncio.to_thread(remove_container, container) if container is not None else ""
    grace_s = guard.LEFTOVER_GRACE_S
    both = await asyncio.to_thread(tree.kill_seen, seen, grace_s=grace_s, within_s=grace_s + guard.KILL_WAIT_S)
    killed, left = (tuple(ProcessName(info.id.pid, info.name) for info in infos) for infos in both)
    return StopReport(0.0, killed, left, problem)


async def _ended(target: tree.ProcessId, *, within_s: float) -> bool:
    """Whether this process, which need not be a child, ends within so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while tree.lives(target):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
    return not tree.lives(target)
