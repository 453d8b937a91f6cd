"""The messages between the operator's vramp and the actor of a host.

Every exchange repeats what the other side has not confirmed yet, and each side skips what it already has, so a lost
answer loses no messages. The workers' lines are passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

import msgspec

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class Order(msgspec.Struct, frozen=True, array_like=True):
    """What is to be done with a worker; `close` closes its stdin, which makes it exit."""

    worker: int
    do: Literal["start", "write", "kill", "close"]
    line: bytes = b""  # to write to its stdin


class Report(msgspec.Struct, frozen=True, array_like=True):
    """A line of a worker's stdout, or why the worker has ended."""

    worker: int
    line: bytes = b""
    ended: str | None = None


class ToHost(msgspec.Struct, frozen=True, array_like=True):
    first: int  # the number of the first order
    orders: list[Order]
    confirmed: int  # how many reports have arrived


class FromHost(msgspec.Struct, frozen=True, array_like=True):
    first: int  # the number of the first report
    reports: list[Report]
    confirmed: int  # how many orders have arrived
    received_ns: int  # by the host's CLOCK_MONOTONIC
    answered_ns: int


encode = msgspec.msgpack.Encoder().encode
decode_to_host = msgspec.msgpack.Decoder(ToHost).decode
decode_from_host = msgspec.msgpack.Decoder(FromHost).decode


class Mailbox(Generic[Sent, Received]):
    """One side's own messages that are not confirmed yet, and how many of the other side's have arrived."""

    def __init__(self) -> None:
        self.first = 0  # the number of the first message in `waiting`
        self.waiting: list[Sent] = []
        self.arrived = 0

    def take(self, first: int, items: Sequence[Received], confirmed: int) -> Sequence[Received]:
        """Drop the first `confirmed` messages; returns those of `items`, numbered from `first`, that are new."""
        done = max(0, confirmed - self.first)
        self.waiting = self.waiting[done:]
        self.first += done
        new = items[max(0, self.arrived - first) :]
        self.arrived = max(self.arrived, first + len(items))
        return new
