"""When requests are wanted in open loop: pure functions of the seed, without a clock.

The schedule is one global sequence. Workers take every W-th entry of it, so it does not depend on how many there are;
and it is never re-anchored: a late request is sent late, and its lateness shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Literal

import numpy as np

_BLOCK = 1024


def arrival_offsets_s(rate: float, arrival: Literal["poisson", "constant"], seed: int) -> Iterator[float]:
    """Endless arrival times in seconds from the start of the stage, in ascending order.

    `constant` begins at 0 and keeps 1/rate; `poisson` has exponential gaps with mean 1/rate, the first one before the
    first arrival.
    """
    if arrival == "constant":
        yield from (index / rate for index in count())
    generator = np.random.Generator(np.random.Philox(seed))
    elapsed = 0.0
    while True:
        offsets = elapsed + np.cumsum(generator.exponential(1 / rate, _BLOCK))
        elapsed = float(offsets[-1])
        yield from offsets.tolist()


def slice_for(offsets: Iterator[float], worker: int, workers: int) -> Iterator[tuple[int, float]]:
    """The (index, offset) pairs of a schedule that belong to one of `workers` workers."""
    return islice(enumerate(offsets), worker, None, workers)


def share_of(total: int, worker: int, workers: int) -> int:
    """How many of `total` slots one of `workers` workers holds; the shares differ by at most one."""
    return (total - worker + workers - 1) // workers
