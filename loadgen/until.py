"""Work that an event ends: a run that is stopped, a session that is started anew, a simulator that gets a signal.

Nothing here or elsewhere uses `asyncio.wait_for`: Python 3.11's loses a cancellation that comes as the work ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any


async def until(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Work to its end, or until an event; then it is cancelled, and has come to rest when this returns."""
    going, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait({going, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        going.cancel()
        await asyncio.wait({going})
        # Asked here: if this is cancelled while the work fails, nobody else asks, and asyncio would print it.
        failure = None if going.cancelled() else going.exception()
    if failure is not None:
        raise failure


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, but only so long; whether it is set then."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
