"""Shared by the benchmarks: options, a folder, a simulator, a run to its end, a table, the CPU of a process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx
import psutil

from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.report.tabular import Column, text_lines
from loadgen.run.run import Run
from loadgen.run.settings import RunSettings
from loadgen.schema.result import Result, StageResult

ROOT = Path(__file__).parents[1]
SIMULATOR = ("-m", "loadgen.simulator")
_LISTENS = re.compile(rb"Starting vLLM server on (http://\S+)")
_EARLIER_NS = 20_000_000
"""A stage begins a little before the time that its result has; the requests before it are 50 ms older at least."""
_Row = TypeVar("_Row")


def read_options(description: str | None, **defaults: Any) -> argparse.Namespace:
    """Read the command line: an option of its type for each default; a tuple is a list with commas, False a flag."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            shown = ",".join(map(str, default))
            parser.add_argument(
                flag, type=partial(_listed, type(default[0])), default=default, help=f"(default: {shown})"
            )
        else:
            parser.add_argument(flag, type=type(default), default=default, help=f"(default: {default})")
    return parser.parse_args()


def _listed(kind: Callable[[str], Any], text: str) -> list[Any]:
    return [kind(part) for part in text.split(",")]


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, which is the current one meanwhile."""
    with tempfile.TemporaryDirectory(prefix="vramp-bench-") as name, contextlib.chdir(name):
        yield Path(name)


class Table(Generic[_Row]):
    """Prints rows as they come."""

    def __init__(self, columns: Sequence[Column[_Row]]) -> None:
        self._columns = [replace(each, width=max(each.width, len(each.label) + 2, 8)) for each in columns]
        self._begun = False

    def add(self, row: _Row) -> None:
        print(*text_lines(self._columns, [row], head=not self._begun), sep="\n", flush=True)
        self._begun = True


@asynccontextmanager
async def simulator(step_ms: int, *flags: str, program: Sequence[str] = SIMULATOR) -> AsyncIterator[str]:
    """Start a simulator for one measurement, which belongs to no vramp, so that any may drive it; yields its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *program, "--preset", "bench", "--step-ms", str(step_ms), "--port", "0", *flags),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        yield await _url_of(process.stderr)
    finally:
        process.kill()
        await process.wait()


async def _url_of(log: asyncio.StreamReader) -> str:
    """Return the URL that the simulator logs when it listens; the rest of its log is short and stays unread."""
    async for line in log:
        if match := _LISTENS.search(line):
            return match[1].decode()
    raise SystemExit("bench: the simulator ended without listening")


async def fetch_truth(url: str, since_ns: int = 0) -> dict[str, Any]:
    """Return what the simulator served, in all or since a moment in unix nanoseconds."""
    window = {"since": since_ns - _EARLIER_NS} if since_ns else {}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        document: dict[str, Any] = (await client.get(f"{url}/truth", params=window)).json()
        return document


def attach(url: str, load: dict[str, Any], **parts: Any) -> Profile:
    """Return a profile with a load for a running server."""
    return build_profile(
        {"name": "bench", "server": {"engine": "attach", "url": url}, "load": load, **parts}, where="bench"
    )


async def finish(profile: Profile, look: Callable[[], None] = lambda: None, **options: Any) -> Result:
    """Run a profile and return its result; `look` is called at every snapshot."""
    run = Run(RunSettings(profile, where="bench", **options))
    async for _ in run.snapshots():
        look()
    if run.error is not None or run.result is None or not run.result.stages:
        raise SystemExit(f"bench: {run.error}")
    return run.result


def began_ns(stage: StageResult) -> int:
    """Return when a stage began, in unix nanoseconds: before it, a run sends requests that are no load."""
    return int(datetime.fromisoformat(stage.started_at).timestamp() * 1e9)


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def tree_cpu_s(pid: int) -> dict[int, float]:
    """Return the CPU seconds of a process and of its live descendants, by pid."""
    used = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        for process in (leader, *leader.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                used[process.pid] = cpu_s(process)
    return used
