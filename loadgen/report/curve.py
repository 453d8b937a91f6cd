"""The serving curve: normalized latency against the requests a minute that a server really answered.

Normalized latency is E2E divided by input and output tokens. A server that keeps up answers what it is asked at a flat
latency; where it no longer does, the curve turns upwards and the achieved rate falls behind the one asked for.
"""

from __future__ import annotations

import msgspec

from loadgen.format import fixed
from loadgen.metrics.result import Result, StageResult

_BAR = 30


class CurvePoint(msgspec.Struct, frozen=True):
    """One rate of the ladder."""

    label: str
    asked_per_min: float
    achieved_per_min: float | None
    normalized_mean_ms: float | None  # milliseconds per token
    normalized_p99_ms: float | None


def curve_points(result: Result) -> list[CurvePoint]:
    """The open-loop stages of a result, by rate; those in which nothing was completed are left out."""
    points = [_point(stage) for stage in result.stages if stage.target.rate is not None and stage.requests.completed]
    return sorted(points, key=lambda point: point.asked_per_min)


def is_rate_ladder(result: Result) -> bool:
    """Whether there is a curve to draw: stages at two rates at least."""
    return len({point.asked_per_min for point in curve_points(result)}) > 1


def curve_table(result: Result) -> str:
    """The points of the curve, a bar beside each; empty for a result that is no rate ladder."""
    if not is_rate_ladder(result):
        return ""
    points = curve_points(result)
    top = max(point.normalized_mean_ms or 0.0 for point in points)
    return "\n".join([f"{' Serving curve ':=^80}", *_HEAD, *(_line(point, top) for point in points)])


_HEAD = (
    f"{'requests/min':>25}{'latency (ms/token)':>22}",
    f"{'asked':>12}{'achieved':>13}{'mean':>11}{'p99':>11}",
)


def _point(stage: StageResult) -> CurvePoint:
    achieved, normalized = stage.throughput.requests_per_s, stage.latency_ms.get("normalized")
    assert stage.target.rate is not None
    return CurvePoint(
        label=stage.label,
        asked_per_min=stage.target.rate * 60,
        achieved_per_min=None if achieved is None else achieved * 60,
        normalized_mean_ms=normalized.mean if normalized is not None else None,
        normalized_p99_ms=normalized.p99 if normalized is not None else None,
    )


def _line(point: CurvePoint, top: float) -> str:
    bar = "#" * round(_BAR * (point.normalized_mean_ms or 0.0) / top) if top else ""
    mean, p99 = fixed(point.normalized_mean_ms, 3), fixed(point.normalized_p99_ms, 3)
    return f"{point.asked_per_min:>12.1f}{fixed(point.achieved_per_min, 1):>13}{mean:>11}{p99:>11}  {bar}".rstrip()
