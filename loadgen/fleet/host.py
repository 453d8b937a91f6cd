"""A machine that runs workers: this one, or a host of a cluster."""

from __future__ import annotations

from typing import Protocol

from loadgen.fleet.pipe import LocalPipe, Pipe
from loadgen.system import usable_cores


class Host(Protocol):
    """A machine that runs workers, and its clock."""

    @property
    def name(self) -> str: ...

    @property
    def cores(self) -> float:
        """The cores that workers may use there."""

    @property
    def offset_ns(self) -> int:
        """Its CLOCK_MONOTONIC minus that of this machine."""

    @property
    def uncertainty_ns(self) -> int:
        """The most by which the true offset differs from `offset_ns`."""

    @property
    def rtt_ns(self) -> int:
        """The round-trip time of the last message."""

    @property
    def delivery_ns(self) -> int:
        """The most time that a command takes to reach every worker there."""

    @property
    def lifeline_s(self) -> float:
        """The silence after which a worker there exits by itself; 0: never."""

    @property
    def lost(self) -> str | None:
        """Why it cannot be reached; None while it can."""

    @property
    def moved_ns(self) -> int:
        """By how much its clock has been stepped relative to ours, in total."""

    def open_pipe(self, number: int) -> Pipe:
        """The pipe of a new worker, not started yet."""


class LocalHost:
    """This machine."""

    name = ""
    offset_ns = uncertainty_ns = rtt_ns = delivery_ns = moved_ns = 0
    lifeline_s = 0.0
    lost = None

    @property
    def cores(self) -> float:
        return usable_cores()

    def open_pipe(self, number: int) -> Pipe:
        return LocalPipe()
