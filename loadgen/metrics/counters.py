"""What a counter gained from one reading to the next.

Kept apart from what needs numpy: processes that read sensors are to stay small.
"""

from __future__ import annotations

from typing import NamedTuple


class Point(NamedTuple):
    """A value at a time."""

    t_s: float
    value: float


def gained(before: float, after: float) -> float | None:
    """What a counter gained; None if it was reset."""
    return after - before if after >= before else None


def rate(before: Point, after: Point) -> float | None:
    """The gain per second; None after a reset, or if no time has passed."""
    gain = gained(before.value, after.value)
    span_s = after.t_s - before.t_s
    return None if gain is None or span_s <= 0 else gain / span_s
