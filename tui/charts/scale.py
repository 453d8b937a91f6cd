"""Axes: a steady range with a few round ticks for the visible values, and the span of time that all charts share.

Ranges change in round steps, so that a chart does not rescale with every value, and always contain all values.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from loadgen.metrics.series import Floats

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_LOG_ROUND = (1.0, 2.0, 5.0, 10.0)
_MIN_SPAN_S = 30.0
_TINIEST, _HUGEST = 1e-9, 1e15


class Scale(msgspec.Struct, frozen=True):
    """A vertical axis."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def shares(self, values: Floats) -> Floats:
        """Return the positions of values: 0 at the bottom, 1 at the top, NaN if they have none.

        An infinite bound is at the top, a bound of zero at the bottom.
        """
        values = np.where(np.isposinf(values), self.high, values)
        if not self.log:
            return (values - self.low) / (self.high - self.low)
        positive = np.where(values > 0, values, np.where(values == 0, self.low, np.nan))
        bottom, top = math.log10(self.low), math.log10(self.high)
        shares: Floats = (np.log10(positive) - bottom) / (top - bottom)
        return shares


class Span(msgspec.Struct, frozen=True):
    """The stretch of time that all charts show, in seconds of the run."""

    start_s: float
    end_s: float

    def share(self, t_s: float) -> float:
        """Return the position of a moment: 0 at the left, 1 at the right."""
        return (t_s - self.start_s) / (self.end_s - self.start_s)


def linear(highest: float, intervals: range) -> Scale:
    """Return an axis from 0 to the lowest round number not below `highest` that any number of `intervals` gives."""
    highest = min(highest, _HUGEST) if math.isfinite(highest) and highest > _TINIEST else 1.0
    steps = {count: _round_up(highest / count, _ROUND) for count in intervals}
    count = min(steps, key=lambda count: steps[count] * count)
    return Scale(0.0, steps[count] * count, tuple(steps[count] * tick for tick in range(count + 1)))


def logarithmic(lowest: float, highest: float, most_ticks: int) -> Scale:
    """Return an axis between two numbers of the series 1, 2, 5, 10 around the values, at least a factor of 5 apart."""
    if not (math.isfinite(lowest) and math.isfinite(highest) and 0 < lowest <= highest):
        return Scale(1.0, 10.0, (1.0, 10.0), log=True)
    lowest, highest = (min(max(value, _TINIEST), _HUGEST) for value in (lowest, highest))
    low, high = _round_down(lowest, _LOG_ROUND), _round_up(highest, _LOG_ROUND)
    while high / low < 4.9:
        if highest > high * 0.6:
            high = _round_up(high * 1.01, _LOG_ROUND)
        else:
            low = _round_down(low * 0.99, _LOG_ROUND)

    # 1, 2, 5 of every decade if these are few enough, else the ends and the powers of ten between them.
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [step * 10.0**exponent for exponent in exponents for step in (1, 2, 5)]
    fine = [tick for tick in fine if low * 0.999 <= tick <= high * 1.001]
    coarse = [low, *(10.0**exponent for exponent in exponents if low * 1.5 < 10.0**exponent < high / 1.5), high]
    ticks = next((ticks for ticks in (fine, coarse) if len(ticks) <= most_ticks), [low, high])
    return Scale(low, high, tuple(ticks), log=True)


def span(first_s: float, last_s: float, window_s: float | None) -> Span:
    """Return the whole run, or its last `window_s`; the end moves in steps, so that drawn dots stay where they are."""
    length = max(_MIN_SPAN_S, last_s - first_s if window_s is None else window_s)
    quantum = next((step for limit, step in ((120, 5), (600, 15), (1800, 60), (7200, 120)) if length <= limit), 600)
    if window_s is None or last_s - first_s < window_s:
        return Span(first_s, first_s + math.ceil(length / quantum - 1e-9) * quantum)
    end_s = math.ceil(last_s / quantum) * quantum
    return Span(end_s - length, end_s)


def _round_up(value: float, series: tuple[float, ...]) -> float:
    base = 10.0 ** math.floor(math.log10(value))
    return next((step * base for step in series if step * base >= value * (1 - 1e-9)), 10 * base)


def _round_down(value: float, series: tuple[float, ...]) -> float:
    base = 10.0 ** math.floor(math.log10(value))
    return max(step * base for step in series if step * base <= value * (1 + 1e-9))
