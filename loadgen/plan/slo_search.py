"""Searches for the highest load that meets the limits: doubles, bisects, then makes sure of the loads that bound it.

At first, probes are short and their figures are taken at face value: locating the answer needs no certainty. Then the
two loads that bound the answer are measured until each verdict is sure, which for a p99 takes hundreds of streams. A
load so near the limit that it stays unsure is given up for one farther away. The answer is resolved when the loads that
surely meet and surely miss are close enough to each other. Loads above one that missed do not count, whatever they
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadgen.plan.stage import Measured, Plan, Stage
from loadgen.profile.load import PlanSettings
from loadgen.schema.result import Limits
from loadgen.schema.shared import SearchResult

MAX_PROBES = 40
NEAR = 0.3  # the most distance between the loads that surely meet and surely miss, as a share of the answer
_FARTHER = (0.1, 0.2)
"""Distances, as shares of the answer, at which to measure if the verdict on a bound itself stays unsure."""
_BETWEEN = (0.5, 0.75)  # where to try next once a farther load is sure: shares of the distance to it


def slo_search(plan: PlanSettings, start: float, probe: Callable[..., Stage]) -> Plan:
    """The search as a plan; `probe` makes the stage for a load, which if `certain` runs until its verdict is sure."""

    def following(done: Sequence[Measured]) -> Stage | SearchResult:
        kept = [point for point in done if not point.abandoned]
        points = {point.stage.load: point for point in kept}
        if len(kept) >= MAX_PROBES:
            return _found(points, plan, kept)
        requested = _wanted(points, plan, start)
        if requested is not None:
            return probe(requested)
        unsure = _unsure(points, plan, {point.stage.load for point in kept if point.stage.certain})
        return probe(unsure, certain=True) if unsure is not None else _found(points, plan, kept)

    return following


def tier_search(searches: Sequence[tuple[Limits, Plan]]) -> Plan:
    """Searches for the limits of one tier after another, each with what was measured for all; ends with the last."""

    def following(done: Sequence[Measured]) -> Stage | SearchResult | None:
        found: Stage | SearchResult | None = None
        for number, (limits, search) in enumerate(searches):
            found = search([point.on_tier(number, limits) for point in done])
            if isinstance(found, Stage):
                return found
        return found

    return following


def _bounds(points: dict[float, Measured]) -> tuple[float | None, float | None]:
    """The lowest load that missed, and below it the highest that met."""
    missed = min((load for load, point in points.items() if not point.met), default=None)
    below = [load for load, point in points.items() if point.met and (missed is None or load < missed)]
    return max(below, default=None), missed


def _wanted(points: dict[float, Measured], plan: PlanSettings, start: float) -> float | None:
    """The next load to measure; None when the bounds are close enough."""
    met, missed = _bounds(points)
    if met is None and missed is None:
        return start
    if missed is None:
        assert met is not None
        return min(plan.most, 2 * met) if met < plan.most else None
    if met is None:
        return max(plan.least, _whole(missed / 2, plan)) if missed > plan.least else None
    if missed - met <= _span(plan, plan.precision * met):
        return None
    return _whole((met + missed) / 2, plan)


def _span(plan: PlanSettings, span: float) -> float:
    """A difference between loads; between concurrencies at least 1."""
    return max(1.0, span) if plan.by == "concurrency" else span


def _whole(load: float, plan: PlanSettings) -> float:
    return float(int(load)) if plan.by == "concurrency" else load


def _unsure(points: dict[float, Measured], plan: PlanSettings, tried: set[float]) -> float | None:
    """The next load to measure until sure: a bound, then one farther away on the side that is unsure."""
    met, missed = _bounds(points)
    low, high = _sure_bounds(points)
    for bound, sure in ((met, low), (missed, high)):
        if bound is not None and bound != sure and bound not in tried:
            return bound
    if met is None or missed is None or _near_enough(low, high, met, plan) or _never_near(points, met, plan):
        return None
    for bound, sure, side in ((met, low, -1), (missed, high, 1)):
        farther = [_whole(bound + side * _span(plan, share * bound), plan) for share in _FARTHER]
        if sure is not None:
            farther = [_whole(bound + share * (sure - bound), plan) for share in _BETWEEN]
        for load in farther if sure != bound else []:
            if plan.least <= load <= plan.most and load not in tried and load != sure:
                return load
    return None


def _sure_bounds(points: dict[float, Measured]) -> tuple[float | None, float | None]:
    """The highest load that surely met, and above it the lowest that surely missed."""
    met, _ = _bounds(points)
    low = [load for load, point in points.items() if point.verdict == "met" and met is not None and load <= met]
    high = [load for load, point in points.items() if point.verdict == "missed" and (met is None or load > met)]
    return max(low, default=None), min(high, default=None)


def _near_enough(low: float | None, high: float | None, met: float, plan: PlanSettings) -> bool:
    if low is None or high is None:
        return False
    return high - low <= _span(plan, max(NEAR, plan.precision) * met)


def _never_near(points: dict[float, Measured], met: float, plan: PlanSettings) -> bool:
    """Whether the unresolved loads lie so far apart that sure loads around them can never be near each other."""
    low, high = _sure_bounds(points)
    unsure = [load for load, one in points.items() if one.stage.certain and one.verdict == "unresolved"]
    between = [load for load in unsure if (low is None or load > low) and (high is None or load < high)]
    return bool(between) and not _near_enough(min(between), max(between), met, plan)


def _found(points: dict[float, Measured], plan: PlanSettings, kept: Sequence[Measured]) -> SearchResult:
    met, missed = _bounds(points)
    low, high = _sure_bounds(points)
    resolved = met is not None and missed is not None and _near_enough(low, high, met, plan)
    by = kept[-1].by if kept else plan.by
    return SearchResult(
        kind="slo",
        by=by,
        found=met,
        low=low,
        high=high,
        resolved=resolved,
        why=_why(points, plan, by, resolved=resolved),
        probes=len(kept),
        points=tuple(point.point for point in kept),
    )


def _why(points: dict[float, Measured], plan: PlanSettings, by: str, *, resolved: bool) -> str:
    met, missed = _bounds(points)
    if met is None:
        return f"{by} {missed:g}, the lowest tried, misses the limits" if missed else "nothing measured"
    if missed is None:
        return f"{by} {met:g} still meets the limits; to search higher, raise plan.most ({plan.most:g})"
    words = f"{by} {met:g} meets the limits, {missed:g} does not"
    low, high = _sure_bounds(points)
    if resolved:
        return words if (low, high) == (met, missed) else f"{words}; {low:g} surely does, {high:g} surely does not"
    unsure = [points[load] for load in (met, missed) if points[load].verdict == "unresolved"]
    needs = next((f" at {by} {one.stage.load:g} {one.needs}" for one in unsure if one.needs), "")
    return f"{words}; not with 95 % confidence{':' if needs else ''}{needs}"
