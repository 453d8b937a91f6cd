"""Percentiles: a table of the stage with the last seconds, and a page with every percentile of several periods.

A drift shows as a difference between neighbours. The page's plot has the axis of HdrHistogram, by nines; a curve ends
where its stage has too few streams: the p99.9 of a hundred streams would be their maximum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from loadgen import format as fmt
from loadgen.report.notes import latencies_so_far
from loadgen.schema.deltas import Summary
from loadgen.schema.snapshot import CURVE_PERCENTS, RECENT_S, Distribution, Snapshot
from tui.charts.canvas import Ink
from tui.charts.plot import Curve, Plot, limits_of, plot_rows, scale_of
from tui.charts.scale import Scale
from tui.panels import served
from tui.panels.comparison import published
from tui.panels.frame import METRICS, Frame
from tui.widgets.rows import Row, Rows, Word, padded, side_by_side, titled, widths_of

HEADS = ("mean", "min", "p50", "p90", "p95", "p99", "p99.9", "max")
_SHORT_HEADS = ("mean", "p50", "p90", "p99", "p99.9", "max")
_CELL = 6
_HALF = _CELL * len(_SHORT_HEADS)
_TICKS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)
_LABEL, _COUNT = 17, 7
_TABLE = _LABEL + _COUNT + _CELL * len(HEADS)
_TABLE_ROWS = 6


def latency(frame: Frame, width: int, height: int) -> Rows:
    """Draw the tables of the stage and of the last seconds side by side, with the published figures below."""
    if frame.no_load:
        return served.latency(frame, width, height)
    stage, recent = frame.stage, frame.snapshot.recent
    right = _fitting(_SHORT_HEADS, width - 7 - _HALF - 1)
    done = f": {fmt.duration(stage.duration_s)}, {fmt.count(stage.requests.completed)} done" if stage else ""
    last = f"last {RECENT_S:.0f} s"
    counted = f"{last}: {fmt.count(recent['e2e'].count if 'e2e' in recent else 0)} done"
    last = counted if len(counted) + 2 <= width - 7 - _HALF - 1 else last
    rows: Rows = [
        served.two_tables_title(f"stage {stage.number if stage else fmt.UNKNOWN}{done}", last, _HALF),
        ((" " * 7, "text"), *_heads(_SHORT_HEADS), ("│", "rule"), *_heads(right)),
    ]
    whole = latencies_so_far(stage) if stage else {}
    for name in METRICS:
        left = _cells(whole.get(name), name, _SHORT_HEADS)
        if name == "e2e" and stage is not None and stage.e2e_needs_s:
            left = [(f" needs {math.ceil(stage.e2e_needs_s)} s more".ljust(_HALF), "dim")]
        label: Row = ((f"{name.upper():<4}", "text"), (f"{unit_of(name):>3}", "dim"))
        rows.append((*label, *left, ("│", "rule"), *_cells(recent.get(name), name, right)))
    return [*rows, published(frame)]


def distribution(frame: Frame, width: int, height: int) -> Rows:
    """Draw the plot of the chosen latency above its table, with the tables of the others if they fit."""
    if frame.no_load:
        return served.page(frame, width, height)
    above = plot_rows(_plot(frame, frame.metric, height - _TABLE_ROWS), width, height - _TABLE_ROWS)
    shown = [frame.metric, *(name for name in METRICS if name != frame.metric)][: max(1, width // (_TABLE + 2))]
    widths = widths_of(width, len(shown))
    tables = []
    for name, each in zip(shown, widths, strict=True):
        heads = _fitting(HEADS, each - _LABEL - _COUNT)
        rows: Rows = [titled(f"{name.upper()} {unit_of(name)}", (), min(each, _TABLE))]
        rows.append(((f"{'':<{_LABEL}}{'count':>{_COUNT}}", "dim"), *_heads(heads)))
        for stretch, latencies in stretches(frame.snapshot):
            summary = latencies.get(name, Summary(count=0))
            count: Word = (f"{fmt.count(summary.count):>{_COUNT}}", "dim")
            rows.append(((f" {padded(stretch, _LABEL - 1)}", "text"), count, *_cells(summary, name, heads)))
        tables.append((rows, each))
    return [*above, *side_by_side(tables, _TABLE_ROWS)]


def _plot(frame: Frame, name: str, height: int) -> Plot:
    this, before = (*frame.snapshot.distributions, None, None)[:2]
    overlaid: tuple[tuple[Distribution | None, str, Ink], ...] = (
        (frame.snapshot.baseline_distribution, "throughput", "dots"),
        (before, "before", "dots"),
        (this, "p50", "line"),
    )
    curves = [_curve(one, name, role, ink) for one, role, ink in overlaid if one is not None and name in one.curves_ms]
    tail = max((x for curve in curves for x in curve.x), default=2.0)
    limits = limits_of(frame.snapshot.slo_ms, name)
    y = scale_of([y for curve in curves for y in curve.y] + [limit_ms for limit_ms, _ in limits], max(2, height // 4))
    ticks = tuple((_nines(percent), f"p{percent:g}" if percent else "min") for percent in _TICKS)
    title = f"{name.upper()} ms{' (log)' if y.log else ''} by percentile"
    return Plot(title, tuple(curves), Scale(0.0, max(tail, 1.0), ()), y, limits, ticks)


def _curve(one: Distribution, name: str, role: str, ink: Ink) -> Curve:
    """Return the curve up to the last percentile with at least one stream beyond it."""
    count = one.counts.get(name, 0)
    points = [
        (_nines(percent), value_ms)
        for percent, value_ms in zip(CURVE_PERCENTS, one.curves_ms[name], strict=False)
        if count * (1 - percent / 100) >= 1 - 1e-9
    ]
    x, y = zip(*points, strict=True) if points else ((), ())
    stretch = f"stage {one.stage}" if one.stage else "baseline"
    label = f"{stretch} {fmt.plain(one.label)}, {fmt.count(count)} {'gaps' if name == 'itl' else 'streams'}"
    return Curve(label, role, x, y, ink)


def _nines(percent: float) -> float:
    """Return the position of a percentile on the axis: 0 for 0, 1 for 90, 2 for 99, 3 for 99.9."""
    return -math.log10(1 - percent / 100)


def stretches(snapshot: Snapshot) -> list[tuple[str, dict[str, Summary]]]:
    """Return the latencies of the last seconds, the running or last stage, the one before it, and the whole run."""
    found = [(f"last {RECENT_S:.0f} s", snapshot.recent)]
    for stage in snapshot.stages[:-3:-1]:
        found.append((f"stage {stage.number} {fmt.plain(stage.label)}", latencies_so_far(stage)))
    return [*found, ("whole run", snapshot.latency_ms)] if snapshot.latency_ms else found


def _fitting(heads: Sequence[str], width: int) -> Sequence[str]:
    """Return those with room for whole numbers."""
    return heads[: max(0, width // _CELL)]


def _heads(heads: Sequence[str]) -> list[Word]:
    return [(f"{head:>{_CELL}}", head if head in ("p50", "p99") else "dim") for head in heads]


def _cells(summary: Summary | None, name: str, heads: Sequence[str]) -> list[Word]:
    return [(f"{value:>{_CELL}}", "text") for value in statistics_of(summary, name, heads)]


def statistics_of(summary: Summary | None, name: str, heads: Sequence[str] = HEADS) -> list[str]:
    """Return the statistics of a latency, formatted in its unit."""
    per = 1000.0 if unit_of(name) == "s" else 1.0
    return [fmt.statistic(summary, head.replace(".", ""), per=per) for head in heads]


def unit_of(name: str) -> str:
    return "s" if name == "e2e" else "ms"
