"""vramp's side of a guard: starting one, speaking to it and listening to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal as signals
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import Any

import loadgen
from loadgen.server.process import guard, tree
from loadgen.server.process.locks import ServerRecord, record_path
from loadgen.server.process.tree import ProcessInfo

PACKAGE_ROOT = Path(loadgen.__file__).parents[1]
_LINE_LIMIT = 1 << 22


def start_guard(log_path: Path) -> subprocess.Popen[bytes]:
    """A guard that waits for its order; it writes its own troubles to the server's log."""
    # Not asyncio's subprocess: it kills its child when the loop is closed, and the guard must outlive that.
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", guard.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=PACKAGE_ROOT,
            start_new_session=True,
        )
    finally:
        os.close(log)


def tell(process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    """Send one message; to a guard that has ended, nothing. BatchMeans."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # what it reported last says why it ended
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()


def hang_up(process: subprocess.Popen[bytes]) -> None:
    """Look like a vramp that is gone: nothing ends a tree faster, unless the guard was told to leave it."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


async def events(process: subprocess.Popen[bytes]) -> AsyncIterator[dict[str, Any]]:
    """What the guard reports, until its end of the pipe is closed."""
    reader = asyncio.StreamReader(limit=_LINE_LIMIT)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), process.stdout
    )
    try:
        while line := await reader.readline():
            yield json.loads(line)
    finally:
        transport.close()


def forget(process: subprocess.Popen[bytes]) -> None:
    """Let a guard that was told to leave live on without us."""
    hang_up(process)
    process.returncode = 0  # it is not ours to wait for any more, and subprocess would complain that nobody did


NOT_ASKED = "not checked"


@dataclass(frozen=True, slots=True)
class ServerExit:
    """How the server's main process ended; both None if its guard was lost, so that nobody could see it."""

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal == signals.SIGKILL:
            return "was killed by SIGKILL (by somebody, or by the kernel for want of memory)"
        if self.signal is not None:
            return f"was killed by {signals.Signals(self.signal).name}"
        if self.code is None:
            return "lost its guard process and was killed"
        return f"ended with exit code {self.code}"


@dataclass(frozen=True, slots=True)
class ProcessName:
    """A process of the server's tree, for a person."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class StopReport:
    """What it took to end the server's tree; `left` is empty unless the kernel could not end a process."""

    elapsed_s: float
    killed: tuple[ProcessName, ...] = ()
    left: tuple[ProcessName, ...] = ()
    problem: str = ""  # what else went wrong, such as a container that could not be removed
    gpu_memory: str = NOT_ASKED
    """Whether the GPUs' memory is back at its level before the start, who holds it if not, or why nobody knows."""

    @property
    def clean(self) -> bool:
        """Whether nothing is known to be left."""
        return not self.left and not self.problem

    @property
    def sentence(self) -> str:
        """All of it, for a screen."""
        parts = [f"stopped in {self.elapsed_s:.1f} s"]
        if self.killed:
            parts.append(f"had to be killed: {_listed(self.killed)}")
        parts.append(f"could not be ended: {_listed(self.left)}" if self.left else "no process left")
        parts += [self.problem] if self.problem else []
        parts += [f"GPU memory: {self.gpu_memory}"] if self.gpu_memory != NOT_ASKED else []
        return "; ".join(parts)


def names_from_guard(processes: Iterable[dict[str, Any]]) -> tuple[ProcessName, ...]:
    """Processes as the guard's lines describe them."""
    return tuple(ProcessName(entry["pid"], entry["name"]) for entry in processes)


def names_of(processes: Iterable[ProcessInfo]) -> tuple[ProcessName, ...]:
    """Processes as they were seen from here."""
    return tuple(ProcessName(info.id.pid, info.name) for info in processes)


def _listed(processes: Iterable[ProcessName]) -> str:
    return ", ".join(f"{process.name} ({process.pid})" for process in processes)


_COMMAND_WAIT_S = 10.0
_POLL_S = 0.05
_LEVEL_UNKNOWN = f"{NOT_ASKED}: its level before the start is not known here"


async def stop_server(record: ServerRecord, *, timeout_s: float) -> StopReport:
    """Have its guard stop this server in order; after `timeout_s`, or if the guard is lost, kill all of it from here.

    What the guard itself had to kill is not known here, and neither is the GPUs' memory before the start.
    """
    began = time.monotonic()
    if tree.send_signal(record.guard, Signals.SIGTERM) and await _ended(record.guard, within_s=timeout_s):
        seen = [process for process in (record.server, *record.tree) if tree.lives(process)]
        report = await end_without_guard(seen, None) if seen else StopReport(0.0)
    else:
        seen = _all_of(record)
        tree.send_signal(record.guard, Signals.SIGKILL)  # one that hangs is worth no more than one that is gone
        report = await end_without_guard(seen, record.kill_command)
    if not report.left:
        record_path(record.port).unlink(missing_ok=True)
    return replace(report, elapsed_s=time.monotonic() - began, gpu_memory=_LEVEL_UNKNOWN)


async def end_without_guard(
    seen: Iterable[tree.ProcessId], kill_command: list[str] | None, *, environment: Mapping[str, str] | None = None
) -> StopReport:
    """Kill these processes, all that hang on them, and what the command ends, run in this environment or our own."""
    problem = await asyncio.to_thread(_run, kill_command, environment) if kill_command else ""
    killed, left = await asyncio.to_thread(tree.kill_seen, seen, within_s=guard.KILL_WAIT_S)
    return StopReport(0.0, names_of(killed), names_of(left), problem)


def _all_of(record: ServerRecord) -> list[tree.ProcessId]:
    known = [record.server, *record.tree]
    if tree.lives(record.guard):
        known += [info.id for info in tree.descendants(record.guard.pid)]
    return known


def _run(command: list[str], environment: Mapping[str, str] | None) -> str:
    """Run it to its end; what went wrong, in words."""
    shown = shlex.join(command)
    try:
        done = subprocess.run(
            command,
            env=environment,
            check=False,
            timeout=_COMMAND_WAIT_S,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    except subprocess.TimeoutExpired:
        return f"{shown} did not end in time"
    except OSError as error:
        return f"cannot run {shown}: {error.strerror}"
    return f"{shown} ended with exit code {done.returncode}" if done.returncode != 0 else ""


async def _ended(target: tree.ProcessId, *, within_s: float) -> bool:
    """Whether this process has ended, at the latest after so long."""
    try:
        handle = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return True
    except OSError:  # a kernel or a container without pidfds
        return await _seen_to_end(target, within_s)
    try:
        return not tree.lives(target) or await _readable(handle, within_s)
    finally:
        os.close(handle)


async def _readable(handle: int, within_s: float) -> bool:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, readable.set)
    try:
        await asyncio.wait_for(readable.wait(), within_s)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(handle)
    return True


async def _seen_to_end(target: tree.ProcessId, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while tree.lives(target):
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True
