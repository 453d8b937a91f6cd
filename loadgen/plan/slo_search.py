"""The highest load that meets the limits: doubling, then bisection, and a second look at what decides.

A probe whose interval straddles a limit is taken as its figures stand, so that the search goes on; only the two probes
that bound the answer must be sure. One that is not is measured again, for twice as long, at most `LOOKS` times; if it
stays unsure, the answer is unresolved. Loads above one that missed do not count, whatever they measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from loadgen.metrics.search import SearchResult
from loadgen.plan.stage import Measured, Plan, Stage
from loadgen.profile.plan import PlanSettings

LOOKS = 3
"""Measurements of one load, at most."""
MOST_PROBES = 40


def slo_search(plan: PlanSettings, start: float, probe: Callable[[float], Stage]) -> Plan:
    """The search as a plan; `probe` makes the stage of a load."""

    def following(done: Sequence[Measured]) -> Stage | SearchResult:
        done = [point for point in done if not point.abandoned]
        points = {point.stage.load: point for point in done}
        asked = _wanted(points, plan, start)
        if asked is None:
            asked = _unsure(points, done)
        if asked is None or len(done) >= MOST_PROBES:
            return _found(points, plan, probes=len(done))
        return _longer(probe(asked), sum(point.stage.load == asked for point in done))

    return following


def _bounds(points: dict[float, Measured]) -> tuple[float | None, float | None]:
    """The lowest load that missed, and below it the highest that met."""
    missed = min((load for load, point in points.items() if not point.met), default=None)
    below = [load for load, point in points.items() if point.met and (missed is None or load < missed)]
    return max(below, default=None), missed


def _wanted(points: dict[float, Measured], plan: PlanSettings, start: float) -> float | None:
    """The next load to measure; None when the bounds are near enough."""
    met, missed = _bounds(points)
    if met is None and missed is None:
        return start
    if missed is None:
        assert met is not None
        return min(plan.most, 2 * met) if met < plan.most else None
    if met is None:
        return max(plan.least, _whole(missed / 2, plan)) if missed > plan.least else None
    if missed - met <= max(_grain(plan), plan.precision * met):
        return None
    return _whole((met + missed) / 2, plan)


def _grain(plan: PlanSettings) -> float:
    return 1.0 if plan.by == "concurrency" else 0.0


def _whole(load: float, plan: PlanSettings) -> float:
    return float(int(load)) if plan.by == "concurrency" else load


def _unsure(points: dict[float, Measured], done: Sequence[Measured]) -> float | None:
    """A bound that should be looked at again."""
    for load in _bounds(points):
        looks = sum(point.stage.load == load for point in done)
        if load is not None and points[load].verdict == "unresolved" and looks < LOOKS:
            return load
    return None


def _longer(stage: Stage, looks: int) -> Stage:
    """Twice as long with each look."""
    factor = 2.0 ** min(looks, LOOKS)
    return msgspec.structs.replace(
        stage, duration_s=(stage.duration_s or 0.0) * factor, longest_s=stage.longest_s * factor
    )


def _found(points: dict[float, Measured], plan: PlanSettings, *, probes: int) -> SearchResult:
    met, missed = _bounds(points)
    low = max((load for load in _sure(points, "met") if met is not None and load <= met), default=None)
    high = min((load for load in _sure(points, "missed") if met is None or load > met), default=None)
    resolved = met is not None and missed is not None and low == met and high == missed
    return SearchResult(
        kind="slo",
        by=plan.by,
        found=met,
        low=low,
        high=high,
        resolved=resolved,
        why=_why(met, missed, plan, resolved=resolved),
        probes=probes,
    )


def _sure(points: dict[float, Measured], verdict: str) -> list[float]:
    return [load for load, point in points.items() if point.verdict == verdict]


def _why(met: float | None, missed: float | None, plan: PlanSettings, *, resolved: bool) -> str:
    if met is None:
        return f"{plan.by} {missed:g} misses the limits, and the search goes no lower" if missed else "nothing measured"
    if missed is None:
        return f"{plan.by} {met:g} still meets the limits, and the search goes no higher"
    words = f"{plan.by} {met:g} meets the limits, {missed:g} does not"
    return words if resolved else f"{words}; not with 95 % confidence"
