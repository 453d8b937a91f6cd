"""Turns the profile's `[cluster]` into hosts on which the fleet can start workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import distributed

from loadgen.cluster.actor import HostActor
from loadgen.cluster.link import ClusterHost
from loadgen.cluster.start import StartedHosts, require_reachable, started
from loadgen.errors import ClusterError
from loadgen.profile.schema import Cluster
from loadgen.schema.hosts import HostFacts

Reach = Callable[[Sequence[str]], Awaitable[None]]
"""Raises `ClusterError` with a line for each host that cannot connect to one of the URLs."""

_ACTOR_S = 20.0  # until an actor is there: its host imports numpy and vramp
_CLOSE_S = 5.0
_DASK_LOGGERS = ("distributed", "distributed.client", "tornado", "asyncssh")


@contextlib.asynccontextmanager
async def connected(
    settings: Cluster, urls: Sequence[str], log_path: Path
) -> AsyncIterator[tuple[Sequence[ClusterHost], Reach]]:
    """The hosts, each with its actor and able to reach all `urls`; Dask logs to `log_path`.

    Raises `ClusterError` before anything is sent.
    """
    _log_to(log_path)
    async with started(settings, urls) as there, joined(there) as hosts:
        yield hosts, partial(require_reachable, there)


@contextlib.asynccontextmanager
async def joined(there: StartedHosts) -> AsyncIterator[Sequence[ClusterHost]]:
    """The hosts with an actor each; raises `ClusterError`."""
    async with contextlib.AsyncExitStack() as open_hosts:
        actors = await asyncio.gather(
            *(_actor(there.client, facts, address, owned=there.owned) for facts, address in there.workers)
        )
        hosts = [ClusterHost(facts, actor.exchange) for (facts, _), actor in zip(there.workers, actors, strict=True)]
        for host, actor in zip(hosts, actors, strict=True):
            open_hosts.push_async_callback(_close, host, actor)
        await asyncio.gather(*(_begin(host) for host in hosts))
        yield hosts


def _log_to(path: Path) -> None:
    """Send Dask's log to a file; by default it goes to the terminal, which shows the cockpit."""
    path.touch(mode=0o600)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    for name in _DASK_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False


async def _actor(client: distributed.Client, facts: HostFacts, address: str, *, owned: bool) -> Any:  # noqa: ANN401 - Dask's proxy
    future = client.submit(
        HostActor, ends_process=owned, actor=True, workers=[address], allow_other_workers=False, pure=False, retries=0
    )
    try:
        async with asyncio.timeout(_ACTOR_S):
            actor = await future
        with client.as_current():
            # Looking up a method ties the proxy to this client, which is not everybody's default.
            actor.exchange  # noqa: B018
        return actor
    except TimeoutError:
        raise ClusterError(f"{facts.name}: its actor did not start within {_ACTOR_S:g} s") from None


async def _begin(host: ClusterHost) -> None:
    try:
        await host.start()
    except (OSError, RuntimeError, TimeoutError) as error:
        raise ClusterError(f"{host.name}: its actor does not answer: {error or 'no answer in time'}") from None


async def _close(host: ClusterHost, actor: Any) -> None:  # noqa: ANN401 - Dask's proxy
    await host.close()
    if host.lost is None:
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await actor.close()
