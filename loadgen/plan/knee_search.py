"""Where throughput stops paying for latency: the concurrency of most power.

Power is throughput over response time (Kleinrock 1979, "Power and deterministic rules of thumb"; Jaffe 1981 calls its
maximum the knee). In a closed loop the response time is R = N/X (Little), so power is X*X/N. Around its maximum power
is flat: a tenth off the knee costs a quarter of a percent of it, less than what a measurement varies. So the knee is
not read off the best probe but computed from a curve through all of them,

    R(N) = a + b*N + c*N*N    (Gunther's universal scalability law, c = 0 unless the probes demand it),

on which power is greatest where a = b*N + 3*c*N*N; with c = 0 that is a/b, where the asymptotes of light and heavy load
meet as well (Denning and Buzen 1978). Probes double until power has clearly fallen, then go to the knee itself. The
interval is a jackknife's. A knee outside the probes, or far from the best of them, is not resolved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.search import SearchResult
from loadgen.plan.stage import Measured, Plan, Stage
from loadgen.profile.plan import PlanSettings

FALLEN = 0.75
"""Power has clearly fallen below this share of the best: at four times the knee it is 0.64 of it."""
Z95 = 1.96
REFINEMENTS = 3
_FEWEST = 4
_CURVED = 10.0
"""The least F of a curved fit against a straight one: beyond 99 % for more than a few probes."""
_PRECISE = 0.1
_NEAR = 4.0

Point = tuple[float, float]
"""Concurrency held, and output tokens a second: finer than requests, of which a short window holds few."""


def knee_search(plan: PlanSettings, probe: Callable[[float], Stage]) -> Plan:
    """The search as a plan; `probe` makes the stage of a load."""

    def following(done: Sequence[Measured]) -> Stage | SearchResult:
        latest = {point.stage.load: point for point in done if not point.abandoned}
        points = _points(latest.values())
        asked = _wanted(latest, points, plan)
        return probe(asked) if asked is not None else _found(points, plan, probes=len(done))

    return following


def _points(measured: Iterable[Measured]) -> list[Point]:
    points = [(point.held, point.output_tokens_per_s) for point in measured]
    return sorted((held, rate) for held, rate in points if held and rate)


def _wanted(latest: dict[float, Measured], points: list[Point], plan: PlanSettings) -> float | None:
    """Double until power has fallen, then fill in where the curve has its knee; None when that is done."""
    if not latest:
        return plan.least
    highest = max(latest)
    powers = [rate * rate / held for held, rate in points]
    fallen = len(points) >= _FEWEST and powers[-1] < FALLEN * max(powers)
    if not fallen and highest < plan.most and points:
        return min(plan.most, 2 * highest)
    refined = sum(1 for load in latest if not _is_rung(load, plan))
    knee = knee_of(points)
    if knee is None or refined >= REFINEMENTS or not plan.least <= knee <= plan.most:
        return None
    return next((load for load in _around(knee) if plan.least <= load <= plan.most and load not in latest), None)


def _is_rung(load: float, plan: PlanSettings) -> bool:
    return load == plan.most or math.log2(load / plan.least).is_integer()


def _around(knee: float) -> list[float]:
    """The knee itself, and both sides of it."""
    return [float(max(1, round(knee * factor))) for factor in (1.0, 1.5, 0.67)]


def knee_of(points: Sequence[Point]) -> float | None:
    """The concurrency of most power on the curve through some points; None if it has none."""
    if len(points) < _FEWEST - 1:
        return None
    held = np.array([point[0] for point in points])
    response = held / np.array([point[1] for point in points])
    straight, rest = _fit(held, response, 1)
    coefficients = straight
    if len(points) > _FEWEST:
        curved, curved_rest = _fit(held, response, 2)
        spread = curved_rest / (len(points) - 3)
        if curved[2] > 0 and curved[0] > 0 and curved[1] > 0 and rest - curved_rest > _CURVED * spread:
            coefficients = curved
    return _most_power(coefficients)


def _fit(held: NDArray[np.float64], response: NDArray[np.float64], degree: int) -> tuple[NDArray[np.float64], float]:
    """Least squares of relative errors: response times vary in proportion to themselves."""
    design = np.vander(held, degree + 1, increasing=True) / response[:, None]
    coefficients = np.linalg.lstsq(design, np.ones(len(held)), rcond=None)[0].astype(np.float64)
    rest = design @ coefficients - 1
    return coefficients, float(rest @ rest)


def _most_power(coefficients: NDArray[np.float64]) -> float | None:
    a, b, c = (*coefficients.tolist(), 0.0)[:3]
    if a <= 0 or b <= 0:
        return None
    return float(a / b) if c <= 0 else (math.sqrt(b * b + 12 * a * c) - b) / (6 * c)


def _interval(points: Sequence[Point], knee: float) -> tuple[float, float] | None:
    """The jackknife's 95 % interval: how far the knee moves when one point is left out."""
    others = [knee_of([*points[:index], *points[index + 1 :]]) for index in range(len(points))]
    known = [other for other in others if other is not None]
    if len(known) < len(points) or len(points) < _FEWEST:
        return None
    mean = sum(known) / len(known)
    variance = (len(known) - 1) / len(known) * sum((other - mean) ** 2 for other in known)
    half = Z95 * math.sqrt(variance)
    return max(0.0, knee - half), knee + half


def _found(points: list[Point], plan: PlanSettings, *, probes: int) -> SearchResult:
    knee = knee_of(points)
    interval = _interval(points, knee) if knee is not None else None
    problem = _problem(points, knee, interval, plan)
    return SearchResult(
        kind="knee",
        by="concurrency",
        found=None if knee is None or knee > plan.most else knee,
        low=interval[0] if interval is not None else None,
        high=interval[1] if interval is not None else None,
        resolved=problem is None,
        why=problem or "power, throughput over response time, is greatest there",
        probes=probes,
    )


def _problem(
    points: list[Point], knee: float | None, interval: tuple[float, float] | None, plan: PlanSettings
) -> str | None:
    if knee is None or interval is None:
        return f"no knee in {len(points)} probes: response time does not grow with concurrency"
    if knee > points[-1][0]:
        return f"throughput still pays for latency at {points[-1][0]:.0f} streams: raise plan.most ({plan.most:g})"
    best = max(points, key=lambda point: point[1] * point[1] / point[0])[0]
    if not best / _NEAR <= knee <= best * _NEAR:
        return f"the curve says {knee:.0f}, but the best probe is {best:.0f}"
    if interval[1] - interval[0] > 2 * _PRECISE * knee:
        return f"between {interval[0]:.0f} and {interval[1]:.0f}: the probes vary too much to say it nearer"
    return None
