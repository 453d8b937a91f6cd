"""The frontier as a figure: tokens per GPU against tokens per user, of one run or several.

Lines follow the frontier of each run. A point is pale if any other of its shape, from whichever run, dominates it, so
the full ones are the best choices at each speed for a user.
"""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from loadgen.format import Statistic, bounded, significant
from loadgen.grouping import by_key
from loadgen.metrics.frontier import Point, frontier
from loadgen.report.assessment import titles
from loadgen.report.columns import Axes, columns, frontier_axes
from loadgen.report.html.charts import ACCENT, ColouredStages, chart_text, from_zero, hollow, load_name
from loadgen.schema.result import StageResult

RUN_COLOURS = (ACCENT, "#d0801f", "#3d9970", "#a05fb5", "#c0506e", "#7d8b2f")
"""One per run, repeating if there are more; readable on white and on black."""
PALE_NOTE = (
    "each line leads along its own best points; a pale one has another above it on some line, no slower for a user."
)
_PALE = 0.3
_Placed = tuple[StageResult, Point]
_REPORTED = columns("ttft_p99_ms interactivity_tokens_per_s usd_per_million_output_tokens")


def axes_of(series: Sequence[ColouredStages]) -> Axes:
    return frontier_axes(stage for one in series for stage in one.stages)


def frontier_figure(series: Sequence[ColouredStages]) -> go.Figure:
    """The points of all series, labelled by load; points of one shape compete."""
    axes = axes_of(series)
    placed: list[list[_Placed]] = []
    for one in series:
        places = [(stage, *axes.point(stage)) for stage in one.stages]
        placed.append([(stage, (x, y)) for stage, x, y in places if x is not None and y is not None])
    shapes = by_key(((stage.isl, stage.osl), place) for points in placed for stage, place in points)
    best = {shape: frontier(points) for shape, points in shapes.items()}

    figure = go.Figure()
    for one, points in zip(series, placed, strict=True):
        if points:
            x, y = zip(*sorted(frontier(place for _, place in points)), strict=True)
            line = {"color": one.colour, "width": 1.75}
            figure.add_scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", cliponaxis=False, showlegend=False)
            figure.add_trace(_points(one, points, best))
    from_zero(figure, axes.labels()[0]).update_layout(showlegend=len(series) > 1)
    return figure.update_yaxes(rangemode="tozero")


def _points(series: ColouredStages, points: Sequence[_Placed], best: dict[tuple[int, int], set[Point]]) -> go.Scatter:
    full = [place in best[stage.isl, stage.osl] for stage, place in points]
    names = titles(series.stages)
    return go.Scatter(
        x=[x for _, (x, _) in points],
        y=[y for _, (_, y) in points],
        name=chart_text(series.name),
        mode="markers+text",
        text=[load_name(stage) for stage, _ in points],
        textposition="top right",
        marker={
            "color": series.colour,
            "size": 8,
            "opacity": [1.0 if one else _PALE for one in full],
            "symbol": ["circle-open" if hollow(stage) else "circle" for stage, _ in points],
        },
        customdata=[chart_text(f"{series.name}: {names[stage.index]}{_reported(stage)}") for stage, _ in points],
        hovertemplate="%{customdata}<br>%{y:,.4~g} at %{x:,.4~g}<extra></extra>",
        cliponaxis=False,
    )


def _reported(stage: StageResult) -> str:
    """Further figures for a point's hover text, as far as known."""
    words = []
    for column in _REPORTED:
        value = column.value(stage)
        if isinstance(value, Statistic):
            words.append(f"{column.label} {bounded(value)} {column.unit}")
        elif isinstance(value, float):
            words.append(f"{column.label} {significant(value)}")
    return "".join(f"; {word}" for word in words)
