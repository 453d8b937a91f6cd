"""The figures except the timeline, and the look that all share.

A stage is a point of the load curve: filled if it met its limits, hollow if it missed one or the client was limited.
The frontier, of one run or several, is tokens per GPU against tokens per user. A point there is pale if any other of
its shape, from whichever run, dominates it, so the full ones are the best choices at each speed for a user.
Moving loads, and repeated measurements at one load, are drawn by streams held: a way up has upward triangles and a
solid line, a way down downward triangles and a dashed line, so that hysteresis shows. The distributions have
HdrHistogram's percentile axis: each nine takes as much room as the one before.

Data colours are readable on white and on black. Text, grid and hover boxes take theirs from the page's style sheet, so
that figures follow it in dark mode and on paper.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from loadgen.format import Statistic, bounded, exact, harmless, significant
from loadgen.grouping import by_key
from loadgen.metrics.frontier import LOGARITHMIC_FROM, Point, frontier
from loadgen.metrics.histogram import Histogram
from loadgen.report.assessment import by_load, titles
from loadgen.report.columns import NEAR, SHAPE, TOTAL_BY_E2E, Axes, columns, frontier_axes, load_words
from loadgen.report.notes import LATENCY_TITLES, has_numbers
from loadgen.schema.deltas import Summary
from loadgen.schema.result import CurvePoint, Result, StageResult, met_limits
from loadgen.schema.snapshot import CURVE_PERCENTS, MIN_S
from loadgen.searches import SEARCHES

ACCENT = "#2f7fc4"
SECOND = "#8b96a1"
BAD = "#cf4a32"
_FONT = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif", "size": 12}
_CLEAR = "rgba(0,0,0,0)"
_RAMP = ["rgb(158,178,196)", "rgb(22,104,178)"]  # light and strong tone of the accent
_PERCENTS = (50, 90, 99, 99.9, 99.99, 99.999)
_EMPTY = Summary(count=0)
_LABEL = {"font": {"size": 11}, "textangle": 0}  # of a line
RUN_COLOURS = (ACCENT, "#d0801f", "#3d9970", "#a05fb5", "#c0506e", "#7d8b2f")
"""One per run, repeating if there are more; readable on white and on black."""
PALE_NOTE = (
    "each line leads along its own best points; a pale one has another above it on some line, no slower for a user."
)
_PALE = 0.3

Values = Sequence[float | None]
_Placed = tuple[StageResult, Point]


class ColouredStages(NamedTuple):
    """Stages that share a colour: those of a run, or of a shape."""

    name: str
    colour: str
    stages: list[StageResult]


def ramp(count: int) -> list[str]:
    """`count` tones of the accent, from light to strong, for ordered series."""
    shares = [number / (count - 1) if count > 1 else 1.0 for number in range(count)]
    return list(sample_colorscale(_RAMP, shares))


def chart_text(text: str) -> str:
    """Escape a text for a figure, which would interpret tags in it."""
    return html.escape(harmless(text).replace("\n", " "), quote=False)


def coloured(text: str, colour: str) -> str:
    return f"<span style='color:{colour}'>{chart_text(text)}</span>"


def styled(figure: go.Figure, *, height: int = 300, layout: Mapping[str, Any] | None = None) -> go.Figure:
    """A figure in the common look; `layout` adds to it or overrides it."""
    figure.update_layout(
        height=height,
        template="none",
        autosize=True,
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"},
        paper_bgcolor=_CLEAR,
        plot_bgcolor=_CLEAR,
        font=_FONT,
        margin={"l": 56, "r": 18, "t": 10, "b": 42},
        hoverlabel={"font": _FONT},
    )
    figure.update_layout(layout or {})
    axis = {"zeroline": False, "showline": False, "ticks": "", "gridwidth": 1}
    figure.update_xaxes(showgrid=False, title_standoff=6, **axis)
    return figure.update_yaxes(showgrid=True, **axis)


def has_curve(result: Result) -> bool:
    """Whether there is a curve to draw: at least two loads, or one and a published point."""
    loads = {(stage.target.concurrency, stage.target.rate) for stage in drawn(result)}
    axes = (TOTAL_BY_E2E, *map(_latency_axes, ("ttft", "tpot")))
    return len(loads) > 1 or (bool(loads) and any(_published(result, one) for one in axes))


def drawn(result: Result) -> list[StageResult]:
    """The stages drawn as points, by load: those with timings at a single load."""
    return sorted((stage for stage in result.stages if has_numbers(stage) and not stage.curve), key=by_load)


def latency_curve(result: Result, metric: str) -> go.Figure:
    """A latency against output tok/s: median and p99, points labelled by load."""
    figure = go.Figure()
    series = series_by_shape(result)
    for shape, colour, stages in series:
        x = [stage.throughput.output_tokens_per_s for stage in stages]
        for statistic in ("p99", "p50"):
            y = [getattr(stage.latency_ms.get(metric, _EMPTY), statistic) for stage in stages]
            shade = SECOND if statistic == "p99" and len(series) == 1 else colour
            trace = _stage_line(stages, x, y, shade, f"{LATENCY_TITLES[metric]} {statistic}", "ms")
            name = statistic if len(series) == 1 else f"{shape} {statistic}"
            dash = "dot" if statistic == "p99" and len(series) > 1 else "solid"
            figure.add_trace(trace.update(name=name, line={"dash": dash}))
    _add_published(figure, result, _latency_axes(metric), "published p50")
    _limits(figure, result, metric)
    _knee(figure, result)
    return from_zero(figure, "output tok/s").update_yaxes(type="log")


def throughput_curve(result: Result) -> go.Figure:
    """Total throughput against the median E2E, points labelled by load."""
    figure = go.Figure()
    for shape, colour, stages in series_by_shape(result):
        # A stage without a conclusive E2E has no point.
        known = [(None, None) if stage.e2e_inconclusive else TOTAL_BY_E2E.point(stage) for stage in stages]
        x, y = zip(*known, strict=True)
        trace = _stage_line(stages, x, y, colour, "total", "tok/s")
        labels = [load_name(stage) for stage in stages]
        figure.add_trace(trace.update(name=shape, mode="lines+markers+text", text=labels, textposition="top right"))
    _add_published(figure, result, TOTAL_BY_E2E, "published")
    across = [value for trace in figure.data for value in trace.x if value]
    far = bool(across) and max(across) > LOGARITHMIC_FROM * min(across)  # such as the E2E of short and long answers
    from_zero(figure, TOTAL_BY_E2E.labels()[0]).update_yaxes(rangemode="tozero")
    return figure.update_xaxes(type="log") if far else figure


def load_name(stage: StageResult) -> str:
    """The requested load of a stage, as a point's label."""
    target = stage.target
    return f"{target.concurrency}" if target.rate is None else f"{target.rate:g}/s"


