"""Shared by the benchmarks: a simulator in its own process, and a run to its end."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.run.run import Run
from loadgen.schema.result import Result

_LISTENS = re.compile(rb"Starting vLLM server on (http://\S+)")


@asynccontextmanager
async def simulator(step_ms: int, *flags: str) -> AsyncIterator[str]:
    """Start a simulator for one measurement, which belongs to no vramp, so that any may drive it; yields its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.simulator", "--preset", "bench", "--step-ms", str(step_ms), "--port", "0"),
        *flags,
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


def attach(url: str, load: dict[str, Any], **parts: Any) -> Profile:
    """Return a profile with a load for a running server."""
    return build_profile(
        {"name": "bench", "server": {"engine": "attach", "url": url}, "load": load, **parts}, where="bench"
    )


async def finish(profile: Profile, look: Callable[[], None] = lambda: None, **options: Any) -> Result:
    """Run a profile and return its result; `look` is called at every snapshot."""
    run = Run(profile, where="bench", **options)
    async for _ in run.snapshots():
        look()
    if run.error is not None or run.result is None or not run.result.stages:
        raise SystemExit(f"bench: {run.error}")
    return run.result
