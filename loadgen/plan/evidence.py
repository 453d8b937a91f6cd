"""How sure a measured share or mean is of a limit: 95 % intervals, and what they decide.

A percentile under its limit is a share of values under that limit (p99 <= 2 s: at least 99 % of them), so every limit
but one on a mean is a test of a share. Its interval is Wilson's, which holds for shares near 1 (Wilson 1927; Brown, Cai
and DasGupta 2001); a mean has the normal interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from loadgen.plan.stage import Verdict

Z95 = 1.959964
"""Two-sided 95 % of the normal distribution."""


def share_interval(good: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; (0, 1) without a count."""
    if count <= 0:
        return 0.0, 1.0
    share, z2 = good / count, Z95 * Z95
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z95 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def share_verdict(good: float, count: float, wanted: float) -> Verdict:
    """Whether at least the wanted share is good."""
    low, high = share_interval(good, count)
    return "met" if low >= wanted else "missed" if high < wanted else "unresolved"


def mean_verdict(mean: float | None, stddev: float | None, count: int, limit: float) -> Verdict:
    """Whether a mean is at most its limit."""
    if mean is None or stddev is None or count < 2:
        return "unresolved"
    half = Z95 * stddev / math.sqrt(count)
    return "met" if mean + half <= limit else "missed" if mean - half > limit else "unresolved"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """All limits: met if each is, missed if one surely is."""
    if "missed" in verdicts:
        return "missed"
    return "unresolved" if "unresolved" in verdicts or not verdicts else "met"
