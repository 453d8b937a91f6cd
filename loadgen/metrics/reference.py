"""Measured beside published: the figures of a profile's `[reference]` against the stages that match them.

A point of the publication is compared with every stage of its load and shape; what it leaves open, any stage may have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.result import StageResult
from loadgen.metrics.snapshot import Comparison
from loadgen.profile import Reference, ReferencePoint

_LATENCY = re.compile(r"(?P<metric>[a-z0-9]+)_(?:mean|p(?P<percent>\d+))_ms")


class ReferenceResult(msgspec.Struct, frozen=True):
    """The publication, and every comparison with it."""

    source: str
    notes: list[str]
    comparisons: list[Comparison]


def compare(reference: Reference, stages: Sequence[tuple[StageResult, Mapping[str, Histogram]]]) -> ReferenceResult:
    """Every published figure against every stage it speaks of; a stage comes with its latency histograms."""
    comparisons = [
        _comparison(point, figure, stage, latency)
        for stage, latency in stages
        for point in reference.points
        if _speaks_of(point, stage)
        for figure in point.figures
    ]
    return ReferenceResult(source=reference.source, notes=reference.notes, comparisons=comparisons)


def _speaks_of(point: ReferencePoint, stage: StageResult) -> bool:
    asked = (stage.target.concurrency, stage.target.rate, stage.isl, stage.osl)
    published = (point.concurrency, point.rate, point.isl, point.osl)
    return all(want is None or want == have for want, have in zip(published, asked, strict=True))


def _comparison(point: ReferencePoint, figure: str, stage: StageResult, latency: Mapping[str, Histogram]) -> Comparison:
    published, measured = point.figures[figure], _measured(figure, stage, latency)
    difference = None if measured is None or published == 0 else 100 * (measured - published) / published
    return Comparison(
        stage=stage.index,
        of=point.of,
        figure=figure,
        published=published,
        measured=measured,
        difference_percent=None if difference is None else round(difference, 2),
    )


def _measured(figure: str, stage: StageResult, latency: Mapping[str, Histogram]) -> float | None:
    if stage.requests.completed == 0:
        return None
    match = _LATENCY.fullmatch(figure)
    if match is not None:
        histogram = latency.get(match["metric"], Histogram())
        return histogram.mean_ms() if match["percent"] is None else histogram.percentile_ms(_percent(match["percent"]))
    rate = stage.throughput.requests_per_s
    plain: dict[str, float | None] = {
        "requests_per_s": rate,
        "requests_per_min": None if rate is None else 60 * rate,
        "input_tokens_per_s": stage.throughput.input_tokens_per_s,
        "output_tokens_per_s": stage.throughput.output_tokens_per_s,
        "total_tokens_per_s": stage.throughput.total_tokens_per_s,
        "duration_s": stage.measured_s,
        "completed": stage.requests.completed,
        "input_tokens": stage.tokens.input,
        "output_tokens": stage.tokens.output,
    }
    return plain[figure]


def _percent(digits: str) -> float:
    """`50` is 50, `999` is 99.9."""
    return float(digits[:2] + "." + digits[2:]) if len(digits) > 2 else float(digits)