def series_by_shape(result: Result) -> list[ColouredStages]:
    """The stages of each shape, by load, with its colour."""
    shapes = by_key(((stage.isl, stage.osl), stage) for stage in drawn(result))
    colours = _shape_colours(shapes)
    return [ColouredStages(f"{isl}/{osl}", colour, shapes[isl, osl]) for (isl, osl), colour in colours.items()]


def _shape_colours(shapes: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """A tone per shape in order; the accent if there is one."""
    known = sorted(set(shapes))
    return dict(zip(known, [ACCENT] if len(known) == 1 else ramp(len(known)), strict=True))


def from_zero(figure: go.Figure, title: str) -> go.Figure:
    return styled(figure).update_xaxes(title_text=title, rangemode="tozero")


def hollow(stage: StageResult) -> bool:
    """Whether its point is hollow: it missed a limit, or the client was the limit."""
    return stage.limited or met_limits(stage) is False


def _stage_line(stages: list[StageResult], x: Values, y: Values, colour: str, what: str, unit: str) -> go.Scatter:
    names = titles(stages)
    trace = _line(x, y, [chart_text(names[stage.index]) for stage in stages], colour, what, unit)
    return trace.update(marker={"symbol": ["circle-open" if hollow(stage) else "circle" for stage in stages]})


def _line(x: Values, y: Values, names: Sequence[str], colour: str, what: str, unit: str) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=y,
        mode="lines+markers",
        line={"color": colour, "width": 1.75},
        marker={"color": colour, "size": 7},
        customdata=names,
        hovertemplate=f"%{{customdata}}<br>{what} %{{y:,.4~g}} {unit} at %{{x:,.4~g}}<extra></extra>",
        cliponaxis=False,
    )


