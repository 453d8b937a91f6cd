"""The Dask workers that run the load: those of a scheduler that runs already."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

import distributed
import msgspec

from loadgen.cluster.facts import host_facts
from loadgen.errors import ClusterError
from loadgen.metrics.journal import HostFacts
from loadgen.profile.cluster import Cluster

_CONNECT_S = 10.0


class StartedHosts(NamedTuple):
    """A client of the scheduler, and one Dask worker of each host with the facts of that host."""

    client: distributed.Client
    workers: tuple[tuple[HostFacts, str], ...]
    owned: bool  # whether vramp started the Dask workers


@contextlib.asynccontextmanager
async def started(settings: Cluster) -> AsyncIterator[StartedHosts]:
    """Raises `ClusterError` in one line per host that cannot take part."""
    try:
        client = await distributed.Client(settings.scheduler, asynchronous=True, timeout=_CONNECT_S)
    except (OSError, TimeoutError) as error:
        raise ClusterError(f"{settings.scheduler}: no Dask scheduler answers there: {error}") from None
    try:
        yield StartedHosts(client, await _one_worker_each(client, str(settings.scheduler)), owned=False)
    finally:
        with contextlib.suppress(TimeoutError, OSError):
            await asyncio.wait_for(client.close(), _CONNECT_S)


async def _one_worker_each(client: distributed.Client, scheduler: str) -> tuple[tuple[HostFacts, str], ...]:
    try:
        found: dict[str, HostFacts] = await client.run(host_facts)
    except ModuleNotFoundError as error:
        raise ClusterError(
            f"{scheduler}: its workers have no {error.name}: install vramp there, in this version"
        ) from None
    hosts = {facts.identity: (facts, address) for address, facts in sorted(found.items())}
    if not hosts:
        raise ClusterError(f"{scheduler}: the scheduler has no workers")
    return tuple(
        (msgspec.structs.replace(facts, address=address, name=f"h{i}"), address)
        for i, (facts, address) in enumerate(hosts.values())
    )
