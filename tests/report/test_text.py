"""The report as text, from a result that a run could have left."""

import msgspec
import numpy as np

from loadgen.metrics.histogram import Histogram
from loadgen.record.crosscheck import truth_check
from loadgen.record.stage import StageRecord
from loadgen.report.text import text_report
from loadgen.schema.engine import EngineStage
from loadgen.schema.journal import StageStarted
from loadgen.schema.result import (
    ClientResult,
    Concurrency,
    FailureCheck,
    Hits,
    Requests,
    Result,
    SessionsResult,
    SloCheck,
    StageResult,
    Target,
    Throughput,
    Tokens,
)
from loadgen.schema.shared import SearchResult


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


def rows(text: str) -> list[str]:
    """The lines of a report with single blanks."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_heading_and_a_row_a_stage() -> None:
    lines = rows(text_report(result(stage(80))))
    assert lines[2] == "Healthy? Yes: 80 requests completed, none failed; no GPU was measured."
    for line in [
        "load ISL/OSL held completed fail duration s req/s tok/s total tok/s SLO",
        "conc 8 4096/1024 8.00 80 0 171.00 0.47 479.07 2394.07 missed",
        "ms load count mean median p90 p99 max",
        "TTFT conc 8 3 20.00 20.02 30.00 30.00 30.00",
        "conc 8 20.1 19.5 0.6 - - - yes",
        "conc 8 30",
        "not limited; kernel timestamps, read lag p99 0.40 ms; 1 worker, 1.5 s of CPU",
    ]:
        assert line in lines


def stage_of_sessions() -> StageResult:
    return msgspec.structs.replace(
        stage(80),
        sessions=SessionsResult(**dict.fromkeys(SessionsResult.__struct_fields__, 0)),
        hits=Hits(measured=0.95, engine=None, infinite=0.9, pool=0.8, pool_tokens=1000),
        tokens=Tokens(input=8000, output=1600, source="usage", input_per_request=100.0, output_per_request=20.0),
    )


def test_lengths_of_sessions_are_those_that_were_sent() -> None:
    lines = rows(text_report(result(stage_of_sessions())))
    assert any(line.startswith("conc 8 100/20 ") for line in lines)


def test_caches_computed_by_several_workers_are_estimates() -> None:
    played = stage_of_sessions()
    words = "Both caches: estimates: each of the 2 workers knows only its own sessions and its share of the KV cache"
    for workers in (1, 2):
        client = msgspec.structs.replace(result().client, workers=workers)
        text = text_report(msgspec.structs.replace(result(played), client=client))
        assert (words in text) == (workers == 2)


def test_a_search_over_sessions_says_so() -> None:
    found = SearchResult("knee", "sessions", 8.0, 6.0, 10.0, resolved=True, why="there", probes=1)
    text = text_report(msgspec.structs.replace(result(stage_of_sessions()), search=found))
    assert "8 sessions (6 to 10), 1 probe; there" in text


def test_six_stages_fit_on_two_screens() -> None:
    ladder = [msgspec.structs.replace(stage(80), index=index, label=f"conc {2**index}") for index in range(6)]
    assert len(text_report(result(*ladder)).splitlines()) <= 90


def test_an_engine_that_speaks_of_other_streams_is_not_shown() -> None:
    other = truth_check(SAME, EngineStage(ttft_mean_ms=19.5, ttft_count=90, idle_around=False))
    lines = rows(text_report(result(msgspec.structs.replace(stage(80), truth=other))))
    assert "conc 8 - - - - - - not compared" in lines
    assert "conc 8: TTFT and totals not compared: the server was not idle when its figures were read" in lines


def test_a_limit_says_what_missed_it_and_how_sure_that_is() -> None:
    checks = {
        "ttft_p99": SloCheck(25.0, None, met=False, verdict="missed", missed=30, population=90),
        "tpot_p99": SloCheck(25.0, 20.0, met=True, verdict="unresolved", missed=0, population=90, needs=291),
    }
    failures = FailureCheck(count=30, unsent=0, scheduled=90, allowed=0.01, met=False, verdict="missed")
    lines = rows(text_report(result(msgspec.structs.replace(stage(80), slo=checks, failures=failures))))
    assert "load ttft_p99 <= 25 ms tpot_p99 <= 25 ms failed or unsent <= 1 %" in lines
    assert "conc 8 -; 30 of 90 beyond it 20; sure with 291 more requests 30 of 90" in lines


def test_limits_that_are_surely_met_have_no_table_of_their_own() -> None:
    met = {"ttft_p99": SloCheck(limit_ms=250.0, measured_ms=30.0, met=True)}
    assert "Limits" not in text_report(result(msgspec.structs.replace(stage(80), slo=met)))


def test_a_stage_in_which_everything_failed_is_no_table_of_zeros() -> None:
    text = text_report(result(stage(0, reset=3, stall=1), state="server_died"))
    assert "reset 3 connection lost" in rows(text)
    assert "TTFT" not in text
    assert ", server died: the server was killed, measured with vramp" in text
