"""Open loops with known truth: servers of a fixed capacity, simulated request by request."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.open_loop import MAX_AREAS, open_loop_of, thinned

TICK_S = 0.25


def served(
    rate: float, seconds: float, mean_s: float, capacity: float, seed: int
) -> tuple[list[tuple[int, int]], float]:
    """The open requests, integrated at each tick, and the 90th percentile of E2E of those that ended in time.

    Poisson arrivals; each takes an exponential time from when the server takes it, at most `capacity` a second.
    """
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, round(2 * rate * seconds)))
    arrivals = arrivals[arrivals < seconds]
    taken, free_s = [], 0.0
    for arrival in arrivals:
        free_s = max(free_s, arrival) + 1 / capacity
        taken.append(free_s)
    ends = np.array(taken) + rng.exponential(mean_s, len(arrivals))
    moments = np.arange(TICK_S, seconds + TICK_S / 2, TICK_S)
    areas = [(moment, np.clip(np.minimum(ends, moment) - arrivals, 0, None).sum()) for moment in moments]
    in_time = ends < seconds
    longest_s = float(np.percentile((ends - arrivals)[in_time], 90)) if in_time.any() else seconds
    return [(round(moment * 1e9), round(area * 1e9)) for moment, area in areas], longest_s


@given(st.floats(1.0, 60.0), st.floats(0.05, 3.0), st.integers(0, 10_000))
def test_a_server_that_keeps_up_is_not_behind(rate: float, mean_s: float, seed: int) -> None:
    areas, longest_s = served(rate, 60.0, mean_s, 1e6, seed)
    found = open_loop_of(areas, rate, longest_s)
    assert found is not None
    assert not found.behind


@pytest.mark.parametrize("share", [0.6, 0.8, 0.9])
def test_a_server_that_answers_less_is_behind(share: float) -> None:
    areas, longest_s = served(40.0, 120.0, 1.0, share * 40.0, 1)
    found = open_loop_of(areas, 40.0, longest_s)
    assert found is not None
    assert found.behind
    assert abs(float(found.words(40.0).partition(" ")[0]) - share * 40) < 2


def test_requests_that_last_as_long_as_the_stage_say_nothing() -> None:
    areas, _ = served(20.0, 30.0, 60.0, 1e6, 1)
    found = open_loop_of(areas, 20.0, 28.0)
    assert found is not None
    assert found.behind is None


def test_nothing_is_known_before_the_window() -> None:
    assert open_loop_of([], 20.0, 1.0) is None
    assert open_loop_of([(0, 0), (0, 0)], 20.0, None) is None


def test_a_day_of_it_is_bounded_and_exact() -> None:
    areas: list[tuple[int, int]] = []
    for tick in range(1, 100_000):
        areas = thinned([*areas, (tick * 250_000_000, tick * 5 * 250_000_000)])
    assert len(areas) <= MAX_AREAS
    found = open_loop_of(areas, 20.0, 1.0)
    assert found is not None
    assert [found.open_halfway, found.open_at_end] == pytest.approx([5, 5])
    assert found.behind is False
