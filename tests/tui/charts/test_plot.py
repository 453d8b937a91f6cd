"""Plots of one quantity against another, as tables and properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tui.painted import texts
from tui.charts.plot import Curve, Plot, Tick, plot_rows, scale_of
from tui.charts.scale import Scale, linear
from tui.widgets.rows import width_of

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=12)


def plotted(*curves: Curve, limits: tuple[Tick, ...] = (), width: int = 60, height: int = 14) -> list[str]:
    ten = linear(10.0, range(2, 5))
    return texts(plot_rows(Plot("y by x", curves, ten, ten, limits), width, height))


def test_points_are_named_next_to_their_signs() -> None:
    rows = plotted(Curve("p50", "p50", (2.0, 8.0), (2.0, 8.0), sign="●", names=("16", "64")))
    assert rows[0].endswith("● p50") and rows[0].startswith("y by x ─")
    assert sum(row.count("●") for row in rows[1:]) == 2
    upper, lower = (next(row for row in rows[1:] if name in row) for name in ("64", "16"))
    assert rows.index(upper) < rows.index(lower) and upper.index("64") > lower.index("16")
    assert rows[-1].split() == ["0", "5.00", "10.0"] or rows[-1].split()[0] == "0"


def test_a_limit_is_a_line_with_its_name_below_the_signs() -> None:
    rows = plotted(Curve("p50", "p50", (10.0,), (5.0,), sign="●"), limits=((5.0, "SLO 5"), (99.0, "far")))
    line = next(row for row in rows if "SLO 5" in row)
    assert line.count("╌") > 30 and line.endswith("●") and not any("far" in row for row in rows)


def test_what_is_unknown_breaks_the_curve() -> None:
    rows = plotted(Curve("p50", "p50", (0.0, 5.0, 10.0), (5.0, math.nan, 5.0), sign="●"))
    assert sum(row.count("●") for row in rows[1:]) == 2
    assert not any(0x2800 < ord(cell) <= 0x28FF for row in rows for cell in row)


@given(VALUES, VALUES, st.integers(1, 90), st.integers(1, 30), st.booleans())
def test_any_plot_has_its_size(x: list[float], y: list[float], width: int, height: int, log: bool) -> None:
    count = min(len(x), len(y))
    curve = Curve("name", "p50", tuple(x[:count]), tuple(y[:count]), sign="●", names=("a name",) * count)
    plot = Plot("title", (curve,), scale_of(x, 4), scale_of(y, 4, log=log), ((1.0, "limit"),))
    rows = plot_rows(plot, width, height)
    assert len(rows) <= max(1, height) and all(width_of(row) <= max(width, len("title ")) for row in rows)


@pytest.mark.parametrize(
    ("values", "log"),
    [([], False), ([math.nan, 0.0, -1.0], False), ([3.0, 9.0], False), ([3.0, 900.0], True), ([1.0, math.inf], False)],
)
def test_an_axis_is_logarithmic_where_values_are_far_apart(values: list[float], log: bool) -> None:
    scale = scale_of(values, 4)
    assert isinstance(scale, Scale) and scale.log == log and scale.high > scale.low
