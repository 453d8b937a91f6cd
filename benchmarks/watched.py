"""Runs a client's process to its end: the CPU that its whole tree used, and what it used while the load flowed.

The CPU of a whole run is the kernel's own account of ended children. Orphans of the client count too, because this
process adopts and ends them. In a short run, start-up, imports and reports would dominate the cost of a token, so that
is taken between two samples of the tree while every stream is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from benchmarks.running import tree_cpu_s
from loadgen.server.engines.sample import parse_engine_metrics

OUTPUT = "output.txt"
"""The file with the output of the process, in its folder."""
_LOOK_EVERY_S = 0.5
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended."""

    returncode: int | None  # None: it was killed because it took too long
    cpu_s: float
    us_per_token: float | None  # None: the load was over too soon to tell


@dataclass(slots=True)
class Looks:
    """Samples of the CPU that a process tree has used, and of the tokens sent to it by then."""

    streams: int
    tokens: int
    seen: list[tuple[float, float]] = field(default_factory=list)
    _of_pid: dict[int, float] = field(default_factory=dict)

    def take(self, pid: int, generated: float) -> None:
        self._of_pid |= tree_cpu_s(pid)
        if self.streams <= generated <= 0.9 * self.tokens:
            self.seen.append((sum(self._of_pid.values()), generated))

    @property
    def us_per_token(self) -> float | None:
        if len(self.seen) < 2:
            return None
        (cpu_before_s, before), (cpu_after_s, after) = self.seen[0], self.seen[-1]
        return (cpu_after_s - cpu_before_s) / (after - before) * 1e6 if after > before else None


async def run_watched(
    command: Sequence[str],
    *,
    url: str,
    looks: Looks,
    folder: Path,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    request: bytes = b"",
) -> Ended:
    """Run a client of the simulator at `url` in `folder`, in its own session; no process of it is left afterwards."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    others, before_s = _children(), _ended_cpu_s()
    (folder / "request").write_bytes(request)
    with (folder / "request").open("rb") as stdin, (folder / OUTPUT).open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=os.environ | (env or {}),
            stdin=stdin,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    looking = asyncio.create_task(_look(process.pid, url, looks))
    returncode = None
    try:
        with contextlib.suppress(TimeoutError):
            returncode = await asyncio.wait_for(process.wait(), timeout_s)
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await _end(process)
        _end_orphans(others)
    return Ended(returncode, _ended_cpu_s() - before_s, looks.us_per_token)


async def _look(pid: int, url: str, looks: Looks) -> None:
    """Take samples until cancelled, or until the server cannot answer, which leaves the samples so far."""
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        while True:
            metrics = parse_engine_metrics((await client.get(f"{url}/metrics")).text)
            looks.take(pid, metrics.generation_tokens or 0.0)
            await asyncio.sleep(_LOOK_EVERY_S)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _end_orphans(others: set[int]) -> None:
    """End what the client left behind, which this process has adopted."""
    while orphans := _children() - others:
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


class Others:
    """Measures what others use of the machine from now on: its busy time minus that of this process and children."""

    def __init__(self) -> None:
        self._began = self._now()

    def cores(self) -> float:
        wall_s, busy_s, ours_s = (now - then for now, then in zip(self._now(), self._began, strict=True))
        return max(0.0, busy_s - ours_s) / wall_s

    @staticmethod
    def _now() -> tuple[float, float, float]:
        machine = psutil.cpu_times()
        busy_s = machine.user + machine.system + machine.nice + machine.steal  # interrupts are mostly the loopback's
        return time.monotonic(), busy_s, time.process_time() + _ended_cpu_s()


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def _ended_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
