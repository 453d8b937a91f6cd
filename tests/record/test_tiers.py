"""Several levels of service from one run: the highest load that meets each, and how sure that is."""

from typing import Any

import msgspec
import pytest

from loadgen.metrics.histogram import Histogram
from loadgen.record.record import Record
from loadgen.record.slo import limits_of, tier_checks, tier_results
from loadgen.schema.deltas import ClientDelta, LoadBin, StageDelta
from loadgen.schema.journal import StageEnded, StageStarted, Ticked
from loadgen.schema.result import TierCheck, TierResult
from tests.journal import STARTED
from tests.report.test_text import stage as result_stage

TIERS = [{"tokens_per_s": 100.0, "ttft_p95": 1000.0}, {"tokens_per_s": 30.0}]
FAST, SLOW = "100 tok/s, ttft_p95 1 s", "30 tok/s"


def encoded(ms: float, count: int = 1000) -> Any:
    histogram = Histogram()
    histogram.record_ns([int(ms * 1e6)] * count)
    return histogram.encode()


def measured(record: Record, index: int, concurrency: int, tpot_ms: float, ttft_ms: float = 100.0) -> None:
    """A stage of a second, with a thousand streams that are all alike."""
    t_s = float(index)
    record.apply(StageStarted(t_s=t_s, index=index, concurrency=concurrency, rate=None, isl=16, osl=16))
    latency = {"tpot": encoded(tpot_ms), "ttft": encoded(ttft_ms)}
    delta = StageDelta(sent=1000, completed=1000, window_start_ns=0, window_end_ns=10**9, latency=latency)
    record.apply(Ticked(t_s=t_s + 1, span_s=1.0, stages={index: delta}, client=ClientDelta(), held=0))
    record.apply(StageEnded(t_s + 1, index, "its time was up"))


def with_tiers() -> Record:
    record = Record()
    record.apply(msgspec.structs.replace(STARTED, profile={"tiers": TIERS}))
    return record


def found(record: Record) -> dict[str, TierResult]:
    return {one.tier: one for one in record.result().tiers}


def test_each_tier_has_the_highest_load_that_meets_it() -> None:
    record = with_tiers()
    for index, (concurrency, tpot_ms) in enumerate([(8, 5.0), (16, 9.0), (32, 20.0), (64, 30.0)]):
        measured(record, index, concurrency, tpot_ms)
    tiers = found(record)
    assert (tiers[FAST].found, tiers[FAST].missed, tiers[FAST].by) == (16, 32, "concurrency")
    assert (tiers[SLOW].found, tiers[SLOW].missed, tiers[SLOW].words) == (64, None, "64 or more")


def test_a_load_above_one_that_missed_does_not_count() -> None:
    record = with_tiers()
    for index, (concurrency, tpot_ms) in enumerate([(8, 5.0), (16, 20.0), (32, 5.0)]):
        measured(record, index, concurrency, tpot_ms)
    assert (found(record)[FAST].found, found(record)[FAST].missed) == (8, 16)


def test_a_load_that_was_measured_again_counts_as_it_was_last() -> None:
    record = with_tiers()
    for index, tpot_ms in enumerate([20.0, 5.0]):
        measured(record, index, 8, tpot_ms)
    assert found(record)[FAST].words == "8 or more"


def test_every_limit_of_a_tier_counts() -> None:
    record = with_tiers()
    measured(record, 0, 8, 5.0, ttft_ms=1500.0)
    assert (found(record)[FAST].words, found(record)[SLOW].words) == ("below 8", "8 or more")


def test_steps_of_a_ramp_are_judged_by_itl_and_without_confidence() -> None:
    record = with_tiers()
    steps = ((0.0, 8.0), (1.0, 16.0))
    record.apply(StageStarted(t_s=0.0, index=0, concurrency=8, rate=None, isl=16, osl=16, steps=steps))
    bins = {
        step: LoadBin(span_ns=10**9, ttft=encoded(100.0), itl=encoded(itl_ms)) for step, itl_ms in ((0, 5.0), (1, 50.0))
    }
    record.apply(Ticked(t_s=1, span_s=1.0, stages={0: StageDelta(bins=bins)}, client=ClientDelta(), held=0))
    tiers = found(record)
    assert (tiers[FAST].found, tiers[FAST].low, tiers[FAST].words) == (8, None, "unknown; measured 8, not 16")
    assert tiers[SLOW].missed == 16


def test_nothing_measured_is_no_verdict() -> None:
    record = with_tiers()
    record.apply(StageStarted(t_s=0.0, index=0, concurrency=8, rate=None, isl=16, osl=16))
    assert record.result().tiers == ()
    assert tier_checks(record.stages[0], limits_of({"tiers": TIERS}).tiers) == ()


@pytest.mark.parametrize(
    ("met", "words"),
    [
        ([False, True], "unknown; measured below 8, but 16 met it"),
        ([True, True], "unknown; measured 16 or more"),
        ([False, False], "unknown; measured below 8"),
    ],
)
def test_unresolved_checks_are_no_answer(met: list[bool], words: str) -> None:
    checks = [TierCheck("t", load, one, "unresolved") for load, one in zip((8.0, 16.0), met, strict=True)]
    stage = msgspec.structs.replace(result_stage(80), tiers=tuple(checks))
    assert [one.words for one in tier_results([stage])] == [words]


@pytest.mark.parametrize("profile", [{}, {"tiers": []}])
def test_without_tiers_there_is_none(profile: dict[str, Any]) -> None:
    assert limits_of(profile).tiers == ()
