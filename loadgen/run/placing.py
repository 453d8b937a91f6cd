"""Chooses the CPUs for a run's workers, avoiding those used by servers on this machine.

The CPUs that a server was given are those that its threads may use, however it was given them: taskset, numactl, a
container's cpuset, systemd, its own settings. One thread that may use every CPU leaves none to the workers.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from loadgen.errors import ProfileError
from loadgen.placement import (
    ALL_CPUS,
    Cpus,
    Placement,
    Topology,
    cpus_near,
    format_cpus,
    parse_cpus,
    placement,
    read_topology,
    unpinned,
)
from loadgen.server.gpus.processes import attached_pids
from loadgen.server.process.locks import is_this_machine
from loadgen.stream.request import ServerAddress


def place_workers(
    wanted: str | None, urls: Iterable[str], addresses: Sequence[ServerAddress], workers: int
) -> Placement:
    """The placement for servers that answer; `wanted` is `load.cpus`.

    Slow: it examines every process of the machine. Raises `ProfileError` for CPUs that vramp may not use.
    """
    usable = frozenset(os.sched_getaffinity(0))
    if wanted is not None:
        return _as_wanted(wanted, usable)
    topology = read_topology()
    here = [url for url, address in zip(urls, addresses, strict=True) if is_this_machine(address.ip)]
    if not here:
        near = frozenset().union(*(_near_interface_to(address, topology) for address in addresses))
        return placement(usable, frozenset(), near, workers, topology)
    server = cpus_of(attached_pids(here))
    if not server:
        return unpinned(usable, "the server's processes are hidden from this user")
    return placement(usable, server, topology.on_nodes_of(server), workers, topology)


def _as_wanted(wanted: str, usable: Cpus) -> Placement:
    if wanted == ALL_CPUS:
        return unpinned(usable, f'load.cpus = "{ALL_CPUS}"')
    cpus = parse_cpus(wanted)
    missing = format_cpus(cpus - usable)
    if missing:
        raise ProfileError(f"load.cpus: vramp may not use {missing}; its CPUs are {format_cpus(usable)}")
    return Placement(format_cpus(cpus), True, "named in load.cpus")


def cpus_of(pids: Iterable[int]) -> Cpus:
    """The CPUs that the threads of these processes may use."""
    cpus: set[int] = set()
    for thread in (int(folder.name) for pid in pids for folder in Path("/proc").glob(f"{pid}/task/*")):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            cpus |= os.sched_getaffinity(thread)
    return frozenset(cpus)


def _near_interface_to(address: ServerAddress, topology: Topology) -> Cpus:
    with socket.socket(address.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address.ip, address.port))  # sends nothing: only asks the kernel for the route
        except OSError:  # it has just been lost, which the workers will report
            return frozenset()
        own = probe.getsockname()[0]
    try:
        interfaces = psutil.net_if_addrs()
    except OSError:  # not allowed in some sandboxes
        return frozenset()
    names = [name for name, entries in interfaces.items() if any(one.address == own for one in entries)]
    return frozenset().union(*(cpus_near(name, topology) for name in names))
