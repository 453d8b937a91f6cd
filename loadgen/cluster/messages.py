"""The messages between the operator's vramp and the actor of a host.

Every exchange repeats what the other side has not confirmed yet, and each side skips what it already has, so a lost
answer loses no messages. The workers' lines are passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

import msgspec

Item = TypeVar("Item")


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


class Outbox(Generic[Item]):
    """Numbered messages, kept until the other side confirms them."""

    def __init__(self) -> None:
        self.first = 0
        self.waiting: list[Item] = []

    def confirm(self, total: int) -> None:
        """Drop the first `total` messages, which have reached the other side."""
        done = max(0, total - self.first)
        self.waiting = self.waiting[done:]
        self.first += done


class ArrivalCount(Generic[Item]):
    def __init__(self) -> None:
        self.total = 0

    def fresh(self, first: int, items: Sequence[Item]) -> Sequence[Item]:
        """Those of `items`, numbered from `first`, that have not arrived before."""
        new = items[max(0, self.total - first) :]
        self.total = max(self.total, first + len(items))
        return new
