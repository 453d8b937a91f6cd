"""The load curve: first tokens, time per token and throughput against the streams held, a point for each load.

All that was measured at one load is one point, however the load came there; where it moved up or down, those have
lines of their own, so that hysteresis shows. A publication's figures, the baseline's, the limits of the SLO and what a
search has found are on the same axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from loadgen import format as fmt
from loadgen.metrics.deltas import Summary
from loadgen.metrics.journal import SearchResult
from loadgen.metrics.snapshot import SHORTEST_S, Snapshot, StageView
from tui.charts.plot import Curve, Limit, Plot, plot_rows, scale_of
from tui.panels.frame import Frame
from tui.widgets.rows import Rows, beside, widths_of

_LEAST_WIDTH = 52
_NEAR = 3.0  # A limit further above the values than this would squeeze them: it stays outside of the plot
_OUTPUT = "output"
_NAMES = {"ttft": "TTFT ms", "tpot": "TPOT ms", "itl": "ITL ms", "e2e": "E2E ms", _OUTPUT: "output tok/s"}
_SIGNS = {"": ("●", "▪"), "up": ("▲", "△"), "down": ("▼", "▽")}  # of p50 and p99, by where the load moves


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one load."""

    held: float
    load: float
    name: str  # to stand beside it; a load that moves has none
    shape: tuple[int, int]
    direction: str
    output: float | None
    latency: Mapping[str, Summary] = field(default_factory=dict)


