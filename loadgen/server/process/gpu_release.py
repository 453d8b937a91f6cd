"""After a stop: wait until the memory of the GPUs is back at its level before the start, or say who holds it.

A process may be gone while the driver still gives back what it held, and the next server fails for want of memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from loadgen.errors import VrampError
from loadgen.server.process.gpu_memory import GpuMemory, read_gpu_memory, still_held
from loadgen.server.process.outcome import NOT_ASKED

WAIT_S = 15.0
TOLERANCE_BYTES = 512 * 1024**2  # what a driver may keep for itself, and small neighbours may take meanwhile
_POLL_S = 0.5

HeldSince = Callable[[], str]
"""Who holds memory beyond the level at which it was made, in words; "" if nobody does. Raises `VrampError`."""
NoteLevel = Callable[[], HeldSince]
"""Notes the level at which the memory is now. Raises `VrampError` if it cannot be read; both may block."""


def gpu_level(read: Callable[[], list[GpuMemory]] = read_gpu_memory) -> HeldSince:
    """Note the level of all GPUs; several servers that start together share what one call returned."""
    before = read()
    return lambda: "; ".join(str(gpu) for gpu in still_held(before, read(), tolerance_bytes=TOLERANCE_BYTES))


async def level_now(note: NoteLevel = gpu_level) -> HeldSince | str:
    """The level before a start; or in words why it is not known."""
    try:
        return await asyncio.to_thread(note)
    except VrampError as error:
        return f"{NOT_ASKED}: {error}"


async def wait_back(held: HeldSince | str, hurried: asyncio.Event) -> str:
    """Wait until it is back at that level, at most `WAIT_S` and not once `hurried`; says in words how it ended."""
    if isinstance(held, str):
        return held
    began = time.monotonic()
    try:
        while holders := await asyncio.to_thread(held):
            elapsed_s = time.monotonic() - began
            if hurried.is_set() or elapsed_s >= WAIT_S:
                return f"{elapsed_s:.0f} s after the end of the processes still held: {holders}"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hurried.wait(), _POLL_S)
    except VrampError as error:
        return f"{NOT_ASKED}: {error}"
    return "back at its level before the start"
