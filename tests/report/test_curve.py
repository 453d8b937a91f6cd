"""The serving curve of results that ladders of rates could have left."""

import msgspec

from loadgen.metrics.result import StageResult, Target, Throughput
from loadgen.report.curve import curve_points, curve_table, is_rate_ladder
from tests.report.test_table import result, stage, summary_of


def at(rate: float | None, achieved: float | None, *normalized_ms: float) -> StageResult:
    one = stage(len(normalized_ms))
    return msgspec.structs.replace(
        one,
        target=Target(concurrency=None if rate else 8, rate=rate, arrival="poisson" if rate else None),
        throughput=Throughput(achieved, None, None, None, None),
        latency_ms=one.latency_ms | {"normalized": summary_of(*normalized_ms).summary()},
    )


def test_points_are_by_rate_in_requests_a_minute() -> None:
    points = curve_points(result(at(4.0, 3.0, 30.0), at(1.0, 1.0, 10.0, 20.0), at(None, 5.0, 10.0), at(8.0, None)))
    assert [(one.asked_per_min, one.achieved_per_min, one.normalized_mean_ms) for one in points] == [
        (60.0, 60.0, 15.0),
        (240.0, 180.0, 30.0),
    ]


def test_the_table_shows_where_it_bends() -> None:
    lines = curve_table(result(at(1.0, 1.0, 10.0), at(4.0, 3.0, 40.0))).splitlines()
    assert lines[0].strip("= ") == "Serving curve"
    assert lines[3].split() == ["60.0", "60.0", "10.000", "10.000", "#" * 8]
    assert lines[4].split() == ["240.0", "180.0", "40.000", "40.000", "#" * 30]
    assert max(len(line) for line in lines) <= 80


def test_one_rate_is_no_curve() -> None:
    for one in (result(), result(at(1.0, 1.0, 5.0), at(1.0, 1.0, 6.0)), result(at(None, 1.0, 5.0), at(None, 2.0, 5.0))):
        assert not is_rate_ladder(one)
        assert curve_table(one) == ""


def test_a_result_without_normalized_latency_has_rates_only() -> None:
    bare = [msgspec.structs.replace(at(rate, None, 1.0), latency_ms={}) for rate in (1.0, 2.0)]
    assert curve_table(result(*bare)).splitlines()[3].split() == ["60.0", "-", "-", "-"]
