"""The load curve, a point for each load: latencies and output against the streams held, total throughput against E2E,
and the frontier: tokens of each GPU against tokens of each user.

All that was measured at one load is one point, however the load came there; where it moved up or down, those have
lines of their own, so that hysteresis shows. A publication's figures, the baseline's, the limits of the SLO and what a
search has found are on the same axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from loadgen import format as fmt
from loadgen.metrics.frontier import Point, frontier
from loadgen.report.columns import NEAR, TOTAL_BY_E2E, frontier_axes
from loadgen.schema.deltas import Summary
from loadgen.schema.result import Hits, StageResult
from loadgen.schema.snapshot import MIN_S, Snapshot
from tui.charts.plot import Curve, Plot, limits_of, plot_rows, scale_of
from tui.panels.frame import Frame
from tui.widgets.rows import Rows, side_by_side, titled, widths_of

_MIN_WIDTH = 52
_OUTPUT, _TOTAL, _FRONTIER, _HITS = "output", "total", "frontier", "hits"
_THROUGHPUTS = (_OUTPUT, _TOTAL)
_TITLES = {"ttft": "TTFT ms", "tpot": "TPOT ms", "itl": "ITL ms", "e2e": "E2E ms", _OUTPUT: "output tok/s"}
_SIGNS = {"": ("●", "▪"), "up": ("▲", "△"), "down": ("▼", "▽")}  # of p50 and p99, by where the load moves


class LoadPoint(msgspec.Struct, frozen=True):
    """What was measured at one load."""

    held: float
    load: float
    name: str  # next to its sign; a load that moves has none
    shape: tuple[int, int]
    direction: str
    output: float | None
    latency: Mapping[str, Summary] = msgspec.field(default_factory=dict)
    total_by_e2e: tuple[float, float] = (math.nan, math.nan)
    hits: Hits | None = None

    def place(self, name: str, which: str) -> tuple[float, float]:
        """Where it is in a plot of a percentile of a latency, or of a throughput; NaN where that is unknown."""
        if name == _TOTAL:
            return self.total_by_e2e
        known = self.output if name == _OUTPUT else getattr(self.latency.get(name), which, None)
        return self.held, math.nan if known is None else known


def curve(frame: Frame, width: int, height: int) -> Rows:
    """As many plots as have room, the chosen one first; E2E is chosen with the total throughput against it."""
    points = points_of(frame.snapshot)
    if frame.no_load and not points:
        return [titled("load curve", (), width), ((" nothing measured: vramp has sent no load yet", "dim"),)]
    hits = [_HITS] if any(one.hits is not None and one.hits.infinite is not None for one in points) else []
    total = [_TOTAL] if any(math.isfinite(one.total_by_e2e[0]) for one in points) else []
    first = [*total, "e2e"] if frame.metric == "e2e" else [frame.metric]
    others = [*hits, _FRONTIER, _OUTPUT, *total, "itl", "ttft"]
    shown = list(dict.fromkeys((*first, *others)))[: max(1, min(4, width // _MIN_WIDTH))]
    widths = widths_of(width, len(shown))
    plots = []
    for name, each in zip(shown, widths, strict=True):
        if name == _HITS:
            plots.append((_hits(points, each, height), each))
        else:
            plot = _frontier(frame, each, height) if name == _FRONTIER else _plot(frame, points, name, each, height)
            plots.append((plot, each))
    return side_by_side([(plot_rows(plot, each, height), each) for plot, each in plots], height)


def points_of(snapshot: Snapshot) -> list[LoadPoint]:
    """All loads: those with a concurrency from the curve, which has what several stages measured; rates as stages."""
    standing = [stage for stage in snapshot.stages if stage.target.moves is None]
    by_sessions = _by_sessions(snapshot)
    latest = {(stage.isl, stage.osl, stage.target.concurrency): stage for stage in standing}
    found = []
    for point in snapshot.curve:
        if point.measured_s >= MIN_S:
            same = latest.get((point.isl, point.osl, round(point.load))) if not point.direction else None
            latency = {**(same.latency_ms if same is not None else {}), "ttft": point.ttft_ms, "itl": point.itl_ms}
            name, shape = "" if point.direction else fmt.setting(point.load), (point.isl, point.osl)
            output, total = point.output_tokens_per_s, _total_by_e2e(same)
            x = point.load if by_sessions else point.held
            found.append(LoadPoint(x, point.load, name, shape, point.direction, output, latency, total, point.hits))
    for stage in standing:
        if stage.target.rate is not None:
            held = math.nan if stage.concurrency.mean is None else stage.concurrency.mean
            shape, output, total = (stage.isl, stage.osl), stage.throughput.output_tokens_per_s, _total_by_e2e(stage)
            name, rate = stage.target.words, stage.target.rate
            found.append(LoadPoint(held, rate, name, shape, "", output, stage.latency_ms, total))
    return found


def _by_sessions(snapshot: Snapshot) -> bool:
    return any(stage.sessions is not None for stage in snapshot.stages)


def _total_by_e2e(stage: StageResult | None) -> tuple[float, float]:
    """The point of a stage once its E2E is known."""
    e2e_ms, total = TOTAL_BY_E2E.point(stage) if stage is not None and not stage.e2e_needs_s else (None, None)
    return (math.nan, math.nan) if e2e_ms is None or total is None else (e2e_ms, total)


def _plot(frame: Frame, points: Sequence[LoadPoint], name: str, width: int, height: int) -> Plot:
    measured = tuple(_measured(points, name))
    compared = (*_published(frame, name), *_baseline(frame, name))
    standing = [one for one in points if math.isfinite(one.held) and (not one.direction or frame.snapshot.tiers)]
    limits = limits_of(frame.snapshot.slo_ms, name)
    values = [value for one in (*compared, *measured) for value in one.y]
    highest = max(filter(math.isfinite, values), default=math.inf)
    near = [limit_ms for limit_ms, _ in limits if limit_ms <= NEAR * highest]
    y = scale_of([*values, *near], max(2, height // 4), log=False if name in _THROUGHPUTS else None)
    across = [value for one in (*compared, *measured) for value in one.x]
    x = scale_of(across, max(2, width // 14), log=None if name == _TOTAL else False)
    by = "live sessions" if _by_sessions(frame.snapshot) else "streams held"
    title = "total tok/s by E2E p50 ms" if name == _TOTAL else f"{_TITLES[name]}{' (log)' * y.log} by {by}"
    # What was published for a load is where it was measured: over it, it shows how far off it is.
    return Plot(title, (*measured, *compared, *_found(frame.snapshot, standing, name)), x, y, limits)


def _hits(points: Sequence[LoadPoint], width: int, height: int) -> Plot:
    """Prefix cache hits of sessions, next to what a cache without limit, and one of the engine's size, would have."""
    line = sorted((one for one in points if one.hits is not None), key=lambda one: one.load)
    x = tuple(one.load for one in line)
    curves = []
    for name, label, role, sign in _HIT_CURVES:
        shares = [getattr(one.hits, name) for one in line]
        if any(share is not None for share in shares):
            names = tuple(one.name for one in line) if name == "measured" else ()
            y = tuple(math.nan if share is None else 100 * share for share in shares)
            curves.append(Curve(label, role, x, y, "line" if name == "measured" else "dots", sign, names))
    x_scale = scale_of(x, max(2, width // 14), log=False)
    y_scale = scale_of([0.0, 100.0], max(2, height // 4), log=False)
    return Plot("prefix hit % by live sessions", tuple(curves), x_scale, y_scale)


_HIT_CURVES = (
    ("infinite", "without limit", "before", "○"),
    ("pool", "KV cache's size", "p99", "▪"),
    ("measured", "measured", "p50", "●"),
)
"""The curves: field of `Hits`, label, role and sign."""


def _frontier(frame: Frame, width: int, height: int) -> Plot:
    """A point for each stage of a load that stands; those of one shape compete."""
    stages = [stage for stage in frame.snapshot.stages if stage.target.moves is None and stage.latency_ms.get("tpot")]
    axes = frontier_axes(stages)
    shapes: dict[tuple[int, int], dict[Point, str]] = {}
    for stage in stages:
        x, y = axes.point(stage)
        if x is not None and y is not None:
            shapes.setdefault((stage.isl, stage.osl), {})[x, y] = stage.target.words
    curves = tuple(_competing(shapes.values()))
    x_scale = scale_of([x for one in curves for x in one.x], max(2, width // 14), log=False)
    y_scale = scale_of([y for one in curves for y in one.y], max(2, height // 4), log=False)
    x_label, y_label = axes.labels()
    return Plot(f"{y_label} by {x_label}", curves, x_scale, y_scale)


def _competing(shapes: Iterable[Mapping[Point, str]]) -> Iterator[Curve]:
    """Named points of each shape: those that another dominates are pale, the others joined."""
    for names in shapes:
        best = frontier(names)
        pale, full = sorted(names.keys() - best), sorted(best)
        if pale:
            x, y = zip(*pale, strict=True)
            yield Curve("dominated", "dim", x, y, None, "○", tuple(names[point] for point in pale))
        if full:
            x, y = zip(*full, strict=True)
            yield Curve("frontier", "throughput", x, y, "line", "●", tuple(names[point] for point in full))


def _measured(points: Sequence[LoadPoint], name: str) -> Iterator[Curve]:
    """A line for each shape and direction: p99 below, p50 above, named by its load where that stands."""
    lines: dict[tuple[tuple[int, int], str], list[LoadPoint]] = {}
    for point in sorted(points, key=lambda one: (one.shape, one.direction, one.held)):
        lines.setdefault((point.shape, point.direction), []).append(point)
    reported: set[str] = set()
    for which in ("p50",) if name in _THROUGHPUTS else ("p99", "p50"):
        for (_, direction), line in lines.items():
            label = f"{'tok/s' if name in _THROUGHPUTS else which} {direction}".rstrip()
            x, y = zip(*(one.place(name, which) for one in line), strict=True)
            yield Curve(
                "" if label in reported else label,
                "throughput" if name in _THROUGHPUTS else which,
                x,
                y,
                ink="dots" if which == "p99" else "line",
                sign=_SIGNS[direction][which == "p99"],
                names=tuple(one.name for one in line) if which != "p99" else (),
            )
            reported.add(label)


def _published(frame: Frame, name: str) -> tuple[Curve, ...]:
    comparisons, stages = frame.timeline.published.values(), frame.snapshot.stages
    if name == _TOTAL:
        places = [(x, y) for x, y, _ in TOTAL_BY_E2E.published(comparisons)]
        return _points("published", "◇", "strong", places)
    figures = ("output_tokens_per_s",) if name == _OUTPUT else (f"{name}_mean_ms", f"{name}_p50_ms")
    known: dict[tuple[int, str], float] = {}
    for wanted in figures:  # the last one wins
        known |= {(one.stage, one.of): one.published for one in comparisons if one.figure == wanted}
    held = [(_held(stages[stage]), y) for (stage, _), y in known.items() if stage < len(stages)]
    return _points("published", "◇", "strong", held)


def _baseline(frame: Frame, name: str) -> tuple[Curve, ...]:
    if name == _TOTAL:
        return ()
    figure = "output_tok_s" if name == _OUTPUT else f"{name}_p50"
    known = frame.timeline.baseline
    found = [
        (_held(stage), known[stage.number].get(figure)) for stage in frame.snapshot.stages if stage.number in known
    ]
    return _points("baseline" if name == _OUTPUT else "baseline p50", "○", "before", found)


def _held(stage: StageResult) -> float | None:
    wanted = stage.target.concurrency
    return stage.concurrency.mean if wanted is None else float(wanted)


def _points(label: str, sign: str, role: str, found: Iterable[tuple[float | None, float | None]]) -> tuple[Curve, ...]:
    known = sorted((x, y) for x, y in found if x is not None and y is not None)
    xs, ys = tuple(x for x, _ in known), tuple(y for _, y in known)
    return (Curve(label, role, xs, ys, ink=None, sign=sign),) if known else ()


def _found(snapshot: Snapshot, points: Sequence[LoadPoint], name: str) -> Iterator[Curve]:
    """What the tiers and a search have found, on the curve: its interval in brackets, in words `knee 24 (20 to 28)`."""
    line = sorted({one.load: (one.load, *one.place(name, "p50")) for one in points}.values())
    if not line:
        return
    loads, x, y = zip(*line, strict=True)
    marks = [("✦", tier.found, f"{tier.tier}: {tier.measured}{'' if tier.sure else ' ?'}") for tier in snapshot.tiers]
    search = snapshot.search
    if search is not None:
        interval = f" ({fmt.setting(search.low)} to {fmt.setting(search.high)})"
        words = f"{search.kind} {fmt.setting(search.found)}{interval}{'' if search.resolved else ' ?'}"
        marks += [("[", search.low, ""), ("]", search.high, ""), ("✦", search.found, words)]
    for sign, load, label in marks:
        if load is not None and load > 0:
            place = float(np.interp(load, loads, x)), float(np.interp(load, loads, y))
            yield Curve(label, "found", (place[0],), (place[1],), ink=None, sign=sign)
