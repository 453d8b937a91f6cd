"""Published figures beside measured ones."""

import pytest

from loadgen.metrics.deltas import StageDelta
from loadgen.metrics.figures import compare
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.journal import StageStarted
from loadgen.metrics.result import Comparison
from loadgen.metrics.stage_record import StageRecord
from loadgen.profile.schema import Reference, ReferencePoint

SECOND = 1_000_000_000


def histogram_ms(*values: int) -> Histogram:
    histogram = Histogram()
    histogram.record_ns([1_000_000 * value for value in values])
    return histogram


def stage(*, completed: int = 80) -> StageRecord:
    record = StageRecord(StageStarted(t_s=0.0, index=2, concurrency=8, rate=None, isl=4096, osl=1024, requests=80))
    record.metrics.add(
        StageDelta(
            completed=completed,
            input_tokens=327_680,
            output_tokens=81_920,
            window_requests=80,
            window_input_tokens=320_000,
            window_output_tokens=80_000,
            window_start_ns=0,
            window_end_ns=160 * SECOND,
            latency={"ttft": histogram_ms(*range(1, 101)).encode(), "normalized": histogram_ms(12).encode()},
        )
    )
    return record


def compared(figures: dict[str, float], *, completed: int = 80, **load: int) -> list[Comparison]:
    point = ReferencePoint.model_validate({"figures": figures, "of": "MI300X", **load})
    return compare(Reference(source="a publication", points=[point]), stage(completed=completed))


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
        ("input_tokens_per_s", 2000.0),
        ("output_tokens_per_s", 500.0),
        ("total_tokens_per_s", 2500.0),
        ("duration_s", 160.0),
        ("completed", 80.0),
        ("input_tokens", 327_680.0),
        ("output_tokens", 81_920.0),
    ],
)
def test_every_figure_has_its_measurement(figure: str, measured: float | None) -> None:
    (comparison,) = compared({figure: 100.0})
    assert comparison.measured == measured
    assert (comparison.stage, comparison.of, comparison.figure) == (2, "MI300X", figure)


def test_the_difference_is_measured_against_published() -> None:
    (comparison,) = compared({"requests_per_s": 0.4})
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
    assert bool(compared({"duration_s": 171.0}, **load)) is matches


def test_nothing_measured_is_no_difference() -> None:
    (comparison,) = compared({"duration_s": 171.0}, completed=0)
    assert (comparison.measured, comparison.difference_percent) == (None, None)
