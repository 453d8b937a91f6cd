"""How the latencies are distributed: every percentile on HdrHistogram's axis of nines, and the usual ones as a table.

A curve ends where its stage has too few streams to tell: the p99.9 of a hundred of them would be their maximum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from loadgen import format as fmt
from loadgen.metrics.deltas import Summary
from loadgen.metrics.snapshot import CURVE_PERCENTS, RECENT_S, Distribution, Snapshot
from tui.charts.canvas import Ink
from tui.charts.plot import Curve, Plot, plot_rows, scale_of
from tui.charts.scale import Scale
from tui.panels.curve import limits_of
from tui.panels.frame import METRICS, Frame
from tui.widgets.rows import Row, Rows, Word, beside, padded, titled, widths_of

_TICKS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)
_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
_FIELDS = (
    ("mean", "mean"),
    ("min", "min"),
    ("p50", "p50"),
    ("p90", "p90"),
    ("p95", "p95"),
    ("p99", "p99"),
    ("p99.9", "p999"),
    ("max", "max"),
)
_CELL, _LABEL, _COUNT = 6, 17, 7
_TABLE = _LABEL + _COUNT + _CELL * len(_FIELDS)
_TABLE_ROWS = 6


class Extent(NamedTuple):
    """A stretch of the run and its latencies."""

    name: str
    latency: dict[str, Summary]


def distribution(frame: Frame, width: int, height: int) -> Rows:
    """The plot of the chosen latency over its table; where there is room, the others' tables beside it."""
    plot = _plot(frame, frame.metric, height - _TABLE_ROWS)
    above = plot_rows(plot, width, height - _TABLE_ROWS)
    shown = [frame.metric, *(name for name in METRICS if name != frame.metric)][: max(1, width // (_TABLE + 2))]
    tables = [
        (_table(frame.snapshot, name, each), each)
        for name, each in zip(shown, widths_of(width, len(shown)), strict=True)
    ]
    return [*above, *beside(tables, _TABLE_ROWS)]


def _plot(frame: Frame, name: str, height: int) -> Plot:
    curves = [
        _curve(one, name, role, ink)
        for one, role, ink in _overlaid(frame.snapshot)
        if one is not None and name in one.curves_ms
    ]
    tail = max((x for curve in curves for x in curve.x), default=2.0)
    values = [y for curve in curves for y in curve.y]
    limits = limits_of(frame.snapshot.slo_ms, name)
    y = scale_of([*values, *(limit.value for limit in limits)], max(2, height // 4))
    x = Scale(0.0, max(tail, 1.0), ())
    ticks = tuple((nines(percent), f"p{percent:g}" if percent else "min") for percent in _TICKS)
    title = f"{_NAMES[name]} ms{' (log)' if y.log else ''} by percentile"
    return Plot(title, tuple(reversed(curves)), x, y, limits, ticks)


def _overlaid(snapshot: Snapshot) -> list[tuple[Distribution | None, str, Ink]]:
    """This stage, the one before it, the baseline; each with its role and its ink."""
    this, before = (*snapshot.distributions, None, None)[:2]
    return [(this, "p50", "line"), (before, "before", "dots"), (snapshot.baseline_distribution, "throughput", "dots")]


def _curve(one: Distribution, name: str, role: str, ink: Ink) -> Curve:
    """Up to the percentile beyond which there is less than one stream."""
    count = one.counts.get(name, 0)
    points = [
        (nines(percent), value_ms)
        for percent, value_ms in zip(CURVE_PERCENTS, one.curves_ms[name], strict=False)
        if count * (1 - percent / 100) >= 1 - 1e-9
    ]
    x, y = zip(*points, strict=True) if points else ((), ())
    stretch = f"stage {one.stage}" if one.stage else "baseline"
    label = f"{stretch} {fmt.plain(one.label)}, {fmt.count(count)} {'gaps' if name == 'itl' else 'streams'}"
    return Curve(label, role, x, y, ink)


def nines(percent: float) -> float:
    """Where a percentile stands on the axis: 0 for 0, 1 for 90, 2 for 99, 3 for 99.9."""
    return -math.log10(1 - percent / 100)


def extents(snapshot: Snapshot) -> list[Extent]:
    """The last seconds, the running or last stage, the one before it, and all of the run."""
    found = [Extent(f"last {RECENT_S:.0f} s", snapshot.recent)]
    found += [
        Extent(f"stage {stage.number} {fmt.plain(stage.label)}", stage.latency) for stage in snapshot.stages[:-3:-1]
    ]
    if snapshot.whole is not None:
        found.append(Extent("whole run", snapshot.whole.latency))
    return found


def _table(snapshot: Snapshot, name: str, width: int) -> Rows:
    unit = "s" if name == "e2e" else "ms"
    heads: Row = (
        (f" {'':<{_LABEL - 1}}{'count':>{_COUNT}}", "dim"),
        *((f"{head:>{_CELL}}", head if head in ("p50", "p99") else "dim") for head, _ in _FIELDS),
    )
    rows = [_row(extent, name, unit) for extent in extents(snapshot)]
    return [titled(f"{_NAMES[name]} {unit}", (), min(width, _TABLE)), heads, *rows]


def _row(extent: Extent, name: str, unit: str) -> Row:
    summary = extent.latency.get(name, Summary(count=0))
    values: list[Word] = [(f"{value:>{_CELL}}", "text") for value in values_of(summary, unit)]
    label = padded(extent.name, _LABEL - 1)
    return ((f" {label}", "text"), (f"{fmt.count(summary.count):>{_COUNT}}", "dim"), *values)


def values_of(summary: Summary, unit: str) -> list[str]:
    """The statistics of the table in a unit."""
    return [fmt.statistic(summary, field, per=1000.0 if unit == "s" else 1.0) for _, field in _FIELDS]


FIELDS = tuple(head for head, _ in _FIELDS)  # what the columns of the table are
