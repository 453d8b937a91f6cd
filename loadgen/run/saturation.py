"""Open loop beyond what the server can take: the number of streams in flight grows without bound.

At the edge of what a server can take, that number wanders like a random walk; beyond it, it drifts. So the test is a
t-test of its increments over the latter half of a stage: their mean is surely above zero, and is more than a share of
the arrivals, those that are never served. Nothing here asks how long a TTFT is, so that a chat server that answers in
milliseconds is judged like any other.

In the beginning every stage fills up. How much of the growth that can be follows from the mean duration of its streams;
but while most of them are still open, that mean is of the short ones. Until the stage has lasted for several times what
Little's law says of them, it must be waiting that grows: the TTFT must have risen.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean, stdev

SHORTEST_S = 10.0  # no stage is judged before
FEWEST_ENDED = 20
UNSERVED = 0.05  # the share of arrivals that must stay without an answer
BEAT_S = 1.0
_SURE = 4.0  # student's t beyond 99.9 % with ten increments, and still few false alarms when it is asked every second
_FEWEST_INCREMENTS = 5
_TURNOVERS = 4
_RISEN = 1.5


class OverloadDetector:
    """Watches an open-loop stage from its beginning."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._times_s: list[float] = []
        self._in_flight: list[int] = []
        self._ttft_ms: list[float] = []

    def beat(self, t_s: float, in_flight: int, ttft_ms: float | None) -> bool:
        """Take in the streams open or waiting `t_s` after the stage began, and the TTFT of those that came since.

        A reading is kept, and the answer true, about once a second.
        """
        if self._times_s and t_s < self._times_s[-1] + BEAT_S:
            return False
        self._times_s.append(t_s)
        self._in_flight.append(in_flight)
        self._ttft_ms.append(ttft_ms if ttft_ms is not None else self._ttft_ms[-1] if self._ttft_ms else 0.0)
        return True

    def verdict(self, *, ended: int, e2e_mean_s: float | None) -> str | None:
        """Why the stage should end: its queue grows without bound; else None."""
        half = len(self._times_s) // 2
        times_s, values = self._times_s[half:], self._in_flight[half:]
        if len(values) <= _FEWEST_INCREMENTS or times_s[-1] < SHORTEST_S or ended < FEWEST_ENDED or not e2e_mean_s:
            return None
        span_s = times_s[-1] - times_s[0]
        unserved = (values[-1] - values[0]) / span_s / self._rate
        filling = filling_share(times_s[0], times_s[-1], e2e_mean_s)
        if unserved < UNSERVED + 2 * filling or drift(values) < _SURE:
            return None
        if _TURNOVERS * values[-1] > ended and not self._ttft_has_risen():
            return None
        grown = f"{values[0]} to {values[-1]} in {span_s:.0f} s"
        return (
            f"over-saturated: streams in flight grow without bound, {grown}; {unserved:.0%} of arrivals are not served"
        )

    def _ttft_has_risen(self) -> bool:
        quarter = len(self._ttft_ms) // 4
        return fmean(self._ttft_ms[-quarter:]) > _RISEN * fmean(self._ttft_ms[quarter : 2 * quarter])


def drift(values: list[int]) -> float:
    """Student's t of the increments of a series: how surely it rises, against a random walk with steps like its own."""
    increments = [after - before for before, after in pairwise(values)]
    spread = max(stdev(increments), 0.5)
    return fmean(increments) / spread * math.sqrt(len(increments))


def filling_share(from_s: float, to_s: float, mean_s: float) -> float:
    """The growth that the filling of an empty server has left, as a share of the rate.

    For streams of exponential length, of which the last leave latest: 1 - exp(-t/mean) of the final number are there.
    """
    return mean_s / (to_s - from_s) * (math.exp(-from_s / mean_s) - math.exp(-to_s / mean_s))
