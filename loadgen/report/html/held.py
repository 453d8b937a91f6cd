"""Figures against the streams held: of loads that move, and of everything that a run measured at one load.

A way up points upwards and is drawn through, a way down points downwards and is dashed, so that hysteresis shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import plotly.graph_objects as go

from loadgen.metrics.result import CurvePoint
from loadgen.metrics.snapshot import SHORTEST_S
from loadgen.report.cells import LATENCY_TITLES
from loadgen.report.html.style import ACCENT, SECOND, dressed, log_axis, ramp
from loadgen.report.load_curve import load_words, shape_of

_HEIGHT = 300
_SYMBOLS = {"": "circle", "up": "triangle-up", "down": "triangle-down"}
_DASHES = {"": "solid", "up": "solid", "down": "dash"}


def latency_by_held(points: Sequence[CurvePoint], metric: str) -> go.Figure:
    """The median and p99 of `ttft` or `itl`."""
    figure = go.Figure()
    for part, colour in _parts(points):
        for name, shade in (("p99", SECOND), ("p50", colour)):
            summaries = [getattr(point, f"{metric}_ms") for point in part]
            y = [getattr(summary, name) for summary in summaries]
            counts = [f"{summary.count:,}" for summary in summaries]
            figure.add_trace(_line(part, y, counts, shade, f"{LATENCY_TITLES[metric]} {name}", "ms"))
    _dressed(figure)
    return figure.update_yaxes(log_axis([value for trace in figure.data for value in trace.y]))


def throughput_by_held(points: Sequence[CurvePoint]) -> go.Figure:
    figure = go.Figure()
    for part, colour in _parts(points):
        y = [point.output_tokens_per_s for point in part]
        seconds = [f"{point.measured_s:.1f} s" for point in part]
        figure.add_trace(_line(part, y, seconds, colour, "output", "tok/s"))
    return _dressed(figure).update_yaxes(rangemode="tozero")


def held_key(points: Sequence[CurvePoint]) -> dict[str, str]:
    parts = list(_parts(points))
    shapes = {shape_of(part[0]): colour for part, colour in parts}
    key = {"p50": ACCENT} if len(shapes) == 1 else shapes
    signs = {"\N{BLACK UP-POINTING TRIANGLE} up": "up", "\N{BLACK DOWN-POINTING TRIANGLE} down": "down"}
    moves = {part[0].direction for part, _ in parts}
    return key | {"p99": SECOND} | {words: ACCENT for words, direction in signs.items() if direction in moves}


def _parts(points: Sequence[CurvePoint]) -> Iterator[tuple[list[CurvePoint], str]]:
    """The points of each shape and direction, each with the colour of its shape."""
    shapes = sorted({(point.isl, point.osl) for point in points})
    colours = dict(zip(shapes, ramp(len(shapes)) if len(shapes) > 1 else [ACCENT], strict=True))
    drawn = (point for point in points if point.measured_s >= SHORTEST_S)
    ordered = sorted(drawn, key=lambda point: (point.isl, point.osl, point.direction, point.held))
    for (isl, osl, _), part in groupby(ordered, key=lambda point: (point.isl, point.osl, point.direction)):
        yield list(part), colours[isl, osl]


def _line(
    points: Sequence[CurvePoint], y: Sequence[float | None], of: Sequence[str], colour: str, what: str, unit: str
) -> go.Scatter:
    direction = points[0].direction
    return go.Scatter(
        x=[point.held for point in points],
        y=y,
        mode="lines+markers",
        line={"color": colour, "width": 1.75, "dash": _DASHES[direction]},
        marker={"color": colour, "size": 8 if direction else 7, "symbol": _SYMBOLS[direction]},
        customdata=[f"{load_words(point)}, of {count}" for point, count in zip(points, of, strict=True)],
        hovertemplate=f"%{{customdata}}<br>{what} %{{y:,.4~g}} {unit} at %{{x:,.4~g}}<extra></extra>",
        cliponaxis=False,
    )


def _dressed(figure: go.Figure) -> go.Figure:
    return dressed(figure, height=_HEIGHT).update_xaxes(title_text="streams held", rangemode="tozero")
