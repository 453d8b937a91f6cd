"""A machine that runs workers: this one, or a host of a cluster."""

from __future__ import annotations

from typing import Protocol

from loadgen.cores import usable_cores
from loadgen.fleet.pipe import LocalPipe, Pipe


class Host(Protocol):
    """A machine that runs workers, and its clock."""

    @property
    def name(self) -> str: ...

    @property
    def cores(self) -> float:
        """The cores that workers may use there."""

    @property
    def offset_ns(self) -> int:
        """Its CLOCK_MONOTONIC less that of this machine."""

    @property
    def uncertainty_ns(self) -> int:
        """The offset is true within this much."""

    @property
    def rtt_ns(self) -> int:
        """How long the last message there and back took."""

    @property
    def delivery_ns(self) -> int:
        """How long a command may take until every worker there has it."""

    @property
    def lifeline_s(self) -> float:
        """A worker there that hears nothing for so long ends itself; 0: never."""

    @property
    def lost(self) -> str | None:
        """Why it cannot be reached; None while it can."""

    @property
    def moved_ns(self) -> int:
        """By how much its clock was moved against ours, all in all."""

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
