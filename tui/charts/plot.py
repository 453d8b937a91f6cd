"""Plots of one quantity against another, in braille: pure functions to rows.

A plot has curves, whose points may have a sign and a label, limits as lines across it, and ticks at both axes. What is
written later lies over what is below it: limits, curves, labels, signs. Points outside of the axes stand at their edge.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from loadgen import format as fmt
from loadgen.metrics.frontier import LOGARITHMIC_FROM
from loadgen.metrics.series import Floats
from tui.charts.canvas import CORNER, GUTTER, SAMPLES, Canvas, Ink, cell_across, polyline
from tui.charts.scale import Scale, linear, logarithmic
from tui.widgets.rows import Row, Rows, Word, joined, titled, width_of

_MIN_COLUMNS, _MIN_ROWS = 8, 3


Tick = tuple[float, str]  # a value and what to write there


class Curve(msgspec.Struct, frozen=True):
    """Points in the order in which they are joined; unknown is NaN."""

    label: str
    role: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    ink: Ink | None = "line"  # none: the points are not joined
    sign: str = ""  # on every point; empty: none
    names: tuple[str, ...] = ()  # next to the points, where there is room


class Plot(msgspec.Struct, frozen=True):
    """What is plotted; the first curve lies lowest."""

    title: str
    curves: tuple[Curve, ...]
    x: Scale
    y: Scale
    limits: tuple[Tick, ...] = ()  # lines across the plot, at values of the y axis
    x_ticks: tuple[Tick, ...] = ()  # empty: those of the scale


def plot_rows(plot: Plot, width: int, height: int) -> Rows:
    """Title with legend, plot, axis and its ticks; the title alone where there is no room."""
    title = titled(plot.title, _legend(plot, width - len(plot.title) - 1), width)
    columns, rows = width - GUTTER, height - 3
    if columns < _MIN_COLUMNS or rows < _MIN_ROWS:
        return [title]
    canvas = Canvas(columns, rows)
    shares = plot.y.shares(np.array([value for value, _ in plot.limits], dtype=np.float64)).tolist()
    places = zip(shares, plot.limits, strict=True)
    limits = [(canvas.cell(0.0, share)[1], f" {label} ") for share, (_, label) in places if 0 <= share <= 1]
    for row, _ in limits:
        canvas.text(0, row, "╌" * columns, "warn", over=True)
    for curve in plot.curves:
        if curve.ink is not None:
            canvas.dots(polyline(*_shares(curve, plot), width=columns, height=rows, ink=curve.ink), curve.role)
    for row, label in limits:
        canvas.text(columns - len(label), row, label, "warn", over=True)
    for curve in plot.curves:
        _draw_signs(canvas, curve, plot)
    return [title, *canvas.with_ticks(plot.y), *_axis(plot, columns)]


def scale_of(values: Sequence[float], most_ticks: int, *, log: bool | None = None) -> Scale:
    """An axis that holds values: logarithmic when they are far apart, else from 0."""
    known = [value for value in values if np.isfinite(value) and value > 0]
    if not known:
        return linear(1.0, range(2, 3))
    lowest, highest = min(known), max(known)
    if highest / lowest > LOGARITHMIC_FROM if log is None else log:
        return logarithmic(lowest, highest, most_ticks)
    return linear(highest, range(max(2, most_ticks // 2), max(3, most_ticks)))


def _draw_signs(canvas: Canvas, curve: Curve, plot: Plot) -> None:
    """Draw the signs first, so that no name takes the place of one; a name goes where there is room for it."""
    cells = [
        canvas.cell(float(x), float(y)) if np.isfinite(x) and np.isfinite(y) else None
        for x, y in zip(*_shares(curve, plot), strict=True)
    ]
    for cell in cells if curve.sign else ():
        if cell is not None:
            canvas.text(*cell, curve.sign, curve.role, over=True)
    for cell, name in zip(cells, curve.names, strict=False):
        if cell is None or not name:
            continue
        column, row = cell
        right, left = f"{name} ", f" {name}"  # with a blank to what comes next
        places = ((1, -1, right), (1, 0, right), (-len(left), -1, left), (1, 1, right), (-len(left), 1, left))
        for across, down, text in places:
            if canvas.text(column + across, row + down, text, "dim"):
                break


def _shares(curve: Curve, plot: Plot) -> tuple[Floats, Floats]:
    return plot.x.shares(np.array(curve.x, dtype=np.float64)), plot.y.shares(np.array(curve.y, dtype=np.float64))


def _legend(plot: Plot, room: int) -> Row:
    words: list[Word] = []
    for curve in reversed(plot.curves):
        if not curve.label:
            continue
        lead = curve.sign or SAMPLES[curve.ink or "line"]
        word = (f"{'  ' if words else ''}{lead} {curve.label}", curve.role)
        if width_of((*words, word)) <= room:
            words.append(word)
    return tuple(words)


def _axis(plot: Plot, columns: int) -> Rows:
    """The line with its ticks, and their values as far as they do not touch."""
    ticks = plot.x_ticks or tuple((tick, fmt.number(tick)) for tick in plot.x.ticks)
    shares = plot.x.shares(np.array([value for value, _ in ticks], dtype=np.float64)).tolist()
    line: list[Word] = [("─", "rule")] * columns
    values = [" "] * (columns + GUTTER)
    for share, (_, label) in zip(shares, ticks, strict=True):
        if not -0.001 <= share <= 1.001:
            continue
        column = cell_across(share, columns)
        line[column] = ("┴", "dim")
        start = min(max(0, column + GUTTER - len(label) // 2), columns + GUTTER - len(label))
        if all(cell == " " for cell in values[max(0, start - 1) : start + len(label) + 1]):
            values[start : start + len(label)] = label
    return [(*CORNER, *joined(line)), (("".join(values), "dim"),)]


def limits_of(slo_ms: dict[str, float], name: str) -> tuple[Tick, ...]:
    """The limits on a latency, by its name."""
    found = [(limit, limit_ms) for limit, limit_ms in slo_ms.items() if limit.partition("_")[0] == name]
    return tuple((limit_ms, f"SLO {limit} {fmt.number(limit_ms)}") for limit, limit_ms in found if limit_ms > 0)