def _limits(figure: go.Figure, result: Result, metric: str) -> None:
    """Draw the limits that are near the values as horizontal lines."""
    limits = {name: check.limit_ms for stage in result.stages for name, check in stage.slo.items()}
    for stage in result.stages:
        limits |= stage.goodput.limits_ms if stage.goodput is not None else {}
    highest = max((value for trace in figure.data for value in trace.y if value is not None), default=0.0)
    for name, limit_ms in limits.items():
        kind, _, statistic = name.partition("_")
        if kind == metric and limit_ms <= NEAR * highest:
            words = coloured(f"limit {statistic or 'of each stream'} {exact(limit_ms)} ms", BAD)
            line = {"color": BAD, "width": 1, "dash": "dot"}
            figure.add_hline(
                y=limit_ms, line=line, label={"text": words, "textposition": "start", "xanchor": "left", **_LABEL}
            )


def _latency_axes(metric: str) -> Axes:
    return Axes(x="output_tokens_per_s", y=f"{metric}_p50_ms")


def _published(result: Result, axes: Axes) -> list[tuple[float, float, str]]:
    return axes.published(result.reference.comparisons) if result.reference is not None else []


def _add_published(figure: go.Figure, result: Result, axes: Axes, name: str) -> None:
    points = _published(result, axes)
    if not points:
        return
    x_label, y_label = axes.labels()
    figure.add_scatter(
        x=[x for x, _, _ in points],
        y=[y for _, y, _ in points],
        name=name,
        mode="markers",
        marker={"symbol": "diamond-open", "size": 9, "color": BAD, "line": {"width": 1.5}},
        customdata=[chart_text(of or "published") for _, _, of in points],
        hovertemplate=f"%{{customdata}}<br>{y_label}: %{{y:,.4~g}}<br>{x_label}: %{{x:,.4~g}}<extra></extra>",
    )


def _knee(figure: go.Figure, result: Result) -> None:
    """Mark a search's result at the throughput interpolated from the stages around it."""
    search = result.search
    if search is None or search.found is None:
        return
    known = sorted(
        (float(load), stage.throughput.output_tokens_per_s)
        for stage in drawn(result)
        if (load := stage.target.rate if search.by == "rate" else stage.target.concurrency) is not None
        and stage.throughput.output_tokens_per_s is not None
    )
    if len(known) < 2 or not known[0][0] <= search.found <= known[-1][0]:
        return
    loads, rates = zip(*known, strict=True)
    at = float(np.interp(search.found, loads, rates))
    words = f"{SEARCHES[search.kind].label}, {search.by} {search.found:.3g}"
    line = {"color": SECOND, "width": 1, "dash": "dash"}
    figure.add_vline(x=at, line=line, label={"text": words, "textposition": "end", "xanchor": "right", **_LABEL})


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


_REPORTED = columns("ttft_p99_ms interactivity_tokens_per_s usd_per_million_output_tokens")


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


def latency_by_held(points: Sequence[CurvePoint], metric: str) -> go.Figure:
    figure = go.Figure()
    for part, colour in _parts(points):
        summaries = [getattr(point, f"{metric}_ms") for point in part]
        counts = [f"{summary.count:,}" for summary in summaries]
        for statistic, shade in (("p99", SECOND), ("p50", colour)):
            y = [getattr(summary, statistic) for summary in summaries]
            trace = _point_line(part, y, counts, shade, f"{LATENCY_TITLES[metric]} {statistic}", "ms")
            figure.add_trace(trace.update(name=f"{trace.name} {statistic}"))
    return from_zero(figure, "streams held").update_yaxes(type="log")


