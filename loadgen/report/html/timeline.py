"""Everything that happened, on one time axis: load, throughput, latency, engine, GPUs, host and client, row by row.

A row whose columns hold nothing is not drawn. Where a long run was merged, a column has its highest values and
`<column>_min` its lowest: both are drawn, with the band between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from loadgen.format import GIB
from loadgen.metrics.result import Result
from loadgen.metrics.samples import Columns
from loadgen.report.assessment import titles
from loadgen.report.html.style import (
    ACCENT,
    BAD,
    SECOND,
    chart_text,
    coloured,
    faint,
    log_axis,
    ramp,
    shortened,
    styled,
)

_ROW_HEIGHT = 92
_GAP = 34
_TOP, _BOTTOM, _LEFT = 44, 40, 48
_MOST_NAMED_STAGES = 14
_MOST_NAMED_LINES = 3
_LONGEST_NAME = 24
_MARKED = {"note": ACCENT, "error": BAD}  # kinds of events that are drawn over all rows, besides the stages


class Line(NamedTuple):
    """One column in a row."""

    name: str
    columns: Columns
    column: str
    colour: str
    scale: float = 1.0
    step: bool = False


class Row(NamedTuple):
    """One row of the figure."""

    title: str
    lines: list[Line]
    log: bool = False
    most: float | None = None  # the end of the axis, where there is a natural one


def timeline(result: Result) -> go.Figure | None:
    """The figure; None for a run that left no series."""
    rows = [row for row in _rows(result) if any(_known(line) for line in row.lines)]
    if not rows:
        return None
    inner = len(rows) * _ROW_HEIGHT + (len(rows) - 1) * _GAP
    figure = make_subplots(rows=len(rows), cols=1, shared_xaxes=True, vertical_spacing=_GAP / inner)
    for number, row in enumerate(rows, start=1):
        drawn = [line for line in row.lines if _known(line)]
        for trace in (trace for line in drawn for trace in _traces(line)):
            figure.add_trace(trace, row=number, col=1)
        figure.update_yaxes(_axis(row, drawn), row=number, col=1)
    margin = {"l": _LEFT, "r": 18, "t": _TOP, "b": _BOTTOM}
    styled(figure, height=inner + _TOP + _BOTTOM, layout={"margin": margin, "hovermode": "x unified"})
    figure.update_xaxes(title_text="seconds since the run began", row=len(rows), col=1)
    # One by one they would be checked anew with each that is added.
    row_titles = [_row_title(row, number) for number, row in enumerate(rows, start=1)]
    return figure.update_layout(
        annotations=[*row_titles, *_stage_names(result)], shapes=[*_stage_marks(result), *_event_marks(result)]
    )


def _rows(result: Result) -> list[Row]:
    return [*_load_rows(result.series), *_engine_rows(result.series), *_gpu_rows(result), *_host_rows(result)]


def _load_rows(series: Columns) -> list[Row]:
    def two(metric: str) -> list[Line]:
        return [
            Line("p50", series, f"{metric}_p50_ms", ACCENT),
            Line("p99", series, f"{metric}_p99_ms", SECOND),
        ]

    return [
        Row(
            "Load, streams open and asked for",
            [Line("open", series, "held", ACCENT), Line("asked", series, "target", SECOND, step=True)],
        ),
        Row("Output, tok/s", [Line("output", series, "output_tokens_per_s", ACCENT)]),
        Row("TTFT of the last 5 s, ms", two("ttft"), log=True),
        Row("TPOT of the last 5 s, ms", two("tpot"), log=True),
        Row("Failed requests", [Line("failed", series, "errors", BAD)] if any(series.get("errors", [])) else []),
    ]


def _engine_rows(series: Columns) -> list[Row]:
    running = Line("running", series, "engine_running", ACCENT)
    waiting = Line("waiting", series, "engine_waiting", BAD)
    return [
        Row("Engine, requests", [running, waiting]),
        Row("KV cache in use, %", [Line("KV cache", series, "kv_usage", ACCENT, scale=100)], most=100),
    ]


def _gpu_rows(result: Result) -> list[Row]:
    def each(column: str, scale: float = 1.0) -> list[Line]:
        return [
            Line(f"GPU {gpu.index}", gpu.columns, column, colour, scale=scale)
            for gpu, colour in zip(result.gpu_series, colours, strict=True)
        ]

    colours = ramp(len(result.gpu_series))
    return [
        Row("GPU busy, %", each("gfx_percent"), most=100),
        Row("GPU memory controllers busy, %", each("memory_percent"), most=100),
        Row("HBM in use, GiB", each("hbm_used_bytes", 1 / GIB)),
        Row("GPU power, W", each("power_w")),
        Row("GPU hotspot, \N{DEGREE SIGN}C", each("temperature_hotspot_c")),
        Row("GPU clock, MHz", each("gfx_clock_mhz")),
        Row("GPU held back, % of the time", each("throttled_percent") if _throttled(result) else []),
    ]


def _throttled(result: Result) -> bool:
    return any(any(gpu.columns.get("throttled_percent", [])) for gpu in result.gpu_series)


def _host_rows(result: Result) -> list[Row]:
    host, series = result.host_series, result.series
    return [
        Row(
            "Host CPU, %",
            [
                Line("all cores", host, "cpu_percent", ACCENT),
                Line("busiest core", host, "cpu_busiest_percent", SECOND),
            ],
            most=100,
        ),
        Row("Client's read lag p99, ms", [Line("read lag p99", series, "read_lag_p99_ms", ACCENT)]),
    ]


def _known(line: Line) -> bool:
    return any(value is not None for value in line.columns.get(line.column, []))


def _row_title(row: Row, number: int) -> dict[str, Any]:
    drawn = [line for line in row.lines if _known(line)]
    return {
        "text": f"<b>{chart_text(row.title)}</b>{_names(drawn)}",
        "xref": "paper",
        "yref": f"y{number if number > 1 else ''} domain",
        "x": 0,
        "y": 1,
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 3,
        "showarrow": False,
    }


def _names(drawn: Sequence[Line]) -> str:
    """Which colour is what; many lines are GPUs, the first light and the last strong."""
    if not 1 < len(drawn) <= _MOST_NAMED_LINES:
        return ""
    return " \N{EN DASH} " + ", ".join(coloured(line.name, line.colour) for line in drawn)


def _axis(row: Row, drawn: Sequence[Line]) -> dict[str, Any]:
    if row.log:
        return log_axis([value for line in drawn for value in line.columns[line.column]], most_ticks=4)
    if row.most is not None:
        return {"range": [0, row.most * 1.04], "dtick": row.most / 2}
    return {"rangemode": "tozero", "nticks": 4}


def _traces(line: Line) -> list[go.Scatter]:
    times = line.columns["t_s"]
    high = _scatter(line, times, line.columns[line.column])
    lows = line.columns.get(f"{line.column}_min")
    if lows is None:
        return [high]
    low = _scatter(line, times, lows).update(name=f"{chart_text(line.name)}, lowest", line={"width": 0.75})
    return [low, high.update(fill="tonexty", fillcolor=faint(line.colour, 0.18))]


def _scatter(line: Line, times: Sequence[float | None], values: Sequence[float | None]) -> go.Scatter:
    scaled = [None if value is None else value * line.scale for value in values]
    return go.Scatter(
        x=_short_times(times),
        y=shortened(scaled),
        name=chart_text(line.name),
        mode="lines",
        line={"color": line.colour, "width": 1.5, "shape": "hv" if line.step else "linear"},
        hovertemplate="%{y:,.4~g}",
    )


def _short_times(times: Sequence[float | None]) -> list[float | None]:
    return [None if time is None else round(time, 2) for time in times]


def _stage_names(result: Result) -> list[dict[str, Any]]:
    starts, names = stage_starts_s(result), titles(result.stages)
    few = len(starts) <= _MOST_NAMED_STAGES
    return [_stage_name(at, names[index] if few else str(index + 1)) for index, at in starts.items()]


def _stage_name(at: float, name: str) -> dict[str, Any]:
    short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
    return {
        "text": chart_text(short),
        "x": at,
        "y": 1,
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 22,
        "showarrow": False,
        "font": {"size": 11},
    }


def stage_starts_s(result: Result) -> dict[int, float]:
    """When each stage began, in seconds of the run."""
    began = datetime.fromisoformat(result.started_at)
    return {stage.index: (datetime.fromisoformat(stage.started_at) - began).total_seconds() for stage in result.stages}


def _stage_marks(result: Result) -> list[dict[str, Any]]:
    return [_mark(at, faint(SECOND, 0.7), "solid") for at in stage_starts_s(result).values()]


def _event_marks(result: Result) -> list[dict[str, Any]]:
    return [_mark(event.t_s, _MARKED[event.kind], "dot") for event in result.events if event.kind in _MARKED]


def _mark(at: float, colour: str, dash: str) -> dict[str, Any]:
    line = {"color": colour, "width": 1, "dash": dash}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": line, "layer": "below"}
