"""Waits for HBM to be freed after a stop: the next server would lack what the driver is still freeing.

A stop waits until memory is back at its level before the start, or reports which processes hold it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from loadgen.errors import VrampError
from loadgen.format import memory
from loadgen.profile.schema import Server
from loadgen.server.gpus.given import environment_of, server_gpus
from loadgen.server.gpus.gpu import Gpu, read_gpus
from loadgen.server.process.guard_client import NOT_CHECKED
from loadgen.until import is_set_within
from loadgen.vendors import Platform, platform_here

RELEASE_WAIT_S = 15.0
TOLERANCE_BYTES = 512 * 1024**2  # what a driver may keep, or small neighbours may take meanwhile
_RELEASE_POLL_S = 0.5


def still_held(before: Sequence[Gpu], now: Sequence[Gpu], *, tolerance_bytes: int) -> list[str]:
    """Describe the GPUs that have over `tolerance_bytes` more in use than `before`, and whose processes grew.

    A GPU that was not there before counts from 0.
    """
    earlier = {gpu.id: gpu for gpu in before}
    found: list[str] = []
    for gpu in now:
        old = earlier.get(gpu.id) or replace(gpu, used_bytes=0, holders=())
        had = {holder.pid: holder.used_bytes or 0 for holder in old.holders}
        grown = [str(one) for one in gpu.holders if one.pid not in had or (one.used_bytes or 0) > had[one.pid]]
        excess_bytes = (gpu.used_bytes or 0) - (old.used_bytes or 0)
        if excess_bytes > tolerance_bytes:
            names = ", ".join(grown) or "no visible process"
            found.append(f"GPU {gpu.index} ({gpu.name}): {memory(excess_bytes)} more, held by {names}")
    return found


HeldSince = Callable[[], str]
"""Describes the processes that hold memory beyond the level at its creation; "" if there are none. May block; raises
`VrampError` if memory cannot be read."""


def gpu_level(server: Server, platform: Platform, read: Callable[[], list[Gpu]]) -> HeldSince:
    """Note the memory level of the GPUs that the server and its instances will use; of all if those are unknown."""
    gpus = read()
    taken = server_gpus(server, platform, environment_of(server), gpus)
    before = gpus if taken is None else taken
    ids = {gpu.id for gpu in before}

    def held_now() -> str:
        now = [gpu for gpu in read() if gpu.id in ids]
        return "; ".join(still_held(before, now, tolerance_bytes=TOLERANCE_BYTES))

    return held_now


async def level_now(server: Server) -> HeldSince | str:
    """The level before a start, or why it is unknown."""
    platform = server.platform or platform_here()
    if server.engine not in ("vllm", "docker") or platform == "cpu":
        return NOT_CHECKED
    try:
        return await asyncio.to_thread(gpu_level, server, platform, partial(read_gpus, platform=platform))
    except VrampError as error:
        return f"{NOT_CHECKED}: {error}"


async def wait_back(held: HeldSince | str, hurried: asyncio.Event) -> str:
    """Wait until memory is back at that level, at most `RELEASE_WAIT_S` or until `hurried`; returns how it ended."""
    if isinstance(held, str):
        return held
    began = time.monotonic()
    try:
        while holders := await asyncio.to_thread(held):
            elapsed_s = time.monotonic() - began
            if hurried.is_set() or elapsed_s >= RELEASE_WAIT_S:
                return f"{elapsed_s:.0f} s after the end of the processes still held: {holders}"
            await is_set_within(hurried, _RELEASE_POLL_S)
    except VrampError as error:
        return f"{NOT_CHECKED}: {error}"
    return "back at its level before the start"
