"""The machines that send the load: this one, or the hosts of a cluster.

Invariants: the hosts are joined once, before anything is sent, and stay for all sessions of the run; Dask is imported
only if there are hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from loadgen.errors import ClusterError
from loadgen.fleet.fleet import FleetTick
from loadgen.fleet.host import Host, LocalHost
from loadgen.profile.schema import Cluster
from loadgen.run.placement import place_workers
from loadgen.schema.journal import ClockMoved, HostsJoined, WorkersPlaced
from loadgen.stream.request import ServerAddress
from loadgen.system import Cpus, parse_cpus

if TYPE_CHECKING:
    from loadgen.run.writer import RunWriter


def no_cluster_extra(error: ModuleNotFoundError) -> ClusterError:
    return ClusterError(
        f"load from other hosts needs {error.name}: pip install '.[cluster]' in a checkout, here and on every host"
    )


class LoadHosts:
    """`join` before the first load, `observe` each tick, `close` when the workers are gone."""

    def __init__(self, settings: Cluster, writer: RunWriter) -> None:
        self.each: Sequence[Host] = (LocalHost(),)
        self._settings = settings
        self._writer = writer
        self._joined = False
        self._reach: Callable[[Sequence[str]], Awaitable[None]] | None = None
        self._lost: set[str] = set()
        self._newly_lost: list[str] = []
        self._open = contextlib.AsyncExitStack()

    @property
    def cores(self) -> list[float]:
        return [host.cores for host in self.each]

    async def join(self, urls: Sequence[str]) -> None:
        """Connect to the hosts of the profile, if it has any, from which all `urls` must be reachable.

        Raises `ClusterError`.
        """
        if self._joined or not self._settings.remote:
            return
        try:
            from loadgen.cluster.start import connected
        except ModuleNotFoundError as error:
            raise no_cluster_extra(error) from None
        log_path = self._writer.folder / "cluster.log"
        hosts, self._reach = await self._open.enter_async_context(connected(self._settings, urls, log_path))
        self.each, self._joined = hosts, True
        if self._settings.exposed is not None:
            self._writer.event("error", self._settings.exposed)
        self._writer.log(HostsJoined(t_s=self._writer.clock_s(), hosts=tuple(host.facts for host in hosts)))

    async def require_reachable(self, urls: Sequence[str]) -> None:
        """Raise `ClusterError` with a line for each host that cannot connect to one of the URLs."""
        if self._reach is not None:
            await self._reach(urls)

    async def place(
        self, wanted: str | None, urls: Sequence[str], addresses: Sequence[ServerAddress], workers: int
    ) -> Cpus:
        """The CPUs for the workers of this machine; none if they may use all, or if they are on other hosts.

        Raises `ProfileError` for CPUs that vramp may not use.
        """
        if self._joined:
            return frozenset()
        placed = await asyncio.to_thread(place_workers, wanted, urls, addresses, workers)
        self._writer.log(WorkersPlaced(t_s=self._writer.clock_s(), placement=placed))
        return parse_cpus(placed.cpus) if placed.pinned else frozenset()

    def observe(self, tick: FleetTick) -> None:
        """Write down clocks that were moved, and hosts that were lost or are back."""
        for name, by_ns in tick.clock_moves:
            self._writer.log(ClockMoved(t_s=self._writer.clock_s(), host=name, by_ns=by_ns))
            self._writer.event("error", f"the clock of {name} was moved by {by_ns / 1e6:+.1f} ms against ours")
        lost = {host.name for host, part in zip(self.each, tick.hosts, strict=False) if part.lost}
        for name in sorted(self._lost - lost):
            self._writer.event("load", f"{name} answers again; it takes part from the next stage on")
        self._newly_lost += sorted(lost - self._lost)
        self._lost = lost

    def take_lost(self) -> list[str]:
        lost, self._newly_lost = self._newly_lost, []
        return lost

    async def close(self) -> None:
        """Leave the hosts, after their workers have ended."""
        await self._open.aclose()
        self.each, self._joined = (LocalHost(),), False
