"""The raster and the axes, as properties and tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from loadgen import format as fmt
from tests.tui.painted import text_of, texts
from tui.charts.canvas import GUTTER, Ink, polyline, trace
from tui.charts.chart import axis_row, chart_rows, mark_columns
from tui.charts.definitions import Chart, Series
from tui.charts.scale import Span, linear, logarithmic, span
from tui.charts.timeline import KINDS, History, Mark
from tui.widgets.rows import Rows

SHARES = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(
    st.lists(st.tuples(SHARES, SHARES), max_size=40),
    st.integers(4, 30),
    st.integers(2, 12),
    st.sampled_from(["line", "dots", "area"]),
)
def test_every_finite_point_lights_its_cell(
    points: list[tuple[float, float]], width: int, height: int, ink: Ink
) -> None:
    points = points[: width * 2]
    columns = np.arange(len(points), dtype=np.int64)
    low = np.array([min(point) for point in points], dtype=np.float64)
    high = np.array([max(point) for point in points], dtype=np.float64)
    cells = trace(columns, low, high, width=width, height=height, ink=ink)
    assert cells.shape == (height, width)
    for column, share in [
        (c, s) for c in columns for s in (low[c], high[c]) if np.isfinite(low[c]) & np.isfinite(high[c])
    ]:
        row = int((1 - min(max(share, 0.0), 1.0)) * (height * 4 - 1) + 0.5) // 4
        assert cells[row, column // 2]


def test_a_line_has_no_holes_and_an_area_reaches_the_bottom() -> None:
    values = np.array([0.0, 1.0])
    cells = trace(np.array([0, 19]), values, values, width=10, height=5)
    assert cells.any(axis=0).all() and cells.any(axis=1).all()
    assert trace(np.array([2]), values[1:], values[1:], width=4, height=5, ink="area")[:, 1].all()
    values = np.array([0.5, np.nan, np.nan, np.nan, np.nan, 0.5])
    cells = trace(np.array([0, 4, 6, 8, 10, 18]), values, values, width=10, height=3)
    assert cells.any(axis=0).tolist() == [True] + [False] * 8 + [True]  # unknown values break it


@pytest.mark.parametrize(
    ("highest", "rows", "top"),
    [
        (0, range(3, 6), 1.0),
        (25.3, range(3, 6), 30),
        (64, range(3, 6), 75),
        (3100, range(2, 3), 4000),
        (math.nan, range(2, 3), 1),
    ],
)
def test_linear_axis(highest: float, rows: range, top: float) -> None:
    scale = linear(highest, rows)
    assert scale.low == 0 and scale.high >= min(highest, 1e15) if highest == highest else True
    assert scale.high == pytest.approx(top, rel=0.5)
    assert scale.ticks[0] == 0 and scale.ticks[-1] == scale.high


@given(st.floats(min_value=1e-6, max_value=1e10), st.floats(min_value=1, max_value=1e4))
def test_a_logarithmic_axis_holds_its_values(lowest: float, factor: float) -> None:
    scale = logarithmic(lowest, lowest * factor, 5)
    assert scale.low <= lowest * 1.0001 and scale.high >= lowest * factor * 0.9999
    assert 2 <= len(scale.ticks) <= 5
    assert all(scale.low * 0.99 <= tick <= scale.high * 1.01 for tick in scale.ticks)


@pytest.mark.parametrize("bounds", [(math.nan, math.nan), (0, 0), (-1, 5), (5, 1), (1, math.inf), (1e-300, 1e300)])
def test_a_logarithmic_axis_of_odd_values(bounds: tuple[float, float]) -> None:
    scale = logarithmic(*bounds, 5)
    assert 0 < scale.low < scale.high < math.inf


@pytest.mark.parametrize(
    ("first_s", "last_s", "window_s", "shown"),
    [
        (0, 0, None, (0, 30)),
        (100, 120, None, (100, 130)),
        (0, 61, None, (0, 65)),
        (0, 222, None, (0, 225)),
        (0, 3601, None, (0, 3720)),
        (0, 30, 60.0, (0, 60)),
        (0, 222, 60.0, (165, 225)),
    ],
)
def test_span(first_s: float, last_s: float, window_s: float | None, shown: tuple[float, float]) -> None:
    found = span(first_s, last_s, window_s)
    assert (found.start_s, found.end_s) == shown


def axis_of(*marks: Mark) -> str:
    return text_of(axis_row(mark_columns(marks, Span(0, 60), 33), Span(0, 60), 33))


def test_the_axis_shows_the_newest_loads_first_and_signs_share_a_cell() -> None:
    loads = Mark(0, "load", "8"), Mark(36.7, "load", "16"), Mark(40, "load", "32")
    assert axis_of(*loads) == "▴8 ──────────────────▴32 ─── 1:00"
    marks = Mark(20.0, "preemption"), Mark(20.0, "load", "64"), Mark(20.0, "error"), Mark(50.0, "server")
    assert "▴64!↺ ─" in axis_of(*marks)
    assert "·" in axis_of(*marks)


def test_a_note_takes_the_room_that_is_left() -> None:
    marks = Mark(10.0, "note", "fan of node 3"), Mark(30.0, "load", "64")
    assert "✎fan of no ▴64" in axis_of(*marks)
    assert "✎ " in axis_of(Mark(10.0, "note", "fan"), Mark(16.0, "load", "64"))
    assert "✎风扇坏 ────▴64" in axis_of(Mark(10.0, "note", "风扇坏"), Mark(32.0, "load", "64"))
    assert "✎风扇坏 ▴64" in axis_of(Mark(10.0, "note", "风扇坏了"), Mark(25.0, "load", "64"))


MOMENTS = st.floats(-10, 70)
MARKS = st.one_of(
    st.builds(Mark, MOMENTS, st.just("note"), st.text(max_size=9).map(fmt.plain)),
    st.builds(Mark, MOMENTS, st.sampled_from(sorted(KINDS)), st.text("0123456789./s", max_size=9)),
)


@given(st.lists(MARKS, max_size=60))
def test_an_axis_of_any_marks_has_its_width(found: list[Mark]) -> None:
    assert cell_len(axis_of(*found)) == 33


def drawn(values: list[Any], width: int, height: int, *, log: bool = False, marks: tuple[Mark, ...] = ()) -> Rows:
    history = History(("v",))
    for n, value in enumerate(values):
        history.add(float(n), {"v": value})
    chart = Chart("title", (Series("v", "name", "p50"),), log=log)
    return chart_rows(chart, history, Span(0.0, 60.0), marks, width, height)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "values",
    [[], [1.0], [5.0] * 50, [None] * 5, [0.0, -3.0], [1e-12, 1e300], [math.nan, 1.0, math.inf, 2.0]],
    ids=["empty", "one", "constant", "unknown", "not positive", "huge", "not finite"],
)
@pytest.mark.parametrize("size", [(100, 14), (26, 7), (12, 4), (9, 3), (5, 1)])
def test_a_chart_of_odd_values_has_its_size(values: list[Any], log: bool, size: tuple[int, int]) -> None:
    rows = drawn(values, *size, log=log)
    assert len(rows) <= size[1]
    if size[0] >= 26:
        assert all(sum(len(text) for text, _ in row) == size[0] for row in rows)


def test_marks_stand_in_free_cells_only() -> None:
    rows = drawn([5.0] * 61, 60 + GUTTER, 10, marks=(Mark(30.0, "load", "16"), Mark(40.0, "error")))
    drawn_rows = texts(rows)
    column = GUTTER + int(0.5 * 119 + 0.5) // 2 - 1
    found = [row[column : column + 3] for row in drawn_rows[1:-1]]
    assert sum("┊" in cells for cells in found) == len(found) - 1
    assert "▴16" in drawn_rows[-1] and "!" in drawn_rows[-1] and "".join(drawn_rows).count("┊") == len(found) - 1


@given(st.lists(st.tuples(SHARES, SHARES), max_size=20), st.integers(2, 30), st.integers(2, 12))
def test_a_polyline_lights_the_cells_of_its_joined_points(
    points: list[tuple[float, float]], width: int, height: int
) -> None:
    x, y = (np.array([point[n] for point in points], dtype=np.float64) for n in (0, 1))
    cells = polyline(x, y, width=width, height=height)
    assert cells.shape == (height, width)
    known = np.isfinite(x) & np.isfinite(y)
    for n in np.flatnonzero(known[1:] & known[:-1]):
        column = int(min(max(x[n], 0.0), 1.0) * (width * 2 - 1) + 0.5) // 2
        row = int((1 - min(max(y[n], 0.0), 1.0)) * (height * 4 - 1) + 0.5) // 4
        assert cells[row, column]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("bounds", "legend"),
    [((20.0, 40.0), "20-40"), ((0.0, 20.0), "<20"), ((640.0, math.inf), ">640")],
)
def test_a_value_between_two_bounds_is_a_band_and_says_so(log: bool, bounds: tuple[float, float], legend: str) -> None:
    history = History(["a", "b"])
    history.add(0.0, {"a": 30.0})
    for t_s in range(1, 30):
        history.add(float(t_s), {"a": bounds})
    chart = Chart("x ms", (Series("b", "other", "p99"), Series("a", "it", "p50")), log=log)
    title, *plot = chart_rows(chart, history, Span(0.0, 30.0), [], 60, 12)
    words = text_of(title)
    assert legend in words and "other" not in words
    lit = [text[-8] != " " for text in texts(plot[:-1])]
    assert sum(lit) > 1 if bounds[1] < math.inf else any(lit)
