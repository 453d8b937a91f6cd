"""The lines of the published benchmarks and the serving curve, from results that runs could have left."""

import msgspec
import pytest

from loadgen.report.bench_table import (
    LATENCY_PERCENTS,
    batch_latency_s,
    latency_table,
    percentile,
    serve_tables,
    throughput_table,
    trust_lines,
)
from loadgen.report.document import serving_curve
from loadgen.report.text import section_lines
from loadgen.schema.result import Concurrency, FirstWave, Goodput, StageResult, Target, Throughput
from tests.report.test_text import result, stage, summary_of

LATENCIES = ("ttft", "ttft_from_intended", "tpot", "itl", "chunk_gap", "e2e", "normalized")


def served(completed: int = 80, **errors: int) -> StageResult:
    """With histograms, as a result on disk has them."""
    summary = summary_of(*range(1, 101)).summary(with_hdr=True)
    return msgspec.structs.replace(stage(completed, **errors), latency_ms=dict.fromkeys(LATENCIES, summary))


def iteration(number: int, *e2e_ms: float, batch: int = 1) -> StageResult:
    latency = {"e2e": summary_of(*e2e_ms).summary()}
    target = Target(concurrency=batch, rate=None, arrival=None)
    one = msgspec.structs.replace(stage(len(e2e_ms)), label=f"iteration {number}", target=target)
    return msgspec.structs.replace(one, latency_ms=one.latency_ms | latency)


def test_serve_has_the_published_lines() -> None:
    table = serve_tables(result(served()), metrics=["ttft", "tpot", "itl", "e2el"], percents=[25, 99.9])
    for line in [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     80",
        "Failed requests:                         0",
        "Maximum request concurrency:             8",
        "Benchmark duration (s):                  171.00",
        "Total input tokens:                      327463",
        "Total generated tokens:                  81920",
        "Request throughput (req/s):              0.47",
        "Output token throughput (tok/s):         479.07",
        "Peak concurrent requests:                8.00",
        "Total token throughput (tok/s):          2394.07",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          50.50",
        "Median TTFT (ms):                        50.02",
        "P25 TTFT (ms):                           25.01",
        "P99.9 TTFT (ms):                         100.00",
        "-----Time per Output Token (excl. 1st token)------",
        "---------------Inter-token Latency----------------",
        "----------------End-to-end Latency----------------",
        "P25 E2EL (ms):                           25.01",
        "=" * 50,
    ]:
        assert line in table.splitlines()
    assert "goodput" not in table and "Serving curve" not in table and "run:" not in table


def test_only_the_metrics_that_were_requested() -> None:
    table = serve_tables(result(served()), metrics=["tpot"], percents=[99])
    assert "Mean TPOT" in table and "TTFT" not in table and "P25" not in table


def test_a_rate_says_what_was_requested_and_goodput_is_reported() -> None:
    goodput = Goodput(
        limits_ms={"ttft": 5.0}, good=1, determined=2, share=0.5, requests_per_s=0.23, wanted=0.9, met=False
    )
    open_loop = msgspec.structs.replace(
        served(), target=Target(concurrency=None, rate=0.5, arrival="poisson"), goodput=goodput
    )
    table = serve_tables(result(open_loop), metrics=[], percents=[])
    assert "Request rate configured (RPS):           0.50" in table
    assert "Request goodput (req/s):                 0.23" in table
    assert "Maximum request concurrency" not in table


def test_a_bound_that_never_bound_is_not_printed() -> None:
    at_once = msgspec.structs.replace(served(), target=Target(concurrency=80, rate=None, arrival=None))
    assert "Maximum" not in serve_tables(result(at_once), metrics=[], percents=[])


def test_what_failed_is_said_and_no_latency_of_nothing() -> None:
    table = serve_tables(result(stage(0, reset=3), state="server_died"), metrics=["ttft"], percents=[99])
    assert "Failed requests:                         3" in table
    assert "Mean TTFT" not in table
    assert table.splitlines()[-2:] == ["  reset: connection lost", "run: server_died: the server was killed"]


def test_a_limited_client_is_named() -> None:
    one = result(served())
    limited = msgspec.structs.replace(one, client=msgspec.structs.replace(one.client, limited=True, why="no CPU"))
    assert "client: LIMITED (no CPU)" in throughput_table(limited)


def test_a_percentile_without_a_histogram_is_unknown() -> None:
    assert percentile(summary_of(1, 2).summary(), 25).value is None
    assert percentile(summary_of().summary(with_hdr=True), 25).value is None
    assert "P25 TTFT (ms):                           -" in serve_tables(
        result(stage(3)), metrics=["ttft"], percents=[25]
    )


