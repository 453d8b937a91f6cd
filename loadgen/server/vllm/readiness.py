"""When a server is ready: it answers, and it says what it serves."""

from __future__ import annotations

import asyncio
import contextlib

from loadgen.errors import ServerError
from loadgen.server.vllm.client import ServerClient

_POLL_S = 0.25
_END_NOTICE_S = 1.0


async def until_ready(client: ServerClient, ended: asyncio.Event) -> bool:
    """True once the server is ready, False once it has ended; raises `ServerError` if it answers, but wrongly."""
    while not ended.is_set():
        if await client.health() and await _answers(client, ended):
            return True
        await _is_set_within(ended, _POLL_S)
    return False


async def _answers(client: ServerClient, ended: asyncio.Event) -> bool:
    try:
        await client.models()
    except ServerError:
        if await _is_set_within(ended, _END_NOTICE_S):  # the better explanation
            return False
        raise
    return True


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
