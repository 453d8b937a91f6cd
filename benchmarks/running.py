"""What the benchmarks share: a simulator in a process of its own, and a run to its end."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from loadgen.metrics.result import Result
from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.run.run import Run

_LISTENS = re.compile(rb"Starting vLLM server on (http://\S+)")


@asynccontextmanager
async def simulator(step_ms: int, *flags: str) -> AsyncIterator[str]:
    """A simulator of its own for each measurement, of no vramp, so that any may drive it; yields its URL."""
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
    """What the simulator says when it listens; the rest of its log is short."""
    async for line in log:
        if match := _LISTENS.search(line):
            return match[1].decode()
    raise SystemExit("bench: the simulator ended without listening")


def attach(url: str, load: dict[str, Any], **parts: Any) -> Profile:
    """A load on a server that is there."""
    return build_profile(
        {"name": "bench", "server": {"engine": "attach", "url": url}, "load": load, **parts}, where="bench"
    )


async def finish(profile: Profile, look: Callable[[], None] = lambda: None, **options: Any) -> Result:
    """The result of a run; `look` is called at every snapshot."""
    run = Run(profile, where="bench", **options)
    async for _ in run.snapshots():
        look()
    if run.error is not None or run.result is None or not run.result.stages:
        raise SystemExit(f"bench: {run.error}")
    return run.result
