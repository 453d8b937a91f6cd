"""Everything that happened on one time axis, row by row: load, throughput, latency, engine, GPUs, host and client.

A row without data is not drawn. Where a long run's samples were merged, a column has the highest values and
`<column>_min` the lowest: both are drawn, with the band between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from loadgen.format import GIB
from loadgen.report.assessment import titles
from loadgen.report.html.charts import ACCENT, BAD, SECOND, chart_text, coloured, ramp, styled
from loadgen.schema.bounds import Columns
from loadgen.schema.result import Result

_ROW_HEIGHT = 92
_GAP = 34
_TOP, _BOTTOM, _LEFT = 44, 40, 48
_MAX_NAMED_STAGES = 14
_MAX_NAMED_LINES = 3
_MAX_NAME = 24
_MARKED = {"note": ACCENT, "error": BAD}  # kinds of events drawn across all rows, besides the starts of stages


class Line(NamedTuple):
    name: str
    columns: Columns
    column: str
    colour: str
    scale: float = 1.0
    step: bool = False


class Row(NamedTuple):
    title: str
    lines: list[Line]
    log: bool = False
    most: float | None = None  # the end of the axis, if there is a natural one


def timeline(result: Result) -> go.Figure | None:
    """The figure; None for a run without series."""
    rows = []
    for row in _rows(result):
        known = [line for line in row.lines if any(value is not None for value in line.columns.get(line.column, []))]
        rows += [row._replace(lines=known)] if known else []
    if not rows:
        return None
    inner = len(rows) * _ROW_HEIGHT + (len(rows) - 1) * _GAP
    figure = make_subplots(rows=len(rows), cols=1, shared_xaxes=True, vertical_spacing=_GAP / inner)
    titles_of_rows = [_drawn(figure, row, number) for number, row in enumerate(rows, start=1)]
    margin = {"l": _LEFT, "r": 18, "t": _TOP, "b": _BOTTOM}
    styled(
        figure, height=inner + _TOP + _BOTTOM, layout={"margin": margin, "hovermode": "x unified", "showlegend": False}
    )
    figure.update_xaxes(title_text="seconds since the run began", row=len(rows), col=1)
    # Set together: added one by one, plotly would validate all of them again each time.
    starts = [_mark(at, SECOND, "solid") for at in stage_starts_s(result).values()]
    events = [_mark(one.t_s, _MARKED[one.kind], "dot") for one in result.events if one.kind in _MARKED]
    return figure.update_layout(annotations=[*titles_of_rows, *_stage_names(result)], shapes=[*starts, *events])


def _drawn(figure: go.Figure, row: Row, number: int) -> dict[str, Any]:
    """Draw the lines and the axis of a row; return its title."""
    for line in row.lines:
        high = _scatter(line, line.columns[line.column])
        lows = line.columns.get(f"{line.column}_min")
        if lows is not None:
            low = _scatter(line, lows).update(name=f"{chart_text(line.name)}, lowest", line={"width": 0.75})
            figure.add_trace(low, row=number, col=1)
            high.update(fill="tonexty")
        figure.add_trace(high, row=number, col=1)

    scale: dict[str, Any] = {"rangemode": "tozero", "nticks": 4}
    if row.log:
        scale = {"type": "log", "nticks": 4}
    elif row.most is not None:
        scale = {"range": [0, row.most * 1.04], "dtick": row.most / 2}
    figure.update_yaxes(scale, row=number, col=1)

    # Explain the colours; many lines are GPUs, from light to strong.
    named = row.lines if 1 < len(row.lines) <= _MAX_NAMED_LINES else []
    names = ", ".join(coloured(line.name, line.colour) for line in named)
    text = f"<b>{chart_text(row.title)}</b>" + (f" \N{EN DASH} {names}" if names else "")
    return _above(text, x=0, yshift=3) | {"xref": "paper", "yref": f"y{number if number > 1 else ''} domain"}


def _rows(result: Result) -> list[Row]:
    def latency(metric: str) -> Row:
        shades = {"p50": ACCENT, "p99": SECOND}
        lines = [Line(name, series, f"{metric}_{name}_ms", colour) for name, colour in shades.items()]
        return Row(f"{metric.upper()} of the last 5 s, ms", lines, log=True)

    series, host = result.series, result.host_series
    cores = [Line("all cores", host, "cpu_percent", ACCENT), Line("busiest core", host, "cpu_busiest_percent", SECOND)]
    held = [Line("open", series, "held", ACCENT), Line("target", series, "target", SECOND, step=True)]
    sent = any(stage.target.concurrency != 0 for stage in result.stages)
    others = Line("to others", series, "others_tokens_per_s", SECOND)
    output = [*([Line("output", series, "output_tokens_per_s", ACCENT)] if sent else []), others]
    queued = [Line("running", series, "engine_running", ACCENT), Line("waiting", series, "engine_waiting", BAD)]
    return [
        Row("Load, streams open and asked for", held),
        Row("Output, tok/s", output),
        latency("ttft"),
        latency("tpot"),
        Row("Failed requests", [Line("failed", series, "errors", BAD)] if any(series.get("errors", [])) else []),
        Row("Engine, requests", queued),
        Row("KV cache in use, %", [Line("KV cache", series, "kv_usage", ACCENT, scale=100)], most=100),
        *_gpu_rows(result),
        Row("Host CPU, %", cores, most=100),
        Row("Client's read lag p99, ms", [Line("read lag p99", series, "read_lag_p99_ms", ACCENT)]),
    ]


def _gpu_rows(result: Result) -> list[Row]:
    def each(column: str, scale: float = 1.0) -> list[Line]:
        return [
            Line(f"GPU {gpu.index}", gpu.columns, column, colour, scale=scale)
            for gpu, colour in zip(result.gpu_series, ramp(len(result.gpu_series)), strict=True)
        ]

    throttled = any(any(gpu.columns.get("throttled_percent", [])) for gpu in result.gpu_series)
    return [
        Row("GPU activity, %", each("gfx_percent"), most=100),
        Row("GPU memory controllers, activity %", each("memory_percent"), most=100),
        Row("HBM in use, GiB", each("hbm_used_bytes", 1 / GIB)),
        Row("GPU power, W", each("power_w")),
        Row("GPU hotspot, \N{DEGREE SIGN}C", each("temperature_hotspot_c")),
        Row("GPU clock, MHz", each("gfx_clock_mhz")),
        Row("GPU held back, % of the time", each("throttled_percent") if throttled else []),
    ]


def _above(text: str, *, x: float, yshift: int) -> dict[str, Any]:
    """An annotation on the upper edge of its row."""
    place = {"x": x, "y": 1, "xanchor": "left", "yanchor": "bottom", "yshift": yshift}
    return {"text": text, **place, "showarrow": False}


def _scatter(line: Line, values: Sequence[float | None]) -> go.Scatter:
    scaled = (value * line.scale if value is not None and math.isfinite(value) else None for value in values)
    return go.Scatter(
        x=[None if time is None else round(time, 2) for time in line.columns["t_s"]],
        # No more digits than a figure can show: a long run makes a large file.
        y=[None if value is None else float(f"{value:.4g}") for value in scaled],
        name=chart_text(line.name),
        mode="lines",
        line={"color": line.colour, "width": 1.5, "shape": "hv" if line.step else "linear"},
        hovertemplate="%{y:,.4~g}",
    )


def stage_starts_s(result: Result) -> dict[int, float]:
    """When each stage began, in seconds of the run."""
    began = datetime.fromisoformat(result.started_at)
    return {stage.index: (datetime.fromisoformat(stage.started_at) - began).total_seconds() for stage in result.stages}


def _stage_names(result: Result) -> list[dict[str, Any]]:
    starts, names = stage_starts_s(result), titles(result.stages)
    if len(starts) > _MAX_NAMED_STAGES:
        names = {index: str(index + 1) for index in starts}
    cut = {
        index: name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
        for index, name in names.items()
    }
    extra = {"yref": "paper", "font": {"size": 11}}
    return [_above(chart_text(cut[index]), x=at, yshift=22) | extra for index, at in starts.items()]


def _mark(at: float, colour: str, dash: str) -> dict[str, Any]:
    """A line across all rows."""
    line = {"color": colour, "width": 1, "dash": dash}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": line, "layer": "below"}
