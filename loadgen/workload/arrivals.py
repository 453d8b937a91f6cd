"""The times at which requests are due in open loop, as pure functions of the seed, without a clock.

The schedule is one global sequence of which W workers each take every W-th entry, so it does not depend on their
number. It is never re-anchored: a late request is sent late, and its lateness shows.

Every schedule is a sequence of gaps with mean 1 (in expected requests), put on the time axis by the inverse of the
integrated rate: a ramp is linear in time, not in the number of requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from loadgen.distributions import burstiness_of

_BLOCK = 1024

RatePoints = Sequence[tuple[float, float]]
"""(seconds after the start, requests a second) in ascending time, interpolated linearly; the last rate persists."""


def arrival_offsets_s(rate: float, arrival: str, seed: int, points: RatePoints = ()) -> Iterator[float]:
    """Arrival times in seconds from the start of the stage, in ascending order; endless unless the rate ends at 0.

    `constant` begins at 0 with gaps of 1/rate; the others have random gaps with mean 1/rate, the first one before the
    first arrival. With `points` the rate changes over time and `rate` is not used.
    """
    burstiness = burstiness_of(arrival)
    if not points and burstiness == math.inf:
        yield from (index / rate for index in count())
    for wanted in _expected_counts(burstiness, seed):
        offsets = wanted / rate if not points else times_of_counts(wanted, points)
        yield from offsets[np.isfinite(offsets)].tolist()
        if not math.isfinite(offsets[-1]):
            return


def _expected_counts(burstiness: float, seed: int) -> Iterator[NDArray[np.float64]]:
    """The expected number of requests at each arrival, in blocks."""
    generator = np.random.Generator(np.random.Philox(seed))
    elapsed = 0.0
    for block in count():
        if burstiness == math.inf:
            yield np.arange(block * _BLOCK, (block + 1) * _BLOCK, dtype=np.float64)
            continue
        poisson = burstiness == 1.0
        gaps = generator.exponential(1.0, _BLOCK) if poisson else generator.gamma(burstiness, 1 / burstiness, _BLOCK)
        counts = elapsed + np.cumsum(gaps)
        elapsed = float(counts[-1])
        yield counts


def times_of_counts(counts: NDArray[np.float64], points: RatePoints) -> NDArray[np.float64]:
    """The times at which a piecewise-linear rate has produced these numbers of requests; infinity if it never does.

    Where the rate goes from a to b over d seconds, n requests take the t that solves a t + (b - a) t^2 / 2d = n.
    """
    times, rates = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    before = np.concatenate([[0.0], np.cumsum(np.diff(times) * (rates[:-1] + rates[1:]) / 2)])
    # Before the first point, the rate is that of the first point.
    counts = counts - times[0] * rates[0]
    piece = np.searchsorted(before, counts, side="right") - 1
    start = np.clip(piece, 0, len(times) - 1)
    slopes = np.append(np.diff(rates) / np.maximum(np.diff(times), 1e-12), 0.0)
    slopes = np.where(piece < 0, 0.0, slopes[start])
    left, first = counts - before[start], rates[start]
    root = np.sqrt(np.maximum(first * first + 2 * slopes * left, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        # This form of the quadratic's root also holds for a slope of 0.
        after = np.where(left == 0, 0.0, 2 * left / (first + root))
    return np.asarray(times[start] + after, dtype=np.float64)


def slice_for(offsets: Iterator[float], worker: int, workers: int) -> Iterator[tuple[int, float]]:
    """The (index, offset) pairs of a schedule that one of `workers` workers sends."""
    return islice(enumerate(offsets), worker, None, workers)


def share_of(total: int, worker: int, workers: int) -> int:
    """How many of `total` slots one of `workers` workers holds; the shares differ by at most one."""
    return (total - worker + workers - 1) // workers
