"""From the figures of a stage to what a plan decides by."""

import msgspec

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.journal import StageEnded, StageSettled, StageStarted
from loadgen.metrics.slo import Limits
from loadgen.metrics.stage import StageDelta
from loadgen.metrics.stage_record import StageRecord
from loadgen.plan import Stage
from loadgen.run.measuring import measured_of
from tests.metrics.served import served

STAGE = Stage(concurrency=8, rate=None, isl=1, osl=1, settle_s=5.0, completed=100)


def record(*ttft_ms: float, **counts: int) -> StageRecord:
    started = StageStarted(
        t_s=10.0,
        index=0,
        label="",
        concurrency=8,
        rate=None,
        arrival="",
        isl=1,
        osl=1,
        requests=None,
        duration_s=1.0,
        warmup_requests=0,
        warmup_s=0.0,
        settle_s=5.0,
        completed=100,
    )
    stage = StageRecord(started)
    histogram = Histogram()
    histogram.record_ns([int(value * 1e6) for value in ttft_ms])
    window = StageDelta(
        window_start_ns=0, window_end_ns=10**10, held_area_ns=7 * 10**10, window_requests=50, window_output_tokens=400
    )
    delta = msgspec.structs.replace(window, latency={"ttft": histogram.encode()}, **counts)
    stage.metrics.add(delta)
    return stage


def test_what_a_plan_decides_by() -> None:
    measured = measured_of(STAGE, record(*[10] * 500, completed=500), Limits({"ttft_p99": 50.0}))
    assert (measured.held, measured.output_tokens_per_s, measured.completed) == (7.0, 40.0, 500)
    # Seven at a time, and nothing said about how they vary: at worst they are 71.
    assert (measured.met, measured.verdict) == (True, "unresolved")
    assert measured.needs == "ttft_p99 needs 2,163 more streams"
    assert measured.error_percent is None


def test_how_much_a_throughput_varies_is_known_from_its_blocks() -> None:
    stage = served(1)
    measured, precision = measured_of(STAGE, stage, Limits()), stage.blocks.precision()
    assert precision is not None
    assert measured.error_percent == precision.error_percent["output_tokens_per_s"] > 0


def test_saturated_is_missed_and_no_limit_is_no_verdict() -> None:
    measured = measured_of(STAGE, record(*[10] * 500), Limits({"ttft_p99": 50.0}))
    assert measured.after(saturated=True, abandoned=False).verdict == "missed"
    assert measured.after(saturated=False, abandoned=True).abandoned
    assert measured_of(STAGE, record(*[10] * 500), Limits()).verdict == "unresolved"


def test_when_a_stage_says_too_little() -> None:
    ended = StageEnded(t_s=20.0, index=0, reason="")
    stage, broken_off, enough = record(completed=99), record(completed=99), record(completed=100)
    broken_off.ended = stage.ended = enough.ended = ended
    assert broken_off.inconclusive == "it ended before its transient was over"
    stage.settled = enough.settled = StageSettled(t_s=14.5, index=0, settled=True)
    assert (stage.settled_s, stage.inconclusive) == (4.5, "99 of at least 100 streams completed")
    assert enough.inconclusive is None
