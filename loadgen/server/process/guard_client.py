"""vramp's side of a guard: starting one, speaking to it and listening to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import loadgen
from loadgen.server.process import guard

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
