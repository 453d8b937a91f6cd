"""The load curve: throughput against latency and against what a user sees, a point for each stage.

The points are joined in order of load and named by it. A publication's figures for the same loads, the limits of the
SLO and what a search has found are on the same axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from loadgen.metrics.histogram import Summary
from loadgen.metrics.search import SearchResult
from loadgen.metrics.snapshot import StageView
from tui import format as fmt
from tui.paint import Rows
from tui.panels.beside import beside, widths_of
from tui.plot import Curve, Limit, Plot, plot_rows, scale_of
from tui.view import METRICS, View

_LEAST_WIDTH = 52
_USER = "user"
_NAMES = {"ttft": "TTFT ms", "tpot": "TPOT ms", "itl": "ITL ms", "e2e": "E2E ms", _USER: "tok/s/user"}


def curve(view: View, width: int, height: int) -> Rows:
    """As many plots as have room: the chosen latency first, what a user sees beside it."""
    shown = _shown(view.metric, max(1, min(3, width // _LEAST_WIDTH)))
    plots = [
        (plot_rows(_plot(view, name, each, height), each, height), each)
        for name, each in zip(shown, widths_of(width, len(shown)), strict=True)
    ]
    return beside(plots, height)


def _shown(metric: str, count: int) -> list[str]:
    others = [_USER, *(name for name in METRICS if name != metric)]
    return [metric, *others][:count]


def _plot(view: View, name: str, width: int, height: int) -> Plot:
    stages = sorted(view.snapshot.stages, key=lambda stage: (stage.rate or stage.concurrency or 0.0, stage.number))
    throughput = tuple(_known(stage.output_tokens_per_s) for stage in stages)
    measured = _measured(stages, name, throughput)
    published = _published(view, name)
    beside = (*published, *_baseline(view, name))
    curves = (*beside, *measured, *_found(view.snapshot.search, stages, measured[-1]))
    limits = limits_of(view.snapshot.slo_ms, name)
    values = [value for one in (*beside, *measured) for value in one.y]
    y = scale_of(
        [*values, *(limit.value for limit in limits)], max(2, height // 4), log=None if name != _USER else False
    )
    x = scale_of([value for one in (*beside, *measured) for value in one.x], max(2, width // 14), log=False)
    title = f"{_NAMES[name]}{' (log)' if y.log else ''} by tok/s"
    return Plot(title, curves, x, y, limits)


def _measured(stages: Sequence[StageView], name: str, throughput: tuple[float, ...]) -> tuple[Curve, ...]:
    """Named by their load; p99 below, p50 above, or the one curve of what a user sees."""
    names = tuple(_load_of(stage) for stage in stages)
    if name == _USER:
        users = tuple(_per_user(stage) for stage in stages)
        return (Curve("tok/s/user", "throughput", throughput, users, sign="●", names=names),)
    summaries = [stage.latency.get(name, Summary(count=0)) for stage in stages]
    p50, p99 = (tuple(_known(getattr(one, which)) for one in summaries) for which in ("p50", "p99"))
    return (
        Curve("p99", "p99", throughput, p99, ink="dots", sign="▪"),
        Curve("p50", "p50", throughput, p50, sign="●", names=names),
    )


def _published(view: View, name: str) -> tuple[Curve, ...]:
    """What a publication has of the same stages: a point where it says both throughput and latency."""
    by_stage: dict[tuple[int, str], dict[str, float]] = {}
    for (stage, of, figure), one in view.timeline.published.items():
        by_stage.setdefault((stage, of), {})[figure] = one.published
    found = [(figures.get("output_tokens_per_s"), _published_y(figures, name)) for figures in by_stage.values()]
    return _points("published", "◇", "strong", found)


def _points(label: str, sign: str, role: str, found: Iterable[tuple[float | None, float | None]]) -> tuple[Curve, ...]:
    """Those of which both sides are known, not joined."""
    known = sorted((x, y) for x, y in found if x is not None and y is not None)
    xs, ys = tuple(x for x, _ in known), tuple(y for _, y in known)
    return (Curve(label, role, xs, ys, ink=None, sign=sign),) if known else ()


def _baseline(view: View, name: str) -> tuple[Curve, ...]:
    """The same loads in the baseline."""
    figure = "tpot_p50" if name == _USER else f"{name}_p50"
    found = [(figures.get("output_tok_s"), figures.get(figure)) for figures in view.timeline.baseline.values()]
    if name == _USER:
        found = [(x, 1000 / tpot_ms if tpot_ms else None) for x, tpot_ms in found]
    return _points("baseline p50", "○", "before", found)


def _published_y(figures: dict[str, float], name: str) -> float | None:
    if name == _USER:
        tpot_ms = figures.get("tpot_p50_ms") or figures.get("tpot_mean_ms")
        return 1000 / tpot_ms if tpot_ms else None
    return figures.get(f"{name}_p50_ms", figures.get(f"{name}_mean_ms"))


def _found(search: SearchResult | None, stages: Sequence[StageView], measured: Curve) -> tuple[Curve, ...]:
    """What a search has found, on the curve: its interval in brackets."""
    if search is None or not stages:
        return ()
    loads = [float(stage.rate or stage.concurrency or 0.0) for stage in stages]
    places = [
        (sign, np.interp(load, loads, measured.x), np.interp(load, loads, measured.y))
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
    """The limits on a latency; one on the time per token is one on what a user sees too."""
    of = "tpot" if name == _USER else name
    found = [(limit, limit_ms) for limit, limit_ms in slo_ms.items() if limit.partition("_")[0] == of and limit_ms > 0]
    if name == _USER:
        return tuple(Limit(1000 / limit_ms, f"SLO {limit}") for limit, limit_ms in found)
    return tuple(Limit(limit_ms, f"SLO {limit} {fmt.number(limit_ms)}") for limit, limit_ms in found)


def _load_of(stage: StageView) -> str:
    return fmt.setting(stage.concurrency) if stage.rate is None else f"{fmt.setting(stage.rate)}/s"


def _per_user(stage: StageView) -> float:
    p50 = stage.latency.get("tpot", Summary(count=0)).p50
    return 1000 / p50 if p50 else math.nan


def _known(value: float | None) -> float:
    return math.nan if value is None else value
