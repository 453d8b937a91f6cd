"""The machines that send the load: the CPUs of the workers, and the hosts of a cluster. Structs only."""

from __future__ import annotations

import msgspec

from loadgen.schema.bounds import Whole
from loadgen.schema.deltas import ClientDelta, Count, Moment, StageDelta


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


class HostFacts(msgspec.Struct, frozen=True):
    """A host of the cluster, as it was found before the start."""

    name: str
    address: str  # by which it was reached
    hostname: str
    identity: str
    """Its boot id and network namespace: two names of one host have the same."""
    kernel: str
    cores: float  # that its workers may use
    open_files: Whole  # the hard limit
    ports: Whole  # local ports for connections to one server
    vramp: str
    python: str
    distributed: str
    definitions: str  # the version of what figures mean


class HostTick(msgspec.Struct, frozen=True, omit_defaults=True):
    """One host's part of a tick."""

    stages: dict[int, StageDelta] = {}
    client: ClientDelta = ClientDelta()
    held: Count = 0
    workers: Count = 0  # alive
    sharing: Count = 0  # those of them that share the running stage; 0 without load
    rss_bytes: Count = 0
    offset_ns: Moment = 0  # its CLOCK_MONOTONIC minus ours
    uncertainty_ns: Moment = 0  # half the width of the interval that is certain to contain the offset
    rtt_ns: Moment = 0  # of the last exchange
    lost: bool = False


class HostsJoined(msgspec.Struct, frozen=True, tag=True):
    """The load comes from these hosts, not from this machine."""

    t_s: float
    hosts: tuple[HostFacts, ...]


class ClockMoved(msgspec.Struct, frozen=True, tag=True):
    """A host's clock was stepped relative to ours: the times of streams open there are wrong by as much."""

    t_s: float
    host: str
    by_ns: Moment
