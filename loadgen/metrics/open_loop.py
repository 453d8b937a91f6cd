"""Whether the requests of an open loop queued up: more and more of them were open while they arrived at an even rate.

The rate at which all were answered does not tell: the last answers come after the last arrival, in a time of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from loadgen.schema.result import OpenLoop

MAX_AREAS = 64
MIN_GROWTH = 0.05  # of the arrivals in the time between: less is not called a queue
DEVIATIONS = 3.0
"""Standard deviations of chance: arrivals are a Poisson process at most, and so is the number of open requests."""
_PART, _BETWEEN = 0.2, 0.4
"""Shares of the time of arrivals: of each of two parts, its middle and its end, and between the middles of both."""


def thinned(areas: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Every other of the moments and the last one, once there are too many."""
    return areas if len(areas) <= MAX_AREAS else [*areas[:-1:2], areas[-1]]


def open_loop_of(areas: Sequence[tuple[int, int]], rate: float, longest_s: float | None) -> OpenLoop | None:
    """What is known of a stage at `rate`, None before it has begun.

    `areas` are moments while arrivals were due, in ns since the window began, with the open requests integrated until
    then; `longest_s` is how long nearly all requests take, None if unknown.
    """
    if len(areas) < 2 or areas[-1][0] <= 0:
        return None
    times, integrals = np.array([(0, 0), *areas], dtype=np.float64).T / 1e9
    due_s = float(times[-1])

    def mean_open(from_share: float, to_share: float) -> float:
        begin, end = np.interp([from_share * due_s, to_share * due_s], times, integrals)
        return float(end - begin) / ((to_share - from_share) * due_s)

    halfway, at_end = mean_open(0.5 - _PART / 2, 0.5 + _PART / 2), mean_open(1 - _PART, 1)
    arrivals = rate * _BETWEEN * due_s
    chance = math.sqrt(max(arrivals, 2 * max(halfway, 1.0)))
    is_behind: bool | None = at_end - halfway > max(MIN_GROWTH * arrivals, DEVIATIONS * chance)
    # Until the requests of the beginning have ended, more and more are open in any case.
    if is_behind and (longest_s is None or longest_s > (0.5 - _PART / 2) * due_s):
        is_behind = None
    return OpenLoop(due_s=due_s, open_halfway=halfway, open_at_end=at_end, behind=is_behind)
