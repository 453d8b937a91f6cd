"""What a counter gained, and what a gauge adds up to, over any window of time.

Samples come at their own times and windows begin and end at others: both edges are interpolated between the two
samples around them. A counter that fell was reset: what it gained in between is unknown and dropped, and so is the time
(`covered_s`), so that nobody takes a part for the whole. Of several samples at one time the first counts, and those
that are out of order, or unknown (NaN), are ignored. Invariants: pure; windows that meet add up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadgen.metrics.series import Floats


class WindowGain(NamedTuple):
    """What was gained within a window, and for how much of the window that is known."""

    amount: float
    covered_s: float


def increase(times_s: Floats, values: Floats, start_s: float, end_s: float) -> WindowGain:
    """What a counter gained from `start_s` to `end_s`."""
    times_s, values = _in_order(times_s, values)
    gains, spans_s = np.diff(values), np.diff(times_s)
    overlaps_s = np.minimum(times_s[1:], end_s) - np.maximum(times_s[:-1], start_s)
    counted = (overlaps_s > 0) & (gains >= 0)
    shares = overlaps_s[counted] / spans_s[counted]
    return WindowGain(float((gains[counted] * shares).sum()), float(overlaps_s[counted].sum()))


def integral(times_s: Floats, values: Floats, start_s: float, end_s: float, *, longest_gap_s: float) -> WindowGain:
    """The area under a gauge from `start_s` to `end_s`, by trapezoids; a longer gap between samples is not covered."""
    times_s, values = _in_order(times_s, values)
    before_s, after_s = times_s[:-1], times_s[1:]
    slopes = np.diff(values) / (after_s - before_s)
    left_s, right_s = np.maximum(before_s, start_s), np.minimum(after_s, end_s)
    means = values[:-1] + slopes * ((left_s + right_s) / 2 - before_s)
    counted = (right_s > left_s) & (after_s - before_s <= longest_gap_s)
    spans_s = (right_s - left_s)[counted]
    return WindowGain(float((means[counted] * spans_s).sum()), float(spans_s.sum()))


def _in_order(times_s: Floats, values: Floats) -> tuple[Floats, Floats]:
    known = ~np.isnan(values)
    times_s, values = times_s[known], values[known]
    later = np.ones(len(times_s), dtype=np.bool_)
    later[1:] = times_s[1:] > np.maximum.accumulate(times_s)[:-1]
    return times_s[later], values[later]
