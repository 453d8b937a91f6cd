"""What becomes of the servers when a run ends: stopped, with a word on what that took, or left running on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from loadgen.errors import ServerError, VrampError
from loadgen.metrics.snapshot import BEAT_S
from loadgen.run.servers import Servers
from loadgen.server.supervisor import ServerState

Tell = Callable[[str, str], None]  # an event: its kind and its words


async def end_servers(servers: Servers, *, leave: bool, tell: Tell, beat: Callable[[], None]) -> ServerState | None:
    """Stop all of them, or with `leave` let those run on that are ready; `beat` is called while that takes its time.

    Returns the state that they are in then, None if they are not ours or were left running.
    """
    if leave and servers.managed and servers.state == "ready" and await _left_running(servers, tell):
        return None
    stopping = asyncio.create_task(servers.stop())
    while not stopping.done():
        beat()
        await asyncio.wait({stopping}, timeout=BEAT_S)
    for report in await stopping:
        tell("server" if report.clean else "error", f"server {report.sentence}")
    if not servers.managed:
        return None
    return "died" if servers.died else "stopped"


def first_line(error: VrampError) -> str:
    """What went wrong, without the evidence."""
    return str(error).partition("\n")[0]


async def until(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Work to its end, or until an event; then it is cancelled, and has come to rest when this returns."""
    going, told = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait({going, told}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
        going.cancel()
        await asyncio.wait({going})
    if not going.cancelled():
        going.result()


async def _left_running(servers: Servers, tell: Tell) -> bool:
    try:
        await servers.leave()
    except ServerError as error:
        tell("error", f"{error}; it is stopped")
        return False
    ports = " ".join(str(server.port) for server in servers.managed)
    tell("server", f"left running at {' '.join(servers.base_urls)}; `vramp stop {ports}` ends it")
    return True
