"""Bounded memory that loses no extreme."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.series import TimeSeries

values = st.none() | st.floats(-1e9, 1e9, allow_nan=False) | st.integers(-(2**40), 2**40)


def filled(column: list[float | None], capacity: int = 40, kept_raw: int = 10) -> TimeSeries:
    series = TimeSeries(["a"], capacity=capacity, kept_raw=kept_raw)
    for number, value in enumerate(column):
        series.add(number * 0.25, {"a": value})
    return series


@given(st.lists(values, max_size=400))
def test_no_extreme_is_lost_and_nothing_is_made_up(column: list[float | None]) -> None:
    series = filled(column)
    known = [value for value in column if value is not None]
    assert len(series) == min(len(series), 40, len(column))
    assert (np.diff(series.times) > 0).all()
    if known:
        assert np.nanmax(series.highs) == max(known)
        assert np.nanmin(series.lows) == min(known)
    assert set(series.highs[~np.isnan(series.highs)]) <= {float(value) for value in known}
    newest = [np.nan if value is None else value for value in column[-10:]]
    assert np.array_equal(series.highs[0][-10:], newest, equal_nan=True)


@given(st.lists(values, min_size=1, max_size=400))
def test_a_high_is_where_it_was(column: list[float | None]) -> None:
    """Each row says the highest of the moments from its own to the next one's."""
    series = filled(column)
    bounds = [*(series.times / 0.25).astype(int), len(column)]
    for row, high in enumerate(series.highs[0]):
        inside = [value for value in column[bounds[row] : bounds[row + 1]] if value is not None]
        assert high == max(inside) if inside else np.isnan(high)


def test_the_columns_of_a_short_run_are_what_came() -> None:
    columns = filled([1, None, 2.5]).columns()
    assert columns == {"t_s": [0, 0.25, 0.5], "a": [1, None, 2.5]}
    assert json.dumps(columns["a"]) == "[1, null, 2.5]"


def test_the_columns_of_a_long_run_have_highs_and_lows() -> None:
    columns = filled([float(number % 7) for number in range(1000)]).columns()
    assert len(columns["t_s"]) == len(columns["a"]) == len(columns["a_min"]) <= 40
    assert columns["a"][0] == 6
    assert columns["a_min"][0] == 0


def test_what_never_changes_needs_no_lows() -> None:
    assert set(filled([5.0] * 1000).columns()) == {"t_s", "a"}
    assert set(filled([None] * 1000).columns()) == {"t_s", "a"}


def test_a_value_that_lies_between_bounds_keeps_both() -> None:
    series = TimeSeries(["a"], capacity=40, kept_raw=10)
    for number in range(100):
        series.add(number * 0.25, {"a": (10.0 + number, 20.0 + number)})
    assert series.last_bounds("a") == (109.0, 119.0)
    assert (float(series.lows.min()), float(series.highs.max())) == (10.0, 119.0)
    series.add(26.0, {"a": 5.0})
    assert (series.last_bounds("a"), series.last("a")) == (None, 5.0)
