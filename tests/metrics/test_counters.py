"""Deltas, edges and areas, as tables and as laws."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.counters import Amount, Point, gained, increase, integral, rate, value_at

# Eighths are exact in binary, so that sums of parts can be compared with sums of wholes.
_eighths = st.integers(0, 8000).map(lambda n: n / 8)


@st.composite
def _series(draw: st.DrawFn, *, rising: bool) -> list[Point]:
    times = sorted(draw(st.lists(_eighths, min_size=2, max_size=30, unique=True)))
    values = draw(st.lists(_eighths, min_size=len(times), max_size=len(times)))
    return [Point(*pair) for pair in zip(times, sorted(values) if rising else values, strict=True)]


@pytest.mark.parametrize(
    ("before", "after", "size", "expected"),
    [
        (10, 12, None, 2),
        (10, 10, None, 0),
        (10, 3, None, None),
        (2**32 - 5, 7, 2**32, 12),
        (2**31, 7, 2**32, None),  # a reset half way is no wrap
        (2**32 - 5, 2**31, 2**32, None),
    ],
)
def test_a_counter_gains_wraps_or_was_reset(
    before: float, after: float, size: float | None, expected: float | None
) -> None:
    assert gained(before, after, size=size) == expected


def test_a_rate_needs_time_and_no_reset() -> None:
    assert rate(Point(1, 10), Point(3, 20)) == 5
    assert rate(Point(1, 10), Point(1, 20)) is None
    assert rate(Point(1, 10), Point(3, 5)) is None
    assert rate(Point(1, 250), Point(3, 4), size=256) == 5


def test_edges_are_interpolated() -> None:
    points = [Point(0, 0), Point(10, 100), Point(20, 400)]
    assert increase(points, 5, 15) == Amount(50 + 150, 10)
    assert integral(points, 5, 15, longest_gap_s=60) == Amount((50 + 100) / 2 * 5 + (100 + 250) / 2 * 5, 10)
    assert value_at(points, 15) == 250
    assert value_at(points, 21) is None


def test_a_reset_is_dropped_with_its_time() -> None:
    points = [Point(0, 100), Point(10, 200), Point(20, 5), Point(30, 25)]
    assert increase(points, 0, 30) == Amount(120, 20)


def test_a_gap_is_not_covered_by_a_gauge_but_by_a_counter() -> None:
    points = [Point(0, 100), Point(60, 200)]
    assert integral(points, 0, 60, longest_gap_s=15) == Amount(0, 0)
    assert increase(points, 0, 60) == Amount(100, 60)


def test_equal_times_count_once_and_disorder_not_at_all() -> None:
    points = [Point(0, 0), Point(10, 10), Point(10, 99), Point(4, 50), Point(20, 30)]
    assert increase(points, 0, 20) == Amount(30, 20)


@given(points=_series(rising=False))
def test_all_of_a_series_is_the_sum_of_its_gains(points: list[Point]) -> None:
    amount, covered_s = increase(points, points[0].t_s, points[-1].t_s)
    gains = [gained(before.value, after.value) for before, after in pairwise(points)]
    assert amount == pytest.approx(sum(gain for gain in gains if gain is not None))
    assert covered_s <= points[-1].t_s - points[0].t_s


@given(points=_series(rising=True), edges=st.tuples(_eighths, _eighths, _eighths))
def test_windows_that_meet_add_up(points: list[Point], edges: tuple[float, float, float]) -> None:
    start_s, middle_s, end_s = sorted(edges)
    for measure in (increase, lambda *window: integral(*window, longest_gap_s=1e9)):
        whole = measure(points, start_s, end_s)
        left, right = measure(points, start_s, middle_s), measure(points, middle_s, end_s)
        assert left.amount + right.amount == pytest.approx(whole.amount)
        assert left.covered_s + right.covered_s == pytest.approx(whole.covered_s)


@given(points=_series(rising=True), window=st.tuples(_eighths, _eighths))
def test_no_window_gains_more_than_the_series_and_none_is_negative(
    points: list[Point], window: tuple[float, float]
) -> None:
    amount, covered_s = increase(points, *sorted(window))
    assert 0 <= amount <= (points[-1].value - points[0].value) * (1 + 1e-9)
    assert 0 <= covered_s <= max(window) - min(window)


@given(points=_series(rising=False), t_s=_eighths)
def test_a_value_lies_between_its_neighbours(points: list[Point], t_s: float) -> None:
    value = value_at(points, t_s)
    inside = points[0].t_s <= t_s <= points[-1].t_s
    assert (value is not None) == inside
    if value is not None:
        values = [point.value for point in points]
        assert min(values) - 1e-9 <= value <= max(values) + 1e-9
