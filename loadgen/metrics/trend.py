"""Whether a figure rises while the load stays the same: a sequential test on ranks, with the bets of `drift`.

While the order of values means nothing, the newest is as likely below the middle of all so far as above it, whatever
their distribution: a bet on "above" has no gain on average. So `false_alarms` bounds how often a flat series is
accused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from loadgen.metrics.drift import Evidence

MAX_VALUES = 32
_STAKES = (0.3, 0.6, 0.95)


def rise(values: Sequence[float], false_alarms: float) -> float | None:
    """The last third's mean over the first third's, minus 1; None if that may be chance."""
    third = len(values) // 3
    first = fmean(values[:third]) if third else 0.0
    is_sure = evidence_of_rise(values) >= -math.log(false_alarms)
    return fmean(values[-third:]) / first - 1 if first > 0 and is_sure else None


def evidence_of_rise(values: Sequence[float]) -> float:
    """The logarithm of the highest wealth of the bets that they rise; e to minus this bounds the p-value."""
    test = Evidence(len(_STAKES))
    for count in range(2, len(values) + 1):
        newest, seen = values[count - 1], values[:count]
        less, same = sum(value < newest for value in seen), seen.count(newest)
        above = (2 * less + same) / count - 1  # how far the newest is above the middle of all: from -1 to 1
        test.gain([math.log1p(stake * above) for stake in _STAKES])
    return test.log_most


def means(values: Sequence[float]) -> list[float]:
    """At most `MAX_VALUES` means of neighbours."""
    size = max(1, -(-len(values) // MAX_VALUES))
    return [fmean(values[at : at + size]) for at in range(0, len(values) - size + 1, size)]
