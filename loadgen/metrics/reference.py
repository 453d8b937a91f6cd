"""Measured beside published: the figures of a profile's `[reference]` against the stages that match them.

A point of the publication is compared with every stage of its load and shape; what it leaves open, any stage may have.
"""

from __future__ import annotations

import re
from typing import Any

from loadgen.metrics.result import Comparison
from loadgen.metrics.stage_record import StageRecord
from loadgen.profile import Reference, ReferencePoint

_LATENCY = re.compile(r"(?P<metric>[a-z0-9]+)_(?:mean|p(?P<percent>\d+))_ms")


def compare(reference: Reference, stage: StageRecord) -> list[Comparison]:
    """Every published figure that speaks of this stage, beside what it measured."""
    points = [point for point in reference.points if _speaks_of(point, stage)]
    return [_comparison(point, figure, stage) for point in points for figure in point.figures]


def _speaks_of(point: ReferencePoint, stage: StageRecord) -> bool:
    started = stage.started
    asked = (started.concurrency, started.rate, started.isl, started.osl)
    published = (point.concurrency, point.rate, point.isl, point.osl)
    return all(want is None or want == have for want, have in zip(published, asked, strict=True))


def _comparison(point: ReferencePoint, figure: str, stage: StageRecord) -> Comparison:
    published, measured = point.figures[figure], _measured(figure, stage)
    difference = None if measured is None or published == 0 else 100 * (measured - published) / published
    return Comparison(
        stage=stage.started.index,
        of=point.of,
        figure=figure,
        published=published,
        measured=measured,
        difference_percent=None if difference is None else round(difference, 2),
    )


def _measured(figure: str, stage: StageRecord) -> float | None:
    if stage.counters["completed"] == 0:
        return None
    match = _LATENCY.fullmatch(figure)
    if match is None:
        plain: float | None = _plain_figures(stage)[figure]
        return plain
    histogram = stage.histogram(match["metric"])
    return histogram.mean_ms() if match["percent"] is None else histogram.percentile_ms(_percent(match["percent"]))


def _plain_figures(stage: StageRecord) -> dict[str, Any]:
    rate = stage.per_second("window_requests")
    return {
        "requests_per_s": rate,
        "requests_per_min": None if rate is None else 60 * rate,
        "input_tokens_per_s": stage.per_second("window_input_tokens"),
        "output_tokens_per_s": stage.per_second("window_output_tokens"),
        "total_tokens_per_s": stage.per_second("window_input_tokens", "window_output_tokens"),
        "duration_s": stage.window_s,
        "completed": stage.counters["completed"],
        "input_tokens": stage.counters["input_tokens"],
        "output_tokens": stage.counters["output_tokens"],
    }


def _percent(digits: str) -> float:
    """`50` is 50, `999` is 99.9."""
    return float(digits[:2] + "." + digits[2:]) if len(digits) > 2 else float(digits)
