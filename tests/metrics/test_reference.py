"""Published figures beside measured ones."""

import msgspec
import pytest

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.reference import ReferenceResult, compare
from loadgen.metrics.result import Concurrency, Requests, StageResult, Target, Throughput, Tokens
from loadgen.profile import Reference, ReferencePoint

LATENCY = {"ttft": Histogram(), "normalized": Histogram()}
LATENCY["ttft"].record_ns([1_000_000 * value for value in range(1, 101)])
LATENCY["normalized"].record_ns([12_000_000])


def stage(*, completed: int = 80) -> StageResult:
    return StageResult(
        index=2,
        label="",
        target=Target(concurrency=8, rate=None, arrival=None),
        isl=4096,
        osl=1024,
        started_at="2026-11-21T00:00:00Z",
        duration_s=180.0,
        measured_s=171.0,
        stop_reason="",
        requests=Requests(completed, completed, 0, 0, 0, 0, 0, {}, {}),
        concurrency=Concurrency(8.0, 8),
        tokens=Tokens(327_680, 81_920, "usage"),
        throughput=Throughput(0.5, 1915.0, 479.07, 2394.07, 59.9),
        latency_ms={},
        slo={},
        engine=None,
        limited=False,
        why=None,
    )


def compared(figures: dict[str, float], *, completed: int = 80, **load: int) -> ReferenceResult:
    point = ReferencePoint.model_validate({"figures": figures, "of": "MI300X", **load})
    reference = Reference(source="a publication", notes=["at night"], points=[point])
    return compare(reference, [(stage(completed=completed), LATENCY)])


@pytest.mark.parametrize(
    ("figure", "measured"),
    [
        ("ttft_mean_ms", 50.5),
        ("ttft_p50_ms", 50.015),
        ("ttft_p999_ms", 100.0),
        ("ttft_p10_ms", 10.007),
        ("itl_p99_ms", None),
        ("normalized_mean_ms", 12.0),
        ("requests_per_s", 0.5),
        ("requests_per_min", 30.0),
        ("input_tokens_per_s", 1915.0),
        ("output_tokens_per_s", 479.07),
        ("total_tokens_per_s", 2394.07),
        ("duration_s", 171.0),
        ("completed", 80.0),
        ("input_tokens", 327_680.0),
        ("output_tokens", 81_920.0),
    ],
)
def test_every_figure_has_its_measurement(figure: str, measured: float | None) -> None:
    (comparison,) = compared({figure: 100.0}).comparisons
    assert comparison.measured == measured
    assert (comparison.stage, comparison.of, comparison.figure) == (2, "MI300X", figure)


def test_the_difference_is_measured_against_published() -> None:
    (comparison,) = compared({"requests_per_s": 0.4}).comparisons
    assert comparison.difference_percent == 25.0


@pytest.mark.parametrize(
    ("load", "matches"),
    [
        ({}, True),
        ({"concurrency": 8}, True),
        ({"concurrency": 16}, False),
        ({"isl": 4096, "osl": 1024}, True),
        ({"isl": 1024}, False),
        ({"rate": 8}, False),
    ],
)
def test_a_point_speaks_of_stages_with_its_load(load: dict[str, int], matches: bool) -> None:
    assert bool(compared({"duration_s": 171.0}, **load).comparisons) is matches


def test_nothing_measured_is_no_difference() -> None:
    result = compared({"duration_s": 171.0}, completed=0)
    assert result.comparisons[0].measured is None
    assert result.comparisons[0].difference_percent is None
    assert (result.source, result.notes) == ("a publication", ["at night"])


def test_it_survives_its_document() -> None:
    result = compared({"duration_s": 171.0})
    assert msgspec.json.decode(msgspec.json.encode(result), type=ReferenceResult) == result