def test_latency_is_interpolated_as_vllm_does_and_warm_up_is_left_out() -> None:
    warm_up = msgspec.structs.replace(iteration(1, 9000.0), label="warm-up 1")
    table = latency_table(result(warm_up, *(iteration(n, 1000.0 * n) for n in range(1, 6))))
    assert table.splitlines() == [
        "Batch size: 1",
        "Avg latency: 3.000000 seconds",
        "10% percentile latency: 1.400000 seconds",
        "25% percentile latency: 2.000000 seconds",
        "50% percentile latency: 3.000000 seconds",
        "75% percentile latency: 4.000000 seconds",
        "90% percentile latency: 4.600000 seconds",
        "99% percentile latency: 4.960000 seconds",
    ]
    assert len(LATENCY_PERCENTS) == 6


def test_each_batch_is_a_first_wave_and_nobody_says_so() -> None:
    wave = FirstWave(streams=2, counted=True, ttft_ms=None)
    one = msgspec.structs.replace(iteration(1, 100.0, 200.0, batch=2), first_wave=wave, tail_share=0.5)
    assert "First wave" in "\n".join(trust_lines(result(one))) and "Tail" in "\n".join(trust_lines(result(one)))
    assert "stage 1" not in latency_table(result(one))


def test_a_batch_is_as_slow_as_its_slowest_stream() -> None:
    assert batch_latency_s(iteration(1, 100.0, 300.0, 200.0, batch=3)) == pytest.approx(0.3)


def test_a_batch_that_is_not_whole_is_left_out_and_counted() -> None:
    table = latency_table(result(iteration(1, 100.0, batch=2), iteration(2, 100.0, 200.0, batch=2)))
    lost = "Iterations with failed or unfinished requests, left out: 1"
    assert table.startswith(f"Batch size: 2\n{lost}\nAvg latency: 0.200000 seconds")
    assert latency_table(result(iteration(1))) == f"Batch size: 1\n{lost}"


def test_throughput_has_the_published_lines() -> None:
    lines = throughput_table(result(served())).splitlines()
    assert lines == [
        "Throughput: 0.47 requests/s, 2394.07 total tokens/s, 479.07 output tokens/s",
        "Throughput: 28.20 requests/min",
        "Total num prompt tokens:  327463",
        "Total num output tokens:  81920",
    ]


def test_throughput_of_nothing_is_unknown() -> None:
    nothing = msgspec.structs.replace(
        stage(0, reset=2), throughput=Throughput(None, None, None, None, None), concurrency=Concurrency(None, 0)
    )
    table = throughput_table(result(nothing))
    assert table.startswith("Failed or unfinished requests: 2 of 2\nThroughput: - requests/s, - total")


def at_rate(rate: float | None, achieved: float | None, *normalized_ms: float) -> StageResult:
    one = stage(len(normalized_ms))
    return msgspec.structs.replace(
        one,
        target=Target(concurrency=None if rate else 8, rate=rate, arrival="poisson" if rate else None),
        throughput=Throughput(achieved, None, None, None, None),
        latency_ms=one.latency_ms | {"normalized": summary_of(*normalized_ms).summary()},
    )


def curve_rows(*stages: StageResult) -> list[list[str]]:
    lines = section_lines(serving_curve(stages))
    assert lines[0].strip("- ") == "Serving curve"
    return [line.split() for line in lines[3:]]


def test_points_of_the_serving_curve_are_by_rate_in_requests_a_minute() -> None:
    points = at_rate(4.0, 3.0, 30.0), at_rate(1.0, 1.0, 10.0, 20.0), at_rate(None, 5.0, 10.0), at_rate(8.0, None)
    rows = curve_rows(*points)
    assert [row[:3] for row in rows] == [["60.0", "60.0", "15.000"], ["240.0", "180.0", "30.000"]]
    assert "Serving curve" in serve_tables(result(*points), metrics=[], percents=[])


@pytest.mark.parametrize("rates", [[], [1.0, 1.0], [None, None]])
def test_one_rate_is_no_serving_curve(rates: list[float | None]) -> None:
    assert serving_curve([at_rate(rate, 1.0, 5.0) for rate in rates]).is_empty


def test_a_serving_curve_without_normalized_latency_has_rates_only() -> None:
    bare = [msgspec.structs.replace(at_rate(rate, None, 1.0), latency_ms={}) for rate in (1.0, 2.0)]
    assert curve_rows(*bare)[0] == ["60.0", "-", "-", "-"]
