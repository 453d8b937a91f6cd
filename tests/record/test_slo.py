"""One meaning of "SLO met": what is counted, what is a miss, and how sure it is."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.difference import streams_needed
from loadgen.metrics.histogram import Histogram
from loadgen.profile.values import limit_of, slo_problem
from loadgen.record.slo import judge, limits_of, needed_words, still_needed, sure_words
from loadgen.record.stage import StageRecord
from loadgen.schema.deltas import StageDelta
from loadgen.schema.result import FailureCheck, Judgement, Limits, SloCheck, is_known, met_limits
from tests.metrics.served import result_of, served, started

WINDOW = StageDelta(window_start_ns=0, window_end_ns=10**10, held_area_ns=10**10, window_requests=50)
"""Ten seconds in which one stream was open, so that streams are as many as they are worth."""


def record(*ttft_ms: float, **counts: int) -> StageRecord:
    stage = StageRecord(started(concurrency=8))
    stage.metrics.add(WINDOW)
    stage.metrics.counters |= {"sent": len(ttft_ms), "completed": len(ttft_ms)} | counts
    stage.metrics.unsent_wait_ns = 10**9 if "unsent" in counts else 0
    return timed(stage, ttft=ttft_ms)


def timed(stage: StageRecord, **latency: Sequence[float]) -> StageRecord:
    for name, values_ms in latency.items():
        stage.metrics.latency[name] = Histogram()
        stage.metrics.latency[name].record_ns([int(value * 1e6) for value in values_ms])
    return stage


def holding(held: int, stage: StageRecord) -> StageRecord:
    """The same with as many streams at once."""
    stage.metrics.counters["held_area_ns"] = held * 10**10
    return stage


def judged(stage: StageRecord, failed: float = 0.0, **limits_ms: float) -> Judgement:
    return judge(stage, Limits(limits_ms, failed=failed))


@pytest.mark.parametrize(
    ("ttft_ms", "limit", "verdict", "met"),
    [
        ([10] * 500, "ttft_p99", "met", True),
        ([10] * 381, "ttft_p99", "met", True),
        ([10] * 380, "ttft_p99", "unresolved", True),
        ([10] * 480 + [90] * 20, "ttft_p99", "missed", False),
        ([10] * 480 + [90] * 20, "ttft_p90", "met", True),
        ([10] * 480 + [90] * 20, "ttft_p96", "unresolved", True),
        ([10, 12] * 100, "ttft_mean", "met", True),
        ([90, 92] * 100, "ttft_mean", "missed", False),
        ([49, 52] * 10, "ttft_mean", "unresolved", False),
        ([10], "ttft_mean", "unresolved", True),
        ([], "ttft_mean", "unresolved", False),
        ([], "ttft_p50", "unresolved", False),
        ([10] * 500, "tpot_p50", "unresolved", False),
    ],
)
def test_a_limit_over_the_stage(ttft_ms: list[float], limit: str, verdict: str, met: bool) -> None:
    found = judged(record(*ttft_ms), **{limit: 50.0})
    assert (found.verdict, met_limits(found), found.slo[limit].met) == (verdict, met, met)


@pytest.mark.parametrize(
    ("counts", "missed", "population"),
    [
        ({"failed": 30}, 30, 90),
        ({"unsent": 30}, 30, 90),
        ({"failed": 10, "unsent": 20}, 30, 90),
        ({"cancelled": 30, "unfinished": 5, "carried_over": 9}, 0, 60),
    ],
)
def test_what_failed_and_what_was_never_sent_missed_its_limit(
    counts: dict[str, int], missed: int, population: int
) -> None:
    check = judged(record(*[10] * 60, **counts), ttft_p90=1000.0).slo["ttft_p90"]
    assert (check.missed, check.population, check.met) == (missed, population, not missed)
    # The percentile falls on what has no time.
    assert check.measured_ms == (None if missed else pytest.approx(10, rel=1e-3))


@pytest.mark.parametrize("metric", ["ttft", "ttft_from_intended"])
def test_a_stream_that_fails_after_its_first_token_is_one_miss(metric: str) -> None:
    ends = {metric: [10.0] * 60 + [2000.0] * 10, f"{metric}_failed": [10.0] * 30 + [2000.0] * 5}
    check = judged(timed(record(failed=40), **ends), **{f"{metric}_p50": 1000.0}).slo[f"{metric}_p50"]
    # 30 of 75: 35 answered, 5 of them late, and 40 failed, 5 of them before any token.
    assert (check.missed, check.population, check.met) == (45, 75, False)
    assert check.measured_ms is None
    check = judged(timed(record(failed=40), **ends), **{f"{metric}_p40": 1000.0}).slo[f"{metric}_p40"]
    assert check.met
    assert check.measured_ms == pytest.approx(10, rel=1e-3)


def test_an_arrival_that_came_due_as_the_stage_ended_was_not_late_yet() -> None:
    stage = record(*[10] * 60, unsent=1)
    assert not judged(stage, ttft_p99=50.0).failures.met
    stage.metrics.unsent_wait_ns = 400_000
    found = judged(stage, ttft_p99=50.0)
    assert met_limits(found) and (found.failures.count, found.failures.unsent) == (0, 0)


def test_e2e_limit_is_unresolved_in_a_short_window() -> None:
    stage = timed(record(), ttft=[100.0] * 500, itl=[10.0] * 500, e2e=[1000.0] * 500)
    assert judged(stage, e2e_p99=9000.0).verdict == "met"
    # The ten seconds of the window are too few for streams of five.
    long = timed(record(), ttft=[100.0] * 500, itl=[40.0] * 500, e2e=[1000.0] * 500)
    assert judged(long, e2e_p99=9000.0).verdict == "unresolved"
    assert judged(long, e2e_p99=500.0).verdict == "missed"


def test_a_stream_that_is_open_counts_once_it_is_beyond_the_limit() -> None:
    stage = timed(record(*[10] * 90), ttft_censored=[20.0] * 40 + [3000.0] * 10)
    check = judged(stage, ttft_p95=1000.0).slo["ttft_p95"]
    assert (check.missed, check.population, check.met) == (10, 100, False)
    assert check.measured_ms == pytest.approx(3000, rel=1e-3)
    ends = timed(record(), e2e=[500.0] * 98, e2e_censored=[400.0] * 7 + [1500.0] * 2)
    assert judged(ends, e2e_p99=1000.0).slo["e2e_p99"].missed == 2
    # Nothing is known of those that wait for less than the limit.
    waiting = judged(timed(record(), ttft_censored=[20.0] * 400), ttft_p99=1000.0)
    assert (waiting.verdict, met_limits(waiting), waiting.slo["ttft_p99"].population) == ("unresolved", False, 0)


def test_the_mean_counts_those_beyond_the_limit_by_their_wait() -> None:
    stage = timed(record(*[10] * 9), ttft_censored=[1.0] * 20 + [1000.0])
    assert judged(stage, ttft_mean=50.0).slo["ttft_mean"].measured_ms == pytest.approx(109, rel=1e-3)


def test_gaps_of_one_stream_are_one_observation() -> None:
    check = judged(timed(record(*[10] * 100), itl=[5.0] * 4000), itl_p99=20.0).slo["itl_p99"]
    assert (check.population, check.verdict, check.met) == (100, "unresolved", True)


@pytest.mark.parametrize(("good", "verdict"), [(990, "met"), (951, "unresolved"), (900, "missed")])
def test_goodput(good: int, verdict: str) -> None:
    ended = timed(record(sent=1000, completed=990, good=good, failed=4, unsent=3, beyond=3), e2e=[500.0] * 990)
    found = judge(ended, Limits({"ttft": 50.0}))
    goodput = found.goodput
    assert goodput is not None and goodput.verdict == verdict
    assert (goodput.limits_ms, goodput.determined, goodput.share) == ({"ttft": 50.0}, 1000, good / 1000)
    assert goodput.requests_per_s == pytest.approx(5 * good / 990)
    assert goodput.met == (good >= 950)
    assert judged(record(), tpot_p99=9.0).goodput is None


@pytest.mark.parametrize(
    ("counts", "allowed", "met", "verdict"),
    [
        ({}, 0.0, True, "met"),
        ({"failed": 1}, 0.0, False, "missed"),
        ({"unsent": 1}, 0.0, False, "missed"),
        ({"carried_failed": 1}, 0.0, False, "missed"),
        ({"failed": 1}, 0.01, True, "met"),
        ({"failed": 2}, 0.01, False, "unresolved"),
        ({"failed": 9}, 0.01, False, "missed"),
        ({"failed": 100}, 1.0, True, "met"),
    ],
)
def test_failures_are_a_limit_of_their_own(counts: dict[str, int], allowed: float, met: bool, verdict: str) -> None:
    found = judged(record(*[10] * 100, sent=100 - counts.get("unsent", 0), **counts), failed=allowed, ttft_p50=50.0)
    assert (found.failures.met, found.failures.verdict) == (met, verdict)
    assert (found.failures.count, found.failures.scheduled) == (sum(counts.values()), 100)
    if not met:
        assert met_limits(found) is False


def test_without_a_limit_there_is_nothing_to_meet() -> None:
    found = judged(record(*[10] * 500, failed=3))
    assert (met_limits(found), found.verdict, found.failures.met) == (None, "unresolved", False)
    assert met_limits(judged(record(*[10] * 500), failed=0.01)) is True


def test_a_result_of_before_is_judged_by_what_it_has() -> None:
    stage = result_of(served(1))
    old = msgspec.structs.replace(stage, failures=None)
    assert met_limits(old) is None


def test_streams_that_go_in_step_are_worth_less() -> None:
    limits = Limits({"e2e_p90": 1150.0, "e2e_p99": 1200.0})
    alone, together = (judge(served(1, in_step=one), limits) for one in (False, True))
    assert alone.verdict == "met" and together.verdict == "unresolved"
    assert (together.slo["e2e_p99"].needs or 0) > 20


def test_a_stage_that_is_too_short_to_tell_is_taken_at_its_worst() -> None:
    flawless = [10.0] * 400
    assert judged(record(*flawless), ttft_p99=50.0).verdict == "met"
    few = judged(holding(16, record(*flawless[:20])), ttft_p50=50.0)
    # Four streams one after another, before it is known how they vary.
    assert (few.verdict, needed_words(few)) == ("unresolved", "ttft_p50 needs 44 more requests")
    assert judged(holding(16, record(*flawless)), ttft_p99=50.0).verdict == "unresolved"
    # What is hopeless shows all the same.
    assert judged(holding(100, record(*[90.0] * 400)), ttft_p99=50.0).verdict == "missed"


@pytest.mark.parametrize(
    ("good", "missed", "verdict"), [(14, 1, "unresolved"), (47, 3, "missed"), (48, 2, "unresolved")]
)
def test_a_miss_among_a_few_is_no_proof(good: int, missed: int, verdict: str) -> None:
    assert judged(record(*[10.0] * good, *[90.0] * missed), ttft_p99=50.0).verdict == verdict


def test_part_of_a_wave_is_no_proof() -> None:
    assert judged(holding(32, record(*[10.0] * 7, *[90.0] * 15)), ttft_p99=50.0).verdict == "unresolved"


def test_a_flawless_p99_is_sure_from_381_streams_on() -> None:
    assert 380 < streams_needed(0.99) < 381
    assert streams_needed(0.95) < streams_needed(0.95, 1) < streams_needed(0.95, 2)
    found = judged(record(*[10] * 261), ttft_p99=50.0, ttft_p50=50.0)
    assert needed_words(found) == "ttft_p99 needs 120 more requests"
    assert needed_words(judged(record(*[10] * 381), ttft_p99=50.0)) == ""
    assert needed_words(judged(record(), ttft_p99=50.0)) == "ttft_p99 needs 381 more requests"


@pytest.mark.parametrize(("measured_ms", "words"), [(1.0, ""), (49.0, "sure with 281 more requests"), (900.0, "")])
def test_nobody_asks_how_sure_a_limit_far_away_is(measured_ms: float, words: str) -> None:
    """A hundredth of the limit, or many times as much, is no close call, however few requests there were."""
    check = SloCheck(limit_ms=50.0, measured_ms=measured_ms, met=measured_ms < 50, verdict="unresolved", needs=281)
    assert sure_words(check) == words
    judgement = Judgement({"ttft_p99": check}, None, FailureCheck(0, 0, 100, 0.0, True, "met"))
    assert needed_words(judgement) == words.replace("sure with", "ttft_p99 needs")
    assert still_needed(judgement) == 281


def test_more_requests_than_anybody_waits_for_are_not_named() -> None:
    check = SloCheck(limit_ms=50.0, measured_ms=49.9, met=True, verdict="unresolved", needs=2_790_342)
    assert sure_words(check) == "too near the limit to be sure"


def test_what_misses_as_often_as_it_may_is_never_sure() -> None:
    assert needed_words(judged(record(*[10] * 990, *[90] * 10), ttft_p99=50.0)).startswith("ttft_p99 is too near")
    # Eight of a thousand, where ten are allowed: that many more of the same kind.
    assert 8_000 < (judged(record(*[10] * 992, *[90] * 8), ttft_p99=50.0).slo["ttft_p99"].needs or 0) < 9_000


@given(st.integers(1, 600), st.integers(0, 4), st.sampled_from([50, 90, 95, 99]))
def test_what_is_said_to_be_needed_is_enough_and_no_more(good: int, missed: int, percent: int) -> None:
    name = f"ttft_p{percent}"
    check = judged(record(*[10.0] * good, *[90.0] * missed), **{name: 50.0}).slo[name]
    if check.needs is None or not check.met:
        return
    for more, verdict in ((check.needs, "met"), (check.needs - 2, "unresolved")):
        later = judged(record(*[10.0] * (good + more), *[90.0] * missed), **{name: 50.0}).slo[name]
        assert later.verdict == verdict


COUNTS = st.integers(0, 200)


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.sampled_from([50, 90, 95, 99]))
def test_a_miss_more_never_mends_and_a_good_stream_more_never_breaks(
    good: int, bad: int, failed: int, unsent: int, percent: int
) -> None:
    name = f"ttft_p{percent}"

    def met(more_good: int = 0, more_bad: int = 0, **more: int) -> bool:
        counts = {"failed": failed + more.get("failed", 0), "unsent": unsent + more.get("unsent", 0)}
        values = [10.0] * (good + more_good) + [90.0] * (bad + more_bad)
        return judged(record(*values, **counts), **{name: 50.0}).slo[name].met

    now = met()
    assert now == (good + bad > 0 and 100 * good >= percent * (good + bad + failed + unsent))
    assert now or not any((met(more_bad=1), met(failed=1), met(unsent=1)))
    assert met(more_good=1) or not now


def test_sure_is_wrong_as_rarely_as_it_says() -> None:
    rng = np.random.default_rng(11)
    found = []
    for _ in range(400):
        # Exactly at its limit: of 600 streams, 5 % are beyond it on average.
        beyond = int(rng.binomial(600, 0.05))
        stage = record(*[10.0] * (600 - beyond), *[90.0] * beyond)
        found.append(judged(stage, ttft_p95=50.0).verdict)
    assert found.count("met") + found.count("missed") <= 32


def test_limits_as_the_journal_has_them() -> None:
    profile = {"slo": {"failed": 0.02, "ttft_p99": 5.0, "ttft": 3.0}, "plan": {"goodput": 0.9}}
    assert limits_of(profile) == Limits({"ttft_p99": 5.0, "ttft": 3.0}, failed=0.02, goodput=0.9)
    assert limits_of({}) == limits_of({"slo": None, "plan": None}) == Limits()


def test_any_percentile() -> None:
    assert [limit_of(name) for name in ("ttft_p97", "tpot_mean", "ttft_from_intended_p999", "itl_p5")] == [
        ("ttft", 97.0),
        ("tpot", None),
        ("ttft_from_intended", 99.9),
        ("itl", 5.0),
    ]
    assert slo_problem("itl") is None
    assert slo_problem("normalized") is not None
    checks = judged(record(10, 20, 30), ttft_p34=15.0, ttft_p33=15.0, ttft=1.0).slo
    assert {name: check.met for name, check in checks.items()} == {"ttft_p34": False, "ttft_p33": True}


def test_before_anything_is_measured_no_limit_is_missed() -> None:
    waiting = timed(record(sent=8), ttft_censored=[250.0] * 8)
    assert not is_known(judged(waiting, ttft_p99=1000.0))
    assert is_known(judged(waiting, ttft_p99=100.0))
    assert is_known(judged(record(10, sent=8), ttft_p99=1000.0))
    assert not is_known(judged(record(), failed=0.1))
    assert is_known(judged(record(10), failed=0.1))