def curve(frame: Frame, width: int, height: int) -> Rows:
    """As many plots as have room: the chosen latency first, throughput beside it."""
    shown = _shown(frame.metric, max(1, min(3, width // _LEAST_WIDTH)))
    plots = [
        (plot_rows(_plot(frame, name, each, height), each, height), each)
        for name, each in zip(shown, widths_of(width, len(shown)), strict=True)
    ]
    return beside(plots, height)


def _shown(metric: str, count: int) -> list[str]:
    others = [_OUTPUT, *(name for name in ("itl", "ttft") if name != metric)]
    return [metric, *others][:count]


def points_of(snapshot: Snapshot) -> list[Point]:
    """All loads: those with a concurrency from the curve, which has what several stages measured; rates as stages."""
    latest = {(stage.isl, stage.osl, stage.concurrency): stage for stage in snapshot.stages if stage.moves is None}
    found = []
    for point in snapshot.curve:
        if point.measured_s < SHORTEST_S:
            continue
        same = latest.get((point.isl, point.osl, round(point.load))) if not point.direction else None
        of_stages = same.latency if same is not None else {}
        known = {**of_stages, "ttft": point.ttft_ms, "itl": point.itl_ms}
        name = "" if point.direction else fmt.setting(point.load)
        shape = (point.isl, point.osl)
        found.append(
            Point(point.held, point.load, name, shape, point.direction, point.output_tokens_per_s, known),
        )
    return found + [_of_rate(stage) for stage in snapshot.stages if stage.rate is not None and stage.moves is None]


def _of_rate(stage: StageView) -> Point:
    rate, held = stage.rate or 0.0, _known(stage.held_mean)
    shape = (stage.isl, stage.osl)
    return Point(held, rate, f"{fmt.setting(rate)}/s", shape, "", stage.output_tokens_per_s, stage.latency)


def _plot(frame: Frame, name: str, width: int, height: int) -> Plot:
    points = points_of(frame.snapshot)
    measured = tuple(_measured(points, name))
    beside = (*_published(frame, name), *_baseline(frame, name))
    standing = [one for one in points if not one.direction and math.isfinite(one.held)]
    found = _found(frame.snapshot.search, standing, name)
    limits = limits_of(frame.snapshot.slo_ms, name)
    values = [value for one in (*beside, *measured) for value in one.y]
    log = None if name != _OUTPUT else False
    near = [
        limit.value for limit in limits if limit.value <= _NEAR * max(filter(math.isfinite, values), default=math.inf)
    ]
    y = scale_of([*values, *near], max(2, height // 4), log=log)
    x = scale_of([value for one in (*beside, *measured) for value in one.x], max(2, width // 14), log=False)
    title = f"{_NAMES[name]}{' (log)' if y.log else ''} by streams held"
    # What was published for a load is where it was measured: over it, it shows how far off it is.
    return Plot(title, (*measured, *beside, *found), x, y, limits)


def _measured(points: Sequence[Point], name: str) -> Iterator[Curve]:
    """A line for each shape and direction: p99 below, p50 above, named by its load where that stands."""
    ordered = sorted(points, key=lambda one: (one.shape, one.direction, one.held))
    lines = [list(group) for _, group in groupby(ordered, key=lambda one: (one.shape, one.direction))]
    told: set[str] = set()
    for which in ("p99", "p50") if name != _OUTPUT else (_OUTPUT,):
        for line in lines:
            direction = line[0].direction
            label = f"{'tok/s' if which == _OUTPUT else which} {direction}".rstrip()
            sign = _SIGNS[direction][which == "p99"]
            yield Curve(
                "" if label in told else label,
                "throughput" if which == _OUTPUT else which,
                tuple(one.held for one in line),
                tuple(_value(one, name, which) for one in line),
                ink="dots" if which == "p99" else "line",
                sign=sign,
                names=tuple(one.name for one in line) if which != "p99" else (),
            )
            told.add(label)


def _value(point: Point, name: str, which: str) -> float:
    if name == _OUTPUT:
        return _known(point.output)
    return _known(getattr(point.latency.get(name, Summary(count=0)), which))


def _published(frame: Frame, name: str) -> tuple[Curve, ...]:
    """What a publication has of the same stages."""
    by_stage: dict[tuple[int, str], dict[str, float]] = {}
    for (stage, of, figure), one in frame.timeline.published.items():
        by_stage.setdefault((stage, of), {})[figure] = one.published
    stages = frame.snapshot.stages
    found = [
        (_held(stages[stage]), _published_y(figures, name))
        for (stage, _), figures in by_stage.items()
        if stage < len(stages)
    ]
    return _points("published", "◇", "strong", found)


def _held(stage: StageView) -> float | None:
    return stage.held_mean if stage.concurrency is None else float(stage.concurrency)


def _points(label: str, sign: str, role: str, found: Iterable[tuple[float | None, float | None]]) -> tuple[Curve, ...]:
    """Those of which both sides are known, not joined."""
    known = sorted((x, y) for x, y in found if x is not None and y is not None)
    xs, ys = tuple(x for x, _ in known), tuple(y for _, y in known)
    return (Curve(label, role, xs, ys, ink=None, sign=sign),) if known else ()


def _baseline(frame: Frame, name: str) -> tuple[Curve, ...]:
    """The same loads in the baseline."""
    figure = "output_tok_s" if name == _OUTPUT else f"{name}_p50"
    known = frame.timeline.baseline
    found = [
        (_held(stage), known[stage.number].get(figure)) for stage in frame.snapshot.stages if stage.number in known
    ]
    return _points("baseline" if name == _OUTPUT else "baseline p50", "○", "before", found)


def _published_y(figures: dict[str, float], name: str) -> float | None:
    if name == _OUTPUT:
        return figures.get("output_tokens_per_s")
    return figures.get(f"{name}_p50_ms", figures.get(f"{name}_mean_ms"))


def _found(search: SearchResult | None, standing: Sequence[Point], name: str) -> tuple[Curve, ...]:
    """What a search has found, on the curve: its interval in brackets."""
    line = sorted((one.load, one.held, _value(one, name, "p50")) for one in standing)
    if search is None or not line:
        return ()
    loads, held, y = zip(*line, strict=True)
    places = [
        (sign, np.interp(load, loads, held), np.interp(load, loads, y))
        for sign, load in (("[", search.low), ("]", search.high), ("✦", search.found))
        if load is not None and load > 0
    ]
    words = found_words(search)
    return tuple(
        Curve(words if sign == "✦" else "", "found", (float(x),), (float(y),), ink=None, sign=sign)
        for sign, x, y in places
    )


def found_words(search: SearchResult) -> str:
    """What was found and how sure it is: `knee 24 (20 to 28)`."""
    interval = f" ({fmt.setting(search.low)} to {fmt.setting(search.high)})"
    doubt = "" if search.resolved else " ?"
    return f"{search.kind} {fmt.setting(search.found)}{interval}{doubt}"


def limits_of(slo_ms: dict[str, float], name: str) -> tuple[Limit, ...]:
    found = [(limit, limit_ms) for limit, limit_ms in slo_ms.items() if limit.partition("_")[0] == name]
    return tuple(Limit(limit_ms, f"SLO {limit} {fmt.number(limit_ms)}") for limit, limit_ms in found if limit_ms > 0)


def _known(value: float | None) -> float:
    return math.nan if value is None else value
