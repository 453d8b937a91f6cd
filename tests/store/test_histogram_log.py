"""The log of histograms: HdrHistogram's own reader finds in it what the result says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from loadgen.errors import ResultError
from loadgen.metrics.histogram import HIGHEST_US, Histogram
from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.schema.journal import Line, RunFinished, RunStarted, StageStarted, Ticked
from loadgen.store.files import HistogramLog

BEGAN = 1_700_000_000.25


def read(path: Path) -> list[HdrHistogram]:
    reader = HistogramLogReader(str(path), HdrHistogram(1, HIGHEST_US, 3))
    intervals = []
    while (interval := reader.get_next_interval_histogram()) is not None:
        intervals.append(interval)
    reader.close()
    return intervals


def read_stages(path: Path) -> dict[int, dict[str, HdrHistogram]]:
    """The sum of each latency's intervals, by the index of the stage in the comment above them."""
    stages: dict[int, dict[str, HdrHistogram]] = {}
    found: dict[str, HdrHistogram] = {}
    for line in path.read_text().splitlines():
        if line.startswith("#[Stage "):
            found = stages.setdefault(int(line.split()[1]) - 1, {})
        elif line.startswith("Tag="):
            tag, *_, encoded = line.split(",")
            total = found.setdefault(tag.removeprefix("Tag="), HdrHistogram(1, HIGHEST_US, 3))
            total.decode_and_add(encoded)
    return stages


def latency(*values_ms: float) -> Histogram:
    histogram = Histogram()
    histogram.record_ns([int(value * 1e6) for value in values_ms])
    return histogram


def tick(t_s: float, stages: dict[int, StageDelta]) -> Ticked:
    return Ticked(t_s=t_s, span_s=0.25, stages=stages, client=ClientDelta(), held=1)


def stage(t_s: float, index: int) -> StageStarted:
    return StageStarted(t_s=t_s, index=index, concurrency=8, rate=None, isl=16, osl=16, duration_s=20.0)


def started() -> RunStarted:
    return RunStarted(BEGAN, "the-run", "0", {}, {}, 1, 1, 1)


def write(path: Path, *lines: Line) -> None:
    log = HistogramLog(path)
    for line in lines:
        log.apply(line)
    log.close()


def test_intervals_late_values_belong_to_their_stage(tmp_path: Path) -> None:
    path = tmp_path / "h.hlog"
    one = StageDelta(latency={"ttft": latency(10, 20).encode(), "warmup_ttft": latency(999).encode()})
    two = StageDelta(latency={"ttft": latency(30).encode(), "itl": latency(1, 2, 3).encode()})
    begun: list[Line] = [started(), stage(0.5, 0), tick(1.0, {0: one}), stage(1.1, 1), tick(1.25, {0: one, 1: two})]
    write(path, *begun)
    assert [interval.get_tag() for interval in read(path)] == ["ttft"], "what is not over is not written"
    write(path, *begun, RunFinished(9, 9, "failed", ""))
    first, late, second, itl, gaps = read(path)
    assert [(each.get_tag(), each.get_total_count()) for each in (first, late, second, itl, gaps)] == [
        ("ttft", 2),
        ("ttft", 2),
        ("ttft", 1),
        ("itl", 3),
        ("chunk_gap", 3),
    ]
    assert {index: sorted(found) for index, found in read_stages(path).items()} == {
        0: ["ttft"],
        1: ["chunk_gap", "itl", "ttft"],
    }
    starts_ms = [each.get_start_time_stamp() - BEGAN * 1000 for each in (first, late, second)]
    assert starts_ms == pytest.approx([750, 1000, 1100])
    assert late.get_end_time_stamp() == pytest.approx((BEGAN + 1.25) * 1000)
    assert second.get_value_at_percentile(100) == pytest.approx(30_000, rel=1e-3)
    assert "microseconds" in path.read_text().splitlines()[0]


def test_a_long_run_has_some_hundred_intervals_that_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "h.hlog"
    delta = StageDelta(latency={"e2e": latency(5).encode()})
    ticks = 20_000
    write(
        path,
        started(),
        stage(0.0, 0),
        *(tick(0.25 * number, {0: delta}) for number in range(ticks)),
        RunFinished(1e4, 9, "complete", ""),
    )
    intervals = read(path)
    assert 200 < len(intervals) < 600
    assert sum(interval.get_total_count() for interval in intervals) == ticks
    times = [(interval.get_start_time_stamp(), interval.get_end_time_stamp()) for interval in intervals]
    assert all(end == pytest.approx(following) for (_, end), (following, _) in pairwise(times))


def test_a_disk_that_takes_nothing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"nowhere/h\.hlog: the log of histograms cannot be written: No such file"):
        HistogramLog(tmp_path / "nowhere" / "h.hlog")
    log = HistogramLog(Path("/dev/full"))
    with pytest.raises(ResultError, match="the log of histograms cannot be written: No space left"):
        log.apply(started())
    log.close()


def test_a_run_of_any_name_has_a_log_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "h"
    name = "größer\n1,2,3\x1b[1m"
    stage_delta = StageDelta(latency={"ttft": latency(10.0).encode()})
    first, last = msgspec.structs.replace(started(), run_id=name), RunFinished(2.0, BEGAN + 2, "complete", "")
    write(path, first, stage(0.0, 0), tick(1.0, {0: stage_delta}), last)
    assert [interval.get_total_count() for interval in read(path)] == [1]
    assert b"run gr??er 1,2,3?[1m:" in path.read_bytes()
