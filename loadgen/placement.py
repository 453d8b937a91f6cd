"""Chooses the CPUs that the workers may use: not those that the server was given, nor their SMT siblings.

All workers share one set, so that the scheduler can still move a worker away from other processes.
Invariants: the set has a CPU for each worker, or nothing is pinned; the choice depends on the arguments alone.
A CPU is what Linux numbers: a hardware thread of a core. Lists of them are written as Linux does, `0-7,16-23`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadgen.format import ranges

Cpus = frozenset[int]

ALL_CPUS = "all"
"""`load.cpus` for workers that are not pinned."""
_MAX_CPUS = 8192  # the most for which any Linux kernel is built
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", re.ASCII)


def parse_cpus(text: str) -> Cpus:
    """The CPUs of a list such as `0-7,16`; raises `ValueError` if it is none."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        if not first <= last < _MAX_CPUS:
            raise ValueError(f"{part.strip()!r}: expected CPUs as Linux lists them, such as 0-7,16")
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """A list that `parse_cpus` reads; empty for no CPUs."""
    return ranges(cpus).replace(" ", "")


class Topology(NamedTuple):
    """What the kernel says about the CPUs of a machine; empty where it says nothing."""

    siblings: Mapping[int, Cpus] = {}  # the CPUs of each one's core, itself included
    nodes: Mapping[int, Cpus] = {}  # by NUMA node

    def with_siblings(self, cpus: Cpus) -> Cpus:
        return cpus.union(*(self.siblings.get(cpu, ()) for cpu in cpus))

    def cores(self, cpus: Cpus) -> int:
        """The number of cores that these CPUs belong to."""
        return len({self.siblings.get(cpu, frozenset({cpu})) for cpu in cpus})

    def on_nodes_of(self, cpus: Cpus) -> Cpus:
        """All CPUs on the NUMA nodes of these."""
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


class Placement(msgspec.Struct, frozen=True):
    """The CPUs on which the workers run, and why."""

    cpus: str
    pinned: bool  # the workers are restricted to these; otherwise these are all that vramp itself may use
    why: str
    avoided: str = ""  # the server's CPUs, and those of their SMT siblings that the workers do not use

    @property
    def words(self) -> str:
        if not self.pinned:
            return f"not pinned: {self.why}"
        return f"CPUs {self.cpus}, {self.why}{f' ({self.avoided} avoided)' if self.avoided else ''}"


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
