"""Bounded memory that loses no extreme."""

from __future__ import annotations

import numpy as np
import pytest

from tui.charts.scale import Span
from tui.charts.timeline import History


def filled(points: int, capacity: int = 80, kept_raw: int = 20) -> History:
    history = History(("a", "b"), capacity=capacity, kept_raw=kept_raw)
    for n in range(points):
        history.add(n * 0.25, {"a": float(n % 97), "b": None if n % 3 else float(n)})
    return history


@pytest.mark.parametrize("points", [0, 1, 79, 80, 81, 1000, 5000])
def test_length_is_bounded_and_time_ascends(points: int) -> None:
    history = filled(points)
    assert len(history) == min(points, len(history)) <= 80
    assert (np.diff(history.times) > 0).all()


def test_extremes_survive_any_number_of_merges() -> None:
    history = History(("a",), capacity=80, kept_raw=20)
    for n in range(5000):
        history.add(n * 0.25, {"a": {700: 1e6, 701: -1e6}.get(n, 1.0)})
    folded = history.folded(Span(0.0, 1250.0), 40)
    assert folded.bands["a"][1].max() == 1e6
    assert folded.bands["a"][0].min() == -1e6
    spike = folded.columns[np.argmax(folded.bands["a"][1])]
    assert abs(spike - 700 * 0.25 / 1250 * 39) <= 1.5


def test_older_points_are_thinned() -> None:
    history = filled(5000)
    assert np.allclose(history.times[-20:], np.arange(4980, 5000) * 0.25)
    gaps = np.diff(history.times)
    assert gaps[1:25].max() <= 1.01 * gaps[1:25].min()
    assert gaps[-19:].max() == 0.25


def test_unknown_is_not_a_number_and_last_says_none() -> None:
    history = filled(2)
    assert np.isnan(history.folded(Span(0, 60), 10).bands["b"][0]).sum() == 0  # both fall into the first column
    assert history.last("b") is None
    assert history.last("a") == 1.0
    assert filled(0).last("a") is None


def test_folding_an_empty_span_and_again_with_new_points() -> None:
    history = filled(10)
    folded = history.folded(Span(100.0, 200.0), 40)
    assert len(folded.columns) == len(folded.bands["a"][0]) == 0
    before = len(history.folded(Span(0.0, 60.0), 1000).columns)
    history.add(30.0, {"a": 1.0})
    assert len(history.folded(Span(0.0, 60.0), 1000).columns) == before + 1
