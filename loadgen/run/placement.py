"""Chooses the CPUs for a run's workers: not those that a server on this machine was given, nor their SMT siblings.

All workers share one set, so that the scheduler can still move a worker away from other processes; it has a CPU for
each worker, or nothing is pinned.

The CPUs that a server was given are those that its threads may use, however it was given them: taskset, numactl, a
container's cpuset, systemd, its own settings. One thread that may use every CPU leaves none to the workers.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from loadgen.errors import ProfileError
from loadgen.format import ranges
from loadgen.schema.shared import Placement
from loadgen.server.gpus.processes import attached_pids
from loadgen.server.process.ports import is_this_machine
from loadgen.stream.request import ServerAddress
from loadgen.system import ALL_CPUS, Cpus, parse_cpus


class Topology(NamedTuple):
    """What the kernel says about the CPUs of a machine; empty where it says nothing."""

    siblings: Mapping[int, Cpus] = {}  # the CPUs of each one's core, itself included
    nodes: Mapping[int, Cpus] = {}  # by NUMA node

    def with_siblings(self, cpus: Cpus) -> Cpus:
        return cpus.union(*(self.siblings.get(cpu, ()) for cpu in cpus))

    def cores(self, cpus: Cpus) -> int:
        return len({self.siblings.get(cpu, frozenset({cpu})) for cpu in cpus})

    def on_nodes_of(self, cpus: Cpus) -> Cpus:
        return frozenset().union(*(node for node in self.nodes.values() if node & cpus))


def read_topology(root: Path = Path("/sys")) -> Topology:
    """The topology in a tree of sysfs."""
    siblings = (root / "devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    nodes = (root / "devices/system/node").glob("node[0-9]*/cpulist")
    return Topology(
        {int(file.parts[-3].removeprefix("cpu")): cpus for file, cpus in _listed(siblings)},
        {int(file.parts[-2].removeprefix("node")): cpus for file, cpus in _listed(nodes)},
    )


def cpus_near(interface: str, topology: Topology, root: Path = Path("/sys")) -> Cpus:
    """The CPUs on the NUMA nodes of a network interface, or of its member interfaces; none if it has no node."""
    folder = root / "class/net" / interface
    files = (folder / "device/numa_node", *folder.glob("lower_*/device/numa_node"))
    nodes = frozenset().union(*(numbers for _, numbers in _listed(files)))
    return frozenset().union(*(topology.nodes.get(node, frozenset()) for node in nodes))


def _listed(files: Iterable[Path]) -> Iterator[tuple[Path, Cpus]]:
    """The numbers that each file lists, as Linux lists CPUs; a file that lists none, or cannot be read, is left out."""
    for file in files:
        try:
            cpus = parse_cpus(file.read_text())
        except (OSError, ValueError):
            continue
        if cpus:
            yield file, cpus


def unpinned(usable: Cpus, why: str) -> Placement:
    """A placement without pinning: the workers run wherever vramp itself may."""
    return Placement(format_cpus(usable), False, why)


def placement(usable: Cpus, server: Cpus, near: Cpus, workers: int, topology: Topology) -> Placement:
    """The placement that disturbs the server least; `near` are the CPUs on the server's or the network's NUMA node.

    `server` are the CPUs that the server was given: none if it is on another machine.
    """
    spare = usable - server
    clear = usable - topology.with_siblings(server)
    close = clear & near
    off = "off the server's CPUs" if server else "the server is on another machine"
    off_close = f"{off}, on its NUMA node" if server else "on the NUMA node of the interface to the server"
    choices = (
        # A core for each worker: one on another node is better than two workers on one core.
        (close, topology.cores(close), off_close),
        (clear, topology.cores(clear), off),
        (clear, len(clear), off),
        (spare, len(spare), f"{off}, on their SMT siblings: too few others are left"),
    )
    for cpus, room, why in choices:
        if room >= max(1, workers):
            avoided = topology.with_siblings(server) - cpus
            pinned = bool(server) or cpus != usable
            return Placement(format_cpus(cpus), pinned, why, format_cpus(avoided))
    if not server:
        return unpinned(usable, off)
    if not spare:
        return unpinned(usable, "the server may use every CPU that vramp may use")
    return unpinned(usable, f"{workers} workers need more than the CPUs that the server leaves: {format_cpus(spare)}")


def format_cpus(cpus: Iterable[int]) -> str:
    """A list that `parse_cpus` reads; empty for no CPUs."""
    return ranges(cpus).replace(" ", "")


def place_workers(
    wanted: str | None, urls: Iterable[str], addresses: Sequence[ServerAddress], workers: int
) -> Placement:
    """The placement for servers that answer; `wanted` is `load.cpus`.

    Slow: it examines every process of the machine. Raises `ProfileError` for CPUs that vramp may not use.
    """
    usable = frozenset(os.sched_getaffinity(0))
    if wanted == ALL_CPUS:
        return unpinned(usable, f'load.cpus = "{ALL_CPUS}"')
    if wanted is not None:
        cpus = parse_cpus(wanted)
        missing = format_cpus(cpus - usable)
        if missing:
            raise ProfileError(f"load.cpus: vramp may not use {missing}; its CPUs are {format_cpus(usable)}")
        return Placement(format_cpus(cpus), True, "named in load.cpus")
    topology = read_topology()
    here = [url for url, address in zip(urls, addresses, strict=True) if is_this_machine(address.ip)]
    if not here:
        near = frozenset().union(*(_near_interface_to(address, topology) for address in addresses))
        return placement(usable, frozenset(), near, workers, topology)
    server = cpus_of(attached_pids(here))
    if not server:
        return unpinned(usable, "the server's processes are hidden from this user")
    return placement(usable, server, topology.on_nodes_of(server), workers, topology)


def cpus_of(pids: Iterable[int]) -> Cpus:
    cpus: set[int] = set()
    for thread in (int(folder.name) for pid in pids for folder in Path("/proc").glob(f"{pid}/task/*")):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            cpus |= os.sched_getaffinity(thread)
    return frozenset(cpus)


def _near_interface_to(address: ServerAddress, topology: Topology) -> Cpus:
    with socket.socket(address.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address.ip, address.port))  # sends nothing, but makes the kernel choose the route
        except OSError:  # it has just been lost, which the workers will report
            return frozenset()
        own = probe.getsockname()[0]
    try:
        interfaces = psutil.net_if_addrs()
    except OSError:  # not allowed in some sandboxes
        return frozenset()
    names = [name for name, entries in interfaces.items() if any(one.address == own for one in entries)]
    return frozenset().union(*(cpus_near(name, topology) for name in names))
