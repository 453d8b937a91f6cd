"""Waits for HBM to be freed after a stop: the next server would lack what the driver is still freeing.

A stop waits until memory is back at its level before the start, or reports which processes hold it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

from loadgen.errors import VrampError
from loadgen.format import memory
from loadgen.profile.schema import Server
from loadgen.schema.samples import GpuSample
from loadgen.server.gpus.given import environment_of, server_gpus
from loadgen.server.process.guard_client import NOT_CHECKED
from loadgen.telemetry.gpus_now import GpusNow, read_gpus
from loadgen.until import is_set_within
from loadgen.vendors import platform_here, vendor_of

RELEASE_WAIT_S = 15.0
TOLERANCE_BYTES = 512 * 1024**2  # what a driver may keep, or small neighbours may take meanwhile
_RELEASE_POLL_S = 0.5

HeldSince = Callable[[], Awaitable[str]]
"""Describes the processes that hold memory beyond the level at its creation; "" if there are none. Raises `VrampError`
if memory cannot be read."""


async def level_now(server: Server) -> HeldSince | str:
    """The level before a start, or why it is unknown."""
    vendor = vendor_of(server.platform or platform_here())
    if server.engine not in ("vllm", "docker") or vendor is None:
        return NOT_CHECKED
    try:
        before = await read_gpus(vendor)
        indices = used_indices(server, before)
    except VrampError as error:
        return f"{NOT_CHECKED}: {error}"

    async def held_now() -> str:
        return "; ".join(still_held(before.samples, await read_gpus(vendor), indices))

    return held_now


def used_indices(server: Server, now: GpusNow) -> set[int]:
    """The GPUs that the server and its instances will use; all if those are unknown."""
    used = server_gpus(server, environment_of(server), now.gpus)
    return {gpu.index for gpu in (now.gpus if used is None else used)}


def still_held(before: Mapping[int, GpuSample], now: GpusNow, indices: Collection[int]) -> list[str]:
    """Describe the GPUs that have noticeably more in use than `before`, and whose processes grew."""
    found: list[str] = []
    for gpu in now.gpus:
        if gpu.index not in indices or gpu.index not in now.samples:
            continue
        old, sample = before.get(gpu.index) or GpuSample(gpu.index, 0.0), now.samples[gpu.index]
        excess_bytes = (sample.hbm_used_bytes or 0) - (old.hbm_used_bytes or 0)
        if excess_bytes > TOLERANCE_BYTES:
            had = {process.pid: process.hbm_bytes or 0 for process in old.processes or ()}
            grown = [one for one in sample.processes or () if (one.hbm_bytes or 0) > had.get(one.pid, -1)]
            names = ", ".join(map(str, grown)) or "no visible process"
            found.append(f"GPU {gpu.index} ({gpu.name}): {memory(excess_bytes)} more, held by {names}")
    return found


async def wait_back(held: HeldSince | str, hurried: asyncio.Event) -> str:
    """Wait until memory is back at that level, at most `RELEASE_WAIT_S` or until `hurried`; returns how it ended."""
    if isinstance(held, str):
        return held
    began = time.monotonic()
    try:
        while holders := await held():
            elapsed_s = time.monotonic() - began
            if hurried.is_set() or elapsed_s >= RELEASE_WAIT_S:
                return f"{elapsed_s:.0f} s after the end of the processes still held: {holders}"
            await is_set_within(hurried, _RELEASE_POLL_S)
    except VrampError as error:
        return f"{NOT_CHECKED}: {error}"
    return "back at its level before the start"
