"""The load curve, figures against the streams held, and the distributions of latency.

A stage is a point of the load curve: full if it met its limits, open if it missed one or the client was limited. By the
streams held are drawn loads that move, and everything that a run measured at one load: a way up points upwards and is
drawn through, a way down points downwards and is dashed, so that hysteresis shows. On the distributions the axis of
percentiles is HdrHistogram's: each nine takes as much room as the one before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import plotly.graph_objects as go

from loadgen.metrics.deltas import Summary
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.result import CurvePoint, Result, StageResult
from loadgen.metrics.slo import met_limits
from loadgen.metrics.snapshot import CURVE_PERCENTS, SHORTEST_S
from loadgen.report.assessment import by_load, titles
from loadgen.report.columns import SHAPE, load_words
from loadgen.report.html.style import ACCENT, BAD, SECOND, chart_text, coloured, log_axis, ramp, styled
from loadgen.report.notes import LATENCY_TITLES, has_numbers
from loadgen.searches import SEARCHES

_TICKS = {50.0: "50 %", 90.0: "90 %", 99.0: "99 %", 99.9: "99.9 %", 99.99: "99.99 %", 99.999: "99.999 %"}
_HEIGHT = 300
_NEAR = 3.0  # A limit further above the values than this would squeeze them: it stays outside of the figure
_EMPTY = Summary(count=0)

Series = list[StageResult]


def has_curve(result: Result) -> bool:
    """Whether there are two loads at least."""
    return len({(stage.target.concurrency, stage.target.rate) for stage in drawn(result)}) > 1


def drawn(result: Result) -> Series:
    """The stages that are a point: something was timed, at one load."""
    return [stage for stage in result.stages if has_numbers(stage) and not stage.curve]


def latency_curve(result: Result, metric: str) -> go.Figure:
    """A latency against output tok/s: median and p99, each point named by its load."""
    figure = go.Figure()
    series = _series(result)
    for stages, colour in series:
        x = [stage.throughput.output_tokens_per_s for stage in stages]
        for statistic in ("p99", "p50"):
            y = [getattr(stage.latency_ms.get(metric, _EMPTY), statistic) for stage in stages]
            shade = SECOND if statistic == "p99" and len(series) == 1 else colour
            trace = _stage_line(stages, x, y, shade, f"{LATENCY_TITLES[metric]} {statistic}", "ms")
            figure.add_trace(trace.update(line={"dash": "dot" if statistic == "p99" and len(series) > 1 else "solid"}))
    published = _published(result, metric)
    if published:
        figure.add_trace(_published_points(published))
    _limits(figure, result, metric)
    _knee(figure, result)
    styled(figure, height=_HEIGHT).update_xaxes(title_text="output tok/s")
    figure.update_yaxes(_axis(figure, result, metric))
    return figure.update_xaxes(rangemode="tozero")


def user_curve(result: Result) -> go.Figure:
    """Output tok/s against what one user gets of it."""
    figure = go.Figure()
    for stages, colour in _series(result):
        x = [stage.throughput.output_tokens_per_s_per_user for stage in stages]
        y = [stage.throughput.output_tokens_per_s for stage in stages]
        trace = _stage_line(stages, x, y, colour, "output", "tok/s")
        names = [chart_text(_load_words(stage)) for stage in stages]
        figure.add_trace(trace.update(mode="lines+markers+text", text=names, textposition="top right"))
    styled(figure, height=_HEIGHT).update_xaxes(title_text="tok/s per user")
    return figure.update_xaxes(rangemode="tozero").update_yaxes(rangemode="tozero")


def curve_key(result: Result, metric: str) -> dict[str, str]:
    """What the colours of a latency curve say: statistics, or shapes where there are several."""
    series = _series(result)
    key = {"p50": ACCENT, "p99": SECOND}
    if len(series) > 1:
        key = {f"{stages[0].isl}/{stages[0].osl}": colour for stages, colour in series} | {"dotted: p99": SECOND}
    return key | ({"\N{WHITE DIAMOND} published p50": BAD} if _published(result, metric) else {})


def _series(result: Result) -> list[tuple[Series, str]]:
    """The stages of each shape, by load; with one shape all in the accent."""
    stages = sorted(drawn(result), key=lambda stage: (stage.isl, stage.osl))
    groups = [sorted(group, key=by_load) for _, group in groupby(stages, key=lambda stage: (stage.isl, stage.osl))]
    colours = ramp(len(groups)) if len(groups) > 1 else [ACCENT]
    return list(zip(groups, colours, strict=True))


def _stage_line(
    stages: Series, x: Sequence[float | None], y: Sequence[float | None], colour: str, what: str, unit: str
) -> go.Scatter:
    names = titles(stages)
    hollow = [stage.limited or met_limits(stage) is False for stage in stages]
    trace = _line(x, y, [chart_text(names[stage.index]) for stage in stages], colour, what, unit)
    return trace.update(marker={"symbol": ["circle-open" if one else "circle" for one in hollow]})


def _line(
    x: Sequence[float | None], y: Sequence[float | None], names: Sequence[str], colour: str, what: str, unit: str
) -> go.Scatter:
    """Points with their names, on a line."""
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


def _load_words(stage: StageResult) -> str:
    target = stage.target
    return f"{target.concurrency}" if target.rate is None else f"{target.rate:g}/s"


def _limits_ms(result: Result, metric: str) -> dict[str, float]:
    """The limits of one latency by their statistic: of stages, and of single streams."""
    limits = {name: check.limit_ms for stage in result.stages for name, check in stage.slo.items()}
    for stage in result.stages:
        limits |= stage.goodput.limits_ms if stage.goodput is not None else {}
    split = ((*name.partition("_"), limit_ms) for name, limit_ms in limits.items())
    return {statistic or "of each stream": limit_ms for kind, _, statistic, limit_ms in split if kind == metric}


def _limits(figure: go.Figure, result: Result, metric: str) -> None:
    """Levels that must not be exceeded."""
    for statistic, limit_ms in _limits_ms(result, metric).items():
        figure.add_hline(y=limit_ms, line={"color": BAD, "width": 1, "dash": "dot"})
        figure.add_annotation(
            text=coloured(f"limit {statistic} {limit_ms:,g} ms", BAD),
            x=0,
            xref="x domain",
            # An annotation on a logarithmic axis is placed by the exponent.
            y=math.log10(limit_ms),
            xanchor="left",
            yanchor="bottom",
            showarrow=False,
            font={"size": 11},
        )


def _axis(figure: go.Figure, result: Result, metric: str) -> dict[str, Any]:
    """The axis of milliseconds: around the values, and around a limit that they come near."""
    values = [value for trace in figure.data for value in trace.y]
    most = max((value for value in values if value is not None), default=0.0)
    near = [limit_ms for limit_ms in _limits_ms(result, metric).values() if limit_ms <= _NEAR * most]
    return log_axis([*values, *near])


def _published(result: Result, metric: str) -> list[tuple[float, float, str]]:
    """The points of a publication that gives both coordinates: output tok/s, median of the latency, of what."""
    comparisons = result.reference.comparisons if result.reference is not None else []
    found: dict[tuple[int, str], dict[str, float]] = {}
    for one in comparisons:
        found.setdefault((one.stage, one.of), {})[one.figure] = one.published
    return [
        (figures["output_tokens_per_s"], figures[f"{metric}_p50_ms"], of or "published")
        for (_, of), figures in found.items()
        if "output_tokens_per_s" in figures and f"{metric}_p50_ms" in figures
    ]


def _published_points(points: Sequence[tuple[float, float, str]]) -> go.Scatter:
    return go.Scatter(
        x=[x for x, _, _ in points],
        y=[y for _, y, _ in points],
        mode="markers",
        marker={"symbol": "diamond-open", "size": 9, "color": BAD, "line": {"width": 1.5}},
        customdata=[chart_text(of) for _, _, of in points],
        hovertemplate="%{customdata}: p50 %{y:,.4~g} ms at %{x:,.4~g}<extra></extra>",
    )


def _knee(figure: go.Figure, result: Result) -> None:
    """What a search has found, at the throughput that the stages around it have."""
    search, stages = result.search, sorted(drawn(result), key=by_load)
    if search is None or search.found is None:
        return
    asked = [stage.target.rate if search.by == "rate" else stage.target.concurrency for stage in stages]
    known = sorted(
        (float(load), stage.throughput.output_tokens_per_s)
        for load, stage in zip(asked, stages, strict=True)
        if load is not None and stage.throughput.output_tokens_per_s is not None
    )
    if len(known) < 2 or not known[0][0] <= search.found <= known[-1][0]:
        return
    at = float(np.interp(search.found, [load for load, _ in known], [rate for _, rate in known]))
    figure.add_vline(x=at, line={"color": SECOND, "width": 1, "dash": "dash"})
    figure.add_annotation(
        x=at,
        y=1,
        yref="paper",
        text=f"{SEARCHES[search.kind].label}, {search.by} {search.found:.3g}",
        xanchor="right",
        xshift=-4,
        showarrow=False,
        font={"size": 11},
    )


def latency_by_held(points: Sequence[CurvePoint], metric: str) -> go.Figure:
    """The median and p99 of `ttft` or `itl`."""
    figure = go.Figure()
    for part, colour in _parts(points):
        for name, shade in (("p99", SECOND), ("p50", colour)):
            summaries = [getattr(point, f"{metric}_ms") for point in part]
            y = [getattr(summary, name) for summary in summaries]
            counts = [f"{summary.count:,}" for summary in summaries]
            figure.add_trace(_point_line(part, y, counts, shade, f"{LATENCY_TITLES[metric]} {name}", "ms"))
    _by_held(figure)
    return figure.update_yaxes(log_axis([value for trace in figure.data for value in trace.y]))


def throughput_by_held(points: Sequence[CurvePoint]) -> go.Figure:
    figure = go.Figure()
    for part, colour in _parts(points):
        y = [point.output_tokens_per_s for point in part]
        seconds = [f"{point.measured_s:.1f} s" for point in part]
        figure.add_trace(_point_line(part, y, seconds, colour, "output", "tok/s"))
    return _by_held(figure).update_yaxes(rangemode="tozero")


def held_key(points: Sequence[CurvePoint]) -> dict[str, str]:
    parts = list(_parts(points))
    shapes = {SHAPE[0].report(part[0]): colour for part, colour in parts}
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


def _point_line(
    points: Sequence[CurvePoint], y: Sequence[float | None], of: Sequence[str], colour: str, what: str, unit: str
) -> go.Scatter:
    direction = points[0].direction
    names = [f"{load_words(point)}, of {count}" for point, count in zip(points, of, strict=True)]
    trace = _line([point.held for point in points], y, names, colour, what, unit)
    if direction:
        trace.update(marker={"symbol": f"triangle-{direction}", "size": 8})
    return trace.update(line={"dash": "dash" if direction == "down" else "solid"})


def _by_held(figure: go.Figure) -> go.Figure:
    return styled(figure, height=_HEIGHT).update_xaxes(title_text="streams held", rangemode="tozero")


def drawn_stages(result: Result) -> dict[str, tuple[StageResult, str]]:
    """The stages of the distributions by their title, each with its colour: the stronger, the higher the load."""
    stages = sorted(drawn(result), key=by_load)
    names = titles(result.stages)
    return {names[stage.index]: (stage, colour) for stage, colour in zip(stages, ramp(len(stages)), strict=True)}


def distribution(result: Result, metric: str) -> go.Figure | None:
    """One latency by percentile, a line a stage; None where no stage has its histogram."""
    figure, deepest = go.Figure(), 1.0
    for name, (stage, colour) in drawn_stages(result).items():
        hdr = stage.latency_ms.get(metric, _EMPTY).hdr
        if hdr is None:
            continue
        x, y = _percentile_points(Histogram.from_hdr(hdr))
        deepest = max(deepest, x[-1])
        figure.add_trace(_percentile_line(name, x, y, colour))
    if not figure.data:
        return None
    _limits(figure, result, metric)
    styled(figure, height=_HEIGHT)
    figure.update_yaxes(_axis(figure, result, metric))
    ticks = [(_nines(percent), word) for percent, word in _TICKS.items() if _nines(percent) <= deepest * 1.01]
    return figure.update_xaxes(
        type="log",
        tickangle=0,
        tickvals=[1.0, *(value for value, _ in ticks)],
        ticktext=["0", *(word for _, word in ticks)],
        range=[0, float(np.log10(deepest)) + 0.02],
    )


def _percentile_points(histogram: Histogram) -> tuple[list[float], list[float]]:
    """Positions on the axis of nines, and milliseconds; no further than the count of values has a meaning."""
    last = 100 * (1 - 1 / histogram.count)
    percents = [*(percent for percent in CURVE_PERCENTS if percent < last), last]
    values_us = histogram.percentile_us(*percents)
    return [_nines(percent) for percent in percents], [value / 1000 for value in values_us]


def _nines(percent: float) -> float:
    return 1 / (1 - percent / 100)


def _percentile_line(name: str, x: list[float], y: list[float], colour: str) -> go.Scatter:
    percents = [f"{100 * (1 - 1 / value):.5g}" for value in x]
    return go.Scatter(
        x=x,
        y=[float(f"{value:.5g}") for value in y],
        name=chart_text(name),
        mode="lines",
        line={"color": colour, "width": 1.75},
        customdata=percents,
        hovertemplate="%{fullData.name}<br>%{customdata} %: %{y:,.4~g} ms<extra></extra>",
    )
