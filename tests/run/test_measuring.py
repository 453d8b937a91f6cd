"""From the figures of a stage to what a plan decides by."""

import msgspec
import pytest

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.journal import StageEnded, StageSettled, StageStarted
from loadgen.metrics.stage import StageDelta
from loadgen.metrics.stage_record import StageRecord
from loadgen.plan import Stage
from loadgen.profile.slo import limit_of, slo_problem
from loadgen.run.measuring import measured_of

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


@pytest.mark.parametrize(
    ("ttft_ms", "limit", "verdict", "met"),
    [
        ([10] * 500, "ttft_p99", "met", True),
        ([10] * 100, "ttft_p99", "unresolved", True),
        ([10] * 480 + [90] * 20, "ttft_p99", "missed", False),
        ([10] * 480 + [90] * 20, "ttft_p90", "met", True),
        ([10] * 480 + [90] * 20, "ttft_p96", "unresolved", True),
        ([10, 12] * 100, "ttft_mean", "met", True),
        ([90, 92] * 100, "ttft_mean", "missed", False),
        ([], "ttft_p50", "unresolved", False),
        ([10] * 500, "tpot_p50", "unresolved", False),
    ],
)
def test_a_limit_over_the_stage(ttft_ms: list[float], limit: str, verdict: str, met: bool) -> None:
    measured = measured_of(STAGE, record(*ttft_ms, completed=len(ttft_ms)), {limit: 50.0}, goodput=0.95)
    assert (measured.verdict, measured.met) == (verdict, met)
    assert (measured.held, measured.output_tokens_per_s) == (7.0, 40.0)


def test_failures_are_not_good() -> None:
    measured = measured_of(STAGE, record(*[10] * 500, completed=500, failed=100), {"ttft_p90": 50.0}, goodput=0.95)
    assert (measured.verdict, measured.met) == ("missed", False)


@pytest.mark.parametrize(("good", "verdict"), [(990, "met"), (951, "unresolved"), (900, "missed")])
def test_goodput(good: int, verdict: str) -> None:
    stage = record(completed=995, good=good, failed=5)
    assert measured_of(STAGE, stage, {"ttft": 50.0}, goodput=0.95).verdict == verdict
    goodput = stage.goodput({"ttft": 50.0, "tpot_p99": 9.0}, 0.95)
    assert goodput is not None
    assert (goodput.limits_ms, goodput.determined, goodput.share) == ({"ttft": 50.0}, 1000, good / 1000)
    assert goodput.requests_per_s == pytest.approx(5 * good / 1000)
    assert goodput.met == (good >= 950)
    assert stage.goodput({"tpot_p99": 9.0}, 0.95) is None


def test_saturated_is_missed_and_no_limit_is_no_verdict() -> None:
    measured = measured_of(STAGE, record(*[10] * 500), {"ttft_p99": 50.0}, goodput=0.95)
    assert measured.after(saturated=True, abandoned=False).verdict == "missed"
    assert measured.after(saturated=False, abandoned=True).abandoned
    assert measured_of(STAGE, record(*[10] * 500), {}, goodput=0.95).verdict == "unresolved"


def test_any_percentile() -> None:
    assert [limit_of(name) for name in ("ttft_p97", "tpot_mean", "ttft_from_intended_p999", "itl_p5")] == [
        ("ttft", 97.0),
        ("tpot", None),
        ("ttft_from_intended", 99.9),
        ("itl", 5.0),
    ]
    assert slo_problem("itl") is None
    assert slo_problem("normalized") is not None
    checks = record(10, 20, 30).slo({"ttft_p34": 15.0, "ttft_p33": 15.0, "ttft": 1.0})
    assert {name: check.met for name, check in checks.items()} == {"ttft_p34": False, "ttft_p33": True}


def test_when_a_stage_says_too_little() -> None:
    ended = StageEnded(t_s=20.0, index=0, reason="")
    stage, broken_off, enough = record(completed=99), record(completed=99), record(completed=100)
    broken_off.ended = stage.ended = enough.ended = ended
    assert broken_off.inconclusive == "it ended before its transient was over"
    stage.settled = enough.settled = StageSettled(t_s=14.5, index=0, settled=True)
    assert (stage.settled_s, stage.inconclusive) == (4.5, "99 of at least 100 streams completed")
    assert enough.inconclusive is None
