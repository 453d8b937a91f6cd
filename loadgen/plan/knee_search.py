"""Searches for the knee, where throughput stops paying for latency: the concurrency with the most power.

Power is throughput over response time (Kleinrock 1979, "Power and deterministic rules of thumb"; Jaffe 1981 calls its
maximum the knee). In a closed loop the response time is R = N/X (Little), so power is X*X/N. Power is flat around its
maximum: 10 % off the knee costs a quarter of a percent, less than measurements vary. So the knee is not the best probe
but is computed from a curve through all of them,

    R(N) = a + b*N + c*N*N    (Gunther's universal scalability law, c = 0 unless the probes demand it),

on which power is greatest where a = b*N + 3*c*N*N; with c = 0 that is a/b, where the asymptotes of light and heavy load
meet as well (Denning and Buzen 1978). Probes double until power has clearly fallen, then go to the knee itself.

The variance of each probe's throughput, from batch means, is its weight in the fit and gives the interval by the delta
method (Casella and Berger, Statistical Inference, section 5.5.4). If the probes scatter around the curve more than
their variance explains, the scatter counts instead (Birge 1932), with Student's t for the small sample. A knee outside
the probes, or far from the best of them, is not resolved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.difference import normal_quantile, student_t
from loadgen.plan.stage import Measured, Plan, Stage
from loadgen.profile.load import PlanSettings
from loadgen.schema.shared import SearchResult

FALLEN = 0.75  # power has clearly fallen below this share of the best; at four times the knee it is 0.64 of it
REFINEMENTS = 3
CONFIDENCE = 0.95
_MIN_POINTS = 4
_CURVED = 0.99  # confidence that the curve bends up, required for a third coefficient
_PRECISE = 0.1
_NEAR = 4.0

Vector = NDArray[np.float64]


class Point(msgspec.Struct, frozen=True):
    """Output tokens a second at a concurrency: finer than requests, of which a short window holds few."""

    held: float
    rate: float
    error_percent: float | None = None

    @property
    def power(self) -> float:
        return self.rate * self.rate / self.held


class Knee(msgspec.Struct, frozen=True):
    """The concurrency with the most power, and its 95 % confidence interval."""

    at: float
    low: float
    high: float


def knee_search(plan: PlanSettings, _start: float, probe: Callable[[float], Stage]) -> Plan:
    """The search as a plan, from `plan.least` on; `probe` makes the stage for a load."""

    def following(done: Sequence[Measured]) -> Stage | SearchResult:
        latest = {one.stage.load: one for one in done if not one.abandoned}
        points = [
            Point(one.held, one.output_tokens_per_s, one.error_percent)
            for one in latest.values()
            if one.held and one.output_tokens_per_s
        ]
        points.sort(key=lambda point: point.held)
        requested = _wanted(latest, points, plan)
        return probe(requested) if requested is not None else _found(points, plan, done)

    return following


def _wanted(latest: dict[float, Measured], points: list[Point], plan: PlanSettings) -> float | None:
    """The next load to probe: doubled until power has fallen, then around the curve's knee; None when done."""
    if not latest:
        return plan.least
    highest = max(latest)
    powers = [point.power for point in points]
    fallen = len(points) >= _MIN_POINTS and powers[-1] < FALLEN * max(powers)
    if not fallen and highest < plan.most and points:
        return min(plan.most, 2 * highest)
    refined = sum(load != plan.most and not math.log2(load / plan.least).is_integer() for load in latest)
    knee = knee_of(points)
    if knee is None or refined >= REFINEMENTS or not plan.least <= knee.at <= plan.most:
        return None
    # The knee itself, and both sides of it.
    around = [float(max(1, round(knee.at * factor))) for factor in (1.0, 1.5, 0.67)]
    return next((load for load in around if plan.least <= load <= plan.most and load not in latest), None)


def knee_of(points: Sequence[Point]) -> Knee | None:
    """The knee of the curve fitted to the points; None if it has none."""
    if len(points) < _MIN_POINTS - 1:
        return None
    fit = _Fit(points, 1)
    if len(points) > _MIN_POINTS:
        curved = _Fit(points, 2)
        if bool((curved.coefficients > 0).all()) and curved.betters(fit):
            fit = curved
    at = _most_power(fit.coefficients)
    if at is None:
        return None
    half = fit.quantile(CONFIDENCE) * math.sqrt(_variance_of_log(fit))
    return Knee(at, at * math.exp(-half), at * math.exp(half) if half < math.log(1e9) else math.inf)


