"""The table, from a result that a run could have left."""

import msgspec
import numpy as np

from loadgen.metrics.histogram import Histogram
from loadgen.record.crosscheck import truth_check
from loadgen.record.stage import StageRecord
from loadgen.report.table import result_table
from loadgen.schema.engine import EngineStage
from loadgen.schema.journal import StageStarted
from loadgen.schema.result import (
    ClientResult,
    Concurrency,
    FailureCheck,
    Requests,
    Result,
    SloCheck,
    StageResult,
    Target,
    Throughput,
    Tokens,
)


def summary_of(*values_ms: float) -> Histogram:
    histogram = Histogram()
    histogram.record_ns([int(value * 1e6) for value in values_ms])
    return histogram


def stage(completed: int, **errors: int) -> StageResult:
    latency = summary_of(10, 20, 30).summary() if completed else Histogram().summary()
    failed = sum(errors.values())
    return StageResult(
        index=0,
        label="conc 8",
        target=Target(concurrency=8, rate=None, arrival=None),
        isl=4096,
        osl=1024,
        started_at="2026-01-01T00:00:00.000Z",
        duration_s=171.0,
        measured_s=171.0,
        stop_reason="all requests were answered",
        requests=Requests(
            sent=completed + failed,
            completed=completed,
            failed=failed,
            unfinished=0,
            warmup=0,
            retried=0,
            clock_steps=0,
            errors=errors,
            messages={kind: ["connection lost"] for kind in errors},
        ),
        concurrency=Concurrency(mean=8.0, peak=8),
        tokens=Tokens(input=327_463, output=81_920, source="usage"),
        throughput=Throughput(0.47, 1915.0, 479.07, 2394.07, 59.88),
        latency_ms=dict.fromkeys(("ttft", "ttft_from_intended", "tpot", "itl", "chunk_gap", "e2e"), latency),
        slo={"ttft_p99": SloCheck(limit_ms=25.0, measured_ms=30.0, met=False)},
        engine=None,
        truth=truth_check(SAME, EngineStage(ttft_mean_ms=19.5, ttft_count=80, idle_around=True)),
        limited=False,
        why=None,
    )


def counted(ttft_ms: float, first_tokens: int, *, alone: bool = True, **counters: int) -> StageRecord:
    """A stage whose client has counted this, and seen so many first tokens after as long."""
    stage = StageRecord(StageStarted(t_s=0.0, index=0, concurrency=1, rate=None, isl=10, osl=5))
    stage.alone = alone
    stage.metrics.counters |= counters
    stage.metrics.latency["ttft"] = Histogram()
    stage.metrics.latency["ttft"].record_us(np.full(first_tokens, round(ttft_ms * 1000), dtype=np.int64))
    return stage


SAME = counted(20.125, 80, completed=80, input_tokens=327_463, output_tokens=81_920)


def result(*stages: StageResult, state: str = "complete") -> Result:
    return Result(
        vramp_version="0",
        run_id="r",
        started_at="2026-01-01T00:00:00.000Z",
        finished_at=None,
        state=state,  # type: ignore[arg-type]
        reason="the server was killed",
        profile={},
        environment={},
        client=ClientResult(
            timestamps="kernel",
            workers=1,
            cpu_s=1.5,
            read_lag_ms=summary_of(0.4).summary(),
            send_lag_ms=Histogram().summary(),
            coalesced_reads=0.0,
            unstamped_reads=0,
            connects=8,
            limited=False,
            why=None,
        ),
        stages=list(stages),
        series={},
        events=[],
    )


def test_the_published_lines() -> None:
    table = result_table(result(stage(80)))
    for line in [
        "Successful requests:                        80",
        "Benchmark duration (s):                     171.00",
        "Total input tokens:                         327463",
        "Total generated tokens:                     81920",
        "Request throughput (req/s):                 0.47",
        "Output token throughput (tok/s):            479.07",
        "Total token throughput (tok/s):             2394.07",
        "TTFT (ms)              20.00       20.02       30.00       30.00       30.00",
        "SLO ttft_p99 <= 25 ms:                      MISSED (30.000)",
        "Mean TTFT of all streams (ms):              20.12",
        "The engine's own of the same (ms):          19.50",
        "Mean TTFT outside the engine (ms):          0.62",
        "client: not limited; kernel timestamps, read lag p99 0.40 ms, 1.5 s of CPU",
    ]:
        assert line in table.splitlines()
    assert max(len(line) for line in table.splitlines()) <= 80


def test_an_engine_that_speaks_of_other_streams_is_not_shown() -> None:
    other = truth_check(SAME, EngineStage(ttft_mean_ms=19.5, ttft_count=90, idle_around=False))
    table = result_table(result(msgspec.structs.replace(stage(80), truth=other)))
    [line] = [line for line in table.splitlines() if "Engine's own" in line]
    assert line.endswith("- (TTFT and totals not compared: the server was not idle when its figures were read)")


def test_a_limit_says_what_missed_it_and_how_sure_that_is() -> None:
    checks = {
        "ttft_p99": SloCheck(25.0, None, met=False, verdict="missed", missed=30, population=90),
        "tpot_p99": SloCheck(25.0, 20.0, met=True, verdict="unresolved", missed=0, population=90, needs=291),
    }
    failures = FailureCheck(count=30, unsent=0, scheduled=90, allowed=0.01, met=False, verdict="missed")
    table = result_table(result(msgspec.structs.replace(stage(80), slo=checks, failures=failures)))
    for line in [
        "SLO ttft_p99 <= 25 ms:                      MISSED (-; 30 of 90 beyond it)",
        "SLO tpot_p99 <= 25 ms:                      met (20.000; sure with 291 more requests)",
        "SLO failed or unsent <= 1 %:                MISSED (30 of 90)",
    ]:
        assert line in table.splitlines()


def test_a_stage_in_which_everything_failed_is_no_table_of_zeros() -> None:
    table = result_table(result(stage(0, reset=3, stall=1), state="server_died"))
    assert "Failed requests:                            4" in table
    assert "  reset: connection lost" in table
    assert "TTFT" not in table
    assert "run: server_died: the server was killed" in table
