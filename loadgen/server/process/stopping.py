"""Ending a server without the help that its own vramp had: one that was left running, or one whose guard is lost.

Invariants: only processes that vramp started are signalled, each known by pid and start time; every wait is bounded.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from signal import Signals

from loadgen.server.process import guard, tree
from loadgen.server.process.outcome import NOT_ASKED, StopReport, names_of
from loadgen.server.process.records import ServerRecord, record_path

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
