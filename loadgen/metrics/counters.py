"""What a counter gained, and what a gauge adds up to, over any window of time.

Samples come at their own times and windows begin and end at others: both edges are interpolated between the two
samples around them. A counter that fell was reset: what it gained in between is unknown and dropped, and so is the time
(`covered_s`), so that nobody takes a part for the whole. Of several samples at one time the first counts, and those
that are out of order are ignored. Invariants: pure; windows that meet add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple


class Point(NamedTuple):
    """A value at a time."""

    t_s: float
    value: float


class Amount(NamedTuple):
    """What was gained within a window, and for how much of the window that is known."""

    amount: float
    covered_s: float


def gained(before: float, after: float, *, size: float | None = None) -> float | None:
    """What a counter gained; None if it was reset.

    One that holds `size` different values wraps: it does if it was in its last quarter and is in its first.
    """
    if after >= before:
        return after - before
    if size is not None and before >= size * 0.75 and after < size * 0.25:
        return after - before + size
    return None


def rate(before: Point, after: Point, *, size: float | None = None) -> float | None:
    """The gain per second; None after a reset, or if no time has passed."""
    gain = gained(before.value, after.value, size=size)
    span_s = after.t_s - before.t_s
    return None if gain is None or span_s <= 0 else gain / span_s


def increase(points: Iterable[Point], start_s: float, end_s: float, *, size: float | None = None) -> Amount:
    """What a counter gained from `start_s` to `end_s`."""
    total = covered_s = 0.0
    for before, after in _steps(points):
        overlap_s = min(after.t_s, end_s) - max(before.t_s, start_s)
        gain = gained(before.value, after.value, size=size)
        if overlap_s > 0 and gain is not None:
            total += gain * (overlap_s / (after.t_s - before.t_s))
            covered_s += overlap_s
    return Amount(total, covered_s)


def integral(points: Iterable[Point], start_s: float, end_s: float, *, longest_gap_s: float) -> Amount:
    """The area under a gauge from `start_s` to `end_s`, by trapezoids; a longer gap between samples is not covered."""
    total = covered_s = 0.0
    for before, after in _steps(points):
        left_s, right_s = max(before.t_s, start_s), min(after.t_s, end_s)
        if right_s > left_s and after.t_s - before.t_s <= longest_gap_s:
            total += (_between(before, after, left_s) + _between(before, after, right_s)) / 2 * (right_s - left_s)
            covered_s += right_s - left_s
    return Amount(total, covered_s)


def value_at(points: Iterable[Point], t_s: float) -> float | None:
    """A gauge at a time between two samples; None outside of them."""
    for before, after in _steps(points):
        if before.t_s <= t_s <= after.t_s:
            return _between(before, after, t_s)
    return None


def _steps(points: Iterable[Point]) -> Iterator[tuple[Point, Point]]:
    return pairwise(_in_order(points))


def _in_order(points: Iterable[Point]) -> Iterator[Point]:
    last_s = float("-inf")
    for point in points:
        if point.t_s > last_s:
            last_s = point.t_s
            yield point


def _between(before: Point, after: Point, t_s: float) -> float:
    share = (t_s - before.t_s) / (after.t_s - before.t_s)
    return before.value + (after.value - before.value) * share
