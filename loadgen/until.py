"""Work that an event can end, such as the stop of a run, the restart of a session, or a signal to the simulator.

Nothing here or elsewhere uses `asyncio.wait_for`: Python 3.11's loses a cancellation that comes as the work ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any


async def until(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or the event is set; in that case it is cancelled, and has ended when this returns."""
    going, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait({going, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        going.cancel()
        await asyncio.wait({going})
        # Retrieved here: if this is cancelled while the work fails, nothing else does, and asyncio would print it.
        failure = None if going.cancelled() else going.exception()
    if failure is not None:
        raise failure


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event for at most so long; returns whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
