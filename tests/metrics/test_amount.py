"""Edges and areas, as tables and as laws."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics import energy
from loadgen.metrics.energy import WindowGain
from loadgen.metrics.samples import gained

Points = list[tuple[float, float]]

# Eighths are exact in binary, so that sums of parts can be compared with sums of wholes.
_eighths = st.integers(0, 8000).map(lambda n: n / 8)


@st.composite
def _series(draw: st.DrawFn, *, rising: bool) -> Points:
    times = sorted(draw(st.lists(_eighths, min_size=2, max_size=30, unique=True)))
    values = draw(st.lists(_eighths, min_size=len(times), max_size=len(times)))
    return list(zip(times, sorted(values) if rising else values, strict=True))


def increase(points: Points, start_s: float, end_s: float) -> WindowGain:
    times_s, values = np.array(points).T
    return energy.increase(times_s, values, start_s, end_s)


def integral(points: Points, start_s: float, end_s: float, *, longest_gap_s: float = 1e9) -> WindowGain:
    times_s, values = np.array(points).T
    return energy.integral(times_s, values, start_s, end_s, longest_gap_s=longest_gap_s)


def test_edges_are_interpolated() -> None:
    points = [(0.0, 0.0), (10.0, 100.0), (20.0, 400.0)]
    assert increase(points, 5, 15) == WindowGain(50 + 150, 10)
    assert integral(points, 5, 15, longest_gap_s=60) == WindowGain((50 + 100) / 2 * 5 + (100 + 250) / 2 * 5, 10)


def test_a_reset_is_dropped_with_its_time() -> None:
    points = [(0.0, 100.0), (10.0, 200.0), (20.0, 5.0), (30.0, 25.0)]
    assert increase(points, 0, 30) == WindowGain(120, 20)


def test_a_gap_is_not_covered_by_a_gauge_but_by_a_counter() -> None:
    points = [(0.0, 100.0), (60.0, 200.0)]
    assert integral(points, 0, 60, longest_gap_s=15) == WindowGain(0, 0)
    assert increase(points, 0, 60) == WindowGain(100, 60)


def test_equal_times_count_once_and_disorder_not_at_all() -> None:
    points = [(0.0, 0.0), (10.0, 10.0), (10.0, 99.0), (4.0, 50.0), (20.0, 30.0)]
    assert increase(points, 0, 20) == WindowGain(30, 20)


def test_what_is_unknown_is_as_if_nobody_had_looked() -> None:
    points = [(0.0, 0.0), (10.0, np.nan), (20.0, 40.0)]
    assert increase(points, 0, 20) == WindowGain(40, 20)
    assert integral(points, 0, 20) == WindowGain(400, 20)
    assert increase([(0.0, np.nan)], 0, 20) == integral([(0.0, 1.0)], 0, 20) == WindowGain(0, 0)


@given(points=_series(rising=False))
def test_all_of_a_series_is_the_sum_of_its_gains(points: Points) -> None:
    whole = increase(points, points[0][0], points[-1][0])
    gains = [gained(before, after) for (_, before), (_, after) in pairwise(points)]
    assert whole.amount == pytest.approx(sum(gain for gain in gains if gain is not None))
    assert whole.covered_s <= points[-1][0] - points[0][0]


@given(points=_series(rising=True), edges=st.tuples(_eighths, _eighths, _eighths))
def test_windows_that_meet_add_up(points: Points, edges: tuple[float, float, float]) -> None:
    start_s, middle_s, end_s = sorted(edges)
    for measure in (increase, integral):
        whole = measure(points, start_s, end_s)
        left, right = measure(points, start_s, middle_s), measure(points, middle_s, end_s)
        assert left.amount + right.amount == pytest.approx(whole.amount)
        assert left.covered_s + right.covered_s == pytest.approx(whole.covered_s)


@given(points=_series(rising=True), window=st.tuples(_eighths, _eighths))
def test_no_window_gains_more_than_the_series_and_none_is_negative(points: Points, window: tuple[float, float]) -> None:
    gain, covered_s = increase(points, *sorted(window))
    assert 0 <= gain <= (points[-1][1] - points[0][1]) * (1 + 1e-9)
    assert 0 <= covered_s <= max(window) - min(window)
