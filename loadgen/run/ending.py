"""What becomes of the servers when a run ends: stopped, with a word on what that took, or left running on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loadgen.errors import ServerError
from loadgen.run.servers import Servers
from loadgen.server.supervisor import ServerState

_BEAT_S = 0.25
Tell = Callable[[str, str], None]
"""An event: its kind and its words."""


async def end_servers(servers: Servers, *, leave: bool, tell: Tell, beat: Callable[[], None]) -> ServerState | None:
    """Stop all of them, or with `leave` let those run on that are ready; `beat` is called while that takes its time.

    Returns the state that they are in then, None if they are not ours or were left running.
    """
    if leave and servers.managed and servers.state == "ready" and await _left_running(servers, tell):
        return None
    stopping = asyncio.create_task(servers.stop())
    while not stopping.done():
        beat()
        await asyncio.wait({stopping}, timeout=_BEAT_S)
    for report in await stopping:
        tell("server" if report.clean else "error", f"server {report.sentence}")
    if not servers.managed:
        return None
    return "died" if servers.died else "stopped"


async def _left_running(servers: Servers, tell: Tell) -> bool:
    try:
        await servers.leave()
    except ServerError as error:
        tell("error", f"{error}; it is stopped")
        return False
    ports = " ".join(str(server.port) for server in servers.managed)
    tell("server", f"left running at {' '.join(servers.base_urls)}; `vramp stop {ports}` ends it")
    return True