class _Fit:
    """Least squares of response time over concurrency, points weighted by the relative error of their throughput."""

    def __init__(self, points: Sequence[Point], degree: int) -> None:
        held = np.array([point.held for point in points])
        response = held / np.array([point.rate for point in points])
        # The relative errors of the throughputs, taken to be equal unless all are known. One estimated from few blocks
        # can be too small by chance: none counts as less than half the typical one.
        known = [point.error_percent / 100 for point in points if point.error_percent]
        self._known = len(known) == len(points)
        errors: Vector = np.maximum(known, np.median(known) / 2) if self._known else np.ones(len(points))
        design = np.vander(held, degree + 1, increasing=True) / (response * errors)[:, None]
        # The powers of concurrency are scaled to keep the inverse accurate.
        scale = np.abs(design).max(axis=0)
        inverse = np.linalg.pinv(design / scale)
        self.coefficients: Vector = inverse @ (1 / errors) / scale
        residuals = design @ self.coefficients - 1 / errors
        self.rest = float(residuals @ residuals)
        self._freedom = len(points) - degree - 1
        self.covariance: Vector = self._spread * (inverse @ inverse.T) / np.outer(scale, scale)

    @property
    def _scattered(self) -> bool:
        """Whether the points scatter around the curve more than their own errors explain."""
        return not self._known or self.rest > self._freedom

    @property
    def _spread(self) -> float:
        return self.rest / self._freedom if self._scattered else 1.0

    def quantile(self, confidence: float) -> float:
        """Student's t if the errors are known only from the scatter of these few points; else the normal quantile."""
        return student_t(self._freedom, confidence) if self._scattered else normal_quantile(confidence)

    def betters(self, straight: _Fit) -> bool:
        """Whether it fits significantly better than a straight line: the F-test for one more coefficient."""
        return straight.rest - self.rest > self.quantile(_CURVED) ** 2 * self._spread


def _most_power(coefficients: Vector) -> float | None:
    a, b, c = (*coefficients.tolist(), 0.0)[:3]
    if a <= 0 or b <= 0:
        return None
    return float(a / b) if c <= 0 else (math.sqrt(b * b + 12 * a * c) - b) / (6 * c)


def _variance_of_log(fit: _Fit) -> float:
    """The variance of the knee's logarithm, from its derivatives with respect to the coefficients."""
    slopes = np.zeros(len(fit.coefficients))
    for index, step in enumerate(1e-4 * np.diag(fit.coefficients)):
        above, below = _most_power(fit.coefficients + step), _most_power(fit.coefficients - step)
        assert above is not None and below is not None, "coefficients above 0 stay so"
        slopes[index] = math.log(above / below) / (2 * step[index])
    return float(slopes @ fit.covariance @ slopes)


def _found(points: list[Point], plan: PlanSettings, done: Sequence[Measured]) -> SearchResult:
    knee = knee_of(points)
    problem = _problem(points, knee, plan)
    return SearchResult(
        kind="knee",
        by=done[-1].by if done else "concurrency",
        found=knee.at if knee is not None and plan.least <= knee.at <= plan.most else None,
        low=knee.low if knee is not None else None,
        high=knee.high if knee is not None and math.isfinite(knee.high) else None,
        resolved=problem is None,
        why=problem or "power, throughput over response time, is greatest there",
        probes=len(done),
        points=tuple(one.point for one in done if not one.abandoned),
    )


def _problem(points: list[Point], knee: Knee | None, plan: PlanSettings) -> str | None:
    if not points:
        return "nothing was measured"
    tried = f"{points[0].held:.0f} to {points[-1].held:.0f} streams"
    if knee is None:
        return f"the curve does not bend within {tried}, {len(points)} probes: response time does not grow with them"
    if knee.at > points[-1].held:
        return (
            f"the curve does not bend within {tried}: throughput still pays for latency there; "
            f"raise plan.most ({plan.most:g})"
        )
    if knee.at < points[0].held:
        lower = f"; lower plan.least ({plan.least:g})" if plan.least > 1 else ""
        return f"the fitted curve has its knee at {knee.at:.1f}, below the lowest probe, {points[0].held:.1f}{lower}"
    best = max(points, key=lambda point: point.power).held
    if not best / _NEAR <= knee.at <= best * _NEAR:
        return f"the fitted curve has its knee at {knee.at:.0f}, but the best probe is {best:.0f}"
    if knee.high - knee.low > 2 * _PRECISE * knee.at:
        return f"between {knee.low:.0f} and {knee.high:.0f}: the probes vary too much to narrow it down"
    return None