def throughput_by_held(points: Sequence[CurvePoint]) -> go.Figure:
    figure = go.Figure()
    for part, colour in _parts(points):
        y = [point.output_tokens_per_s for point in part]
        seconds = [f"{point.measured_s:.1f} s" for point in part]
        figure.add_trace(_point_line(part, y, seconds, colour, "output", "tok/s"))
    return from_zero(figure, "streams held").update_yaxes(rangemode="tozero")


def _parts(points: Sequence[CurvePoint]) -> Iterator[tuple[list[CurvePoint], str]]:
    """The points of each shape and direction, with the shape's colour."""
    colours = _shape_colours((point.isl, point.osl) for point in points)
    drawn = (point for point in points if point.measured_s >= MIN_S)
    ordered = sorted(drawn, key=lambda point: (point.isl, point.osl, point.direction, point.held))
    for (isl, osl, _), part in groupby(ordered, key=lambda point: (point.isl, point.osl, point.direction)):
        yield list(part), colours[isl, osl]


def _point_line(
    points: list[CurvePoint], y: Values, of: Sequence[str], colour: str, what: str, unit: str
) -> go.Scatter:
    direction = points[0].direction
    hover = [f"{load_words(point)}, of {count}" for point, count in zip(points, of, strict=True)]
    trace = _line([point.held for point in points], y, hover, colour, what, unit)
    if direction:
        trace.update(marker={"symbol": f"triangle-{direction}", "size": 8})
    name = f"{SHAPE[0].report(points[0])} {direction}".rstrip()
    return trace.update(name=name, line={"dash": "dash" if direction == "down" else "solid"})


def drawn_stages(result: Result) -> dict[str, tuple[StageResult, str]]:
    """The stages of the distributions by title, with their colours: the higher the load, the stronger."""
    stages, names = drawn(result), titles(result.stages)
    return {names[stage.index]: (stage, colour) for stage, colour in zip(stages, ramp(len(stages)), strict=True)}


def distribution(result: Result, metric: str) -> go.Figure | None:
    """One latency by percentile, a line per stage; None if no stage has its histogram."""
    figure = go.Figure()
    for name, (stage, colour) in drawn_stages(result).items():
        hdr = stage.latency_ms.get(metric, _EMPTY).hdr
        if hdr is not None:
            figure.add_trace(_percentile_line(name, Histogram.from_hdr(hdr), colour))
    if not figure.data:
        return None
    deepest = max(1.0, *(trace.x[-1] for trace in figure.data))
    _limits(figure, result, metric)
    styled(figure).update_yaxes(type="log").update_layout(showlegend=False)
    shown = [percent for percent in _PERCENTS if _nines(percent) <= deepest * 1.01]
    return figure.update_xaxes(
        type="log",
        tickangle=0,
        tickvals=[1.0, *map(_nines, shown)],
        ticktext=["0", *(f"{percent} %" for percent in shown)],
        range=[0, float(np.log10(deepest)) + 0.02],
    )


def _nines(percent: float) -> float:
    """The position of a percentile on the axis."""
    return 1 / (1 - percent / 100)


def _percentile_line(name: str, histogram: Histogram, colour: str) -> go.Scatter:
    """Milliseconds by percentile, only as far as the number of values supports."""
    last = 100 * (1 - 1 / histogram.count)
    percents = [*(percent for percent in CURVE_PERCENTS if percent < last), last]
    return go.Scatter(
        x=[_nines(percent) for percent in percents],
        y=[float(f"{value_us / 1000:.5g}") for value_us in histogram.percentile_us(*percents)],
        name=chart_text(name),
        mode="lines",
        line={"color": colour, "width": 1.75},
        customdata=[f"{percent:.5g}" for percent in percents],
        hovertemplate="%{fullData.name}<br>%{customdata} %: %{y:,.4~g} ms<extra></extra>",
    )
