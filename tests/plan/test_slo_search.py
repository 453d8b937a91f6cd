"""The highest load that meets the limits, on servers whose limit is known."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.difference import share_interval
from loadgen.plan.from_profile import next_stages, search_stage
from loadgen.plan.stage import Measured, Plan, Stage
from loadgen.schema.shared import SloVerdict
from tests.plan.probing import play, profile, search

SLO = {"ttft_p99": "2s"}


def sure(limit: float) -> Callable[[Stage], Measured]:
    """Meets up to a load, and no further; every measurement is sure of it."""

    def measure(stage: Stage) -> Measured:
        met = stage.load <= limit
        return Measured(stage=stage, met=met, verdict="met" if met else "missed")

    return measure


def noisy(limit: float, seed: int) -> Callable[[Stage], Measured]:
    """The share of good streams falls from 1 to 0 around the limit; more are seen where it must be sure."""
    random = Random(seed)

    def measure(stage: Stage) -> Measured:
        share = min(1.0, max(0.0, 0.95 + 0.5 * (1 - stage.load / limit)))
        count = 2000 if stage.certain else 500
        good = sum(random.random() < share for _ in range(count))
        low, high = share_interval(good / count, count, 0.95)
        verdict: SloVerdict = "met" if low >= 0.95 else "missed" if high < 0.95 else "unresolved"
        return Measured(stage=stage, met=good >= 0.95 * count, verdict=verdict)

    return measure


def test_doubling_then_bisection() -> None:
    found, loads = search(sure(45), plan={"search": "slo"}, slo=SLO, load={"concurrency": 4})
    assert loads == [4, 8, 16, 32, 64, 48, 40, 44, 46]
    assert (found.found, found.low, found.high, found.resolved, found.probes) == (44, 44, 46, True, 9)
    assert found.why == "concurrency 44 meets the limits, 46 does not"


@given(limit=st.integers(1, 1023), start=st.integers(1, 2000))
def test_every_limit_is_found_from_every_start(limit: int, start: int) -> None:
    found, loads = search(sure(limit), plan={"search": "slo"}, slo=SLO, load={"concurrency": start})
    assert found.resolved
    assert found.found is not None
    assert found.found <= limit <= max(found.found + 1, found.found * 1.05)
    assert len(set(loads)) == len(loads) <= 20


@given(limit=st.floats(0.5, 900))
def test_rates_too(limit: float) -> None:
    plan = {"search": "slo", "by": "rate", "least": 0.1}
    found, _ = search(sure(limit), plan=plan, slo=SLO, load={"rate": 5})
    assert found.found == pytest.approx(limit, rel=0.06)
    assert found.by == "rate"


def test_the_bounds_of_the_search() -> None:
    found, loads = search(sure(10_000), plan={"search": "slo", "most": 100}, slo=SLO, load={"concurrency": 8})
    assert (loads[-1], found.found, found.high, found.resolved) == (100, 100, None, False)
    assert "raise plan.most" in found.why
    found, loads = search(sure(1), plan={"search": "slo", "least": 3}, slo=SLO, load={"concurrency": 8})
    assert (loads, found.found, found.resolved) == ([8, 4, 3], None, False)
    assert "the lowest tried, misses the limits" in found.why


def test_the_bounds_of_the_answer_are_looked_at_again_until_they_are_sure() -> None:
    def measure(stage: Stage) -> Measured:
        met = stage.load <= 20
        unsure = stage.load in (16, 24) and not stage.certain
        return Measured(stage=stage, met=met, verdict="unresolved" if unsure else "met" if met else "missed")

    plan = next_stages(profile(plan={"search": "slo", "precision": 0.5}, slo=SLO))
    found, stages = play(plan, measure)
    assert [(stage.load, stage.certain, stage.min_completed) for stage in stages] == [
        (8, False, 50),
        (16, False, 50),
        (32, False, 50),
        (24, False, 50),
        (16, True, 381),
        (24, True, 381),
    ]
    assert found is not None
    assert (found.found, found.low, found.high, found.resolved) == (16, 16, 24, True)
    assert [(one.load, one.verdict) for one in found.points][-2:] == [(16, "met"), (24, "missed")]


def unsure_near(limit: float, band: float) -> Callable[[Stage], Measured]:
    """Nothing within a share of the limit can be distinguished."""

    def measure(stage: Stage) -> Measured:
        met, near = stage.load <= limit, abs(stage.load - limit) <= band * limit
        needs = "ttft_p99 needs 99 more requests" if near else ""
        return Measured(stage=stage, met=met, verdict="unresolved" if near else "met" if met else "missed", needs=needs)

    return measure


def test_where_a_bound_stays_unsure_one_farther_off_is_measured() -> None:
    found, loads = search(unsure_near(100, 0.04), plan={"search": "slo"}, slo=SLO)
    assert found.resolved and found.found is not None
    assert found.low is not None and found.high is not None
    assert found.low < 96 <= found.found <= 100 < 104 < found.high
    assert found.high - found.low <= 0.3 * found.found
    assert f"{found.low:g} surely does, {found.high:g} surely does not" in found.why
    assert max(loads.count(load) for load in loads) <= 2


@given(limit=st.integers(1, 500), band=st.floats(0, 1), start=st.integers(1, 1000))
def test_search_ends_and_reports_nothing_false(limit: int, band: float, start: int) -> None:
    found, loads = search(unsure_near(limit, band), plan={"search": "slo"}, slo=SLO, load={"concurrency": start})
    assert len(loads) <= 30
    assert found.low is None or found.low <= limit
    assert found.high is None or found.high > limit
    if found.resolved:
        assert found.found is not None and found.low is not None and found.high is not None
        assert found.low <= found.found < found.high


@given(limit=st.floats(0.3, 600), band=st.floats(0.4, 1), start=st.floats(0.3, 600))
def test_a_rate_that_cannot_be_measured_well_enough_is_given_up_soon(limit: float, band: float, start: float) -> None:
    plan = {"search": "slo", "by": "rate", "least": 0.1}
    found, stages = play(next_stages(profile(plan=plan, slo=SLO, load={"rate": start})), unsure_near(limit, band))
    assert found is not None and not found.resolved
    assert sum(stage.certain for stage in stages) <= 8


def test_what_stays_unsure_is_unresolved_and_says_what_it_would_take() -> None:
    found, loads = search(unsure_near(100, 0.5), plan={"search": "slo"}, slo=SLO)
    assert found.found is not None and not found.resolved
    assert "not with 95 % confidence: at concurrency" in found.why
    assert found.why.endswith("ttft_p99 needs 99 more requests")
    assert len(loads) <= 20


def test_a_search_asks_for_as_many_streams_as_its_limits_need() -> None:
    def completed(**parts: Any) -> int:
        return search_stage(profile(**parts), 8, certain=True).min_completed

    plan = {"search": "slo"}
    assert completed(plan=plan, slo={"ttft_p99": "2s", "tpot_p50": "9ms"}) == 381
    assert completed(plan=plan, slo={"ttft_p999": "2s"}) == 3838
    assert completed(plan=plan, slo={"ttft": "2s"}) == 73
    assert completed(plan=plan, slo={"ttft_mean": "2s"}) == 50
    assert completed(plan=plan | {"completed": 7}, slo={"ttft_p99": "2s"}) == 7
    assert search_stage(profile(plan={"search": "knee"}), 8).judged is None


@pytest.mark.parametrize("seed", range(20))
def test_with_noise_the_answer_is_near_the_truth(seed: int) -> None:
    found, _ = search(noisy(100, seed), plan={"search": "slo"}, slo=SLO)
    assert found.found is not None
    assert 85 <= found.found <= 115


def test_a_stage_that_the_operator_broke_off_is_no_evidence() -> None:
    plan: Plan = next_stages(profile(plan={"search": "slo"}, slo=SLO))
    first = plan([])
    assert isinstance(first, Stage)
    assert plan([Measured(stage=first, met=True, abandoned=True)]) == first


def test_a_server_that_answers_nothing_ends_the_search() -> None:
    found, _ = search(lambda stage: Measured(stage=stage), plan={"search": "slo"}, slo=SLO)
    assert (found.found, found.resolved) == (None, False)


def test_tiers_are_searched_one_after_the_other() -> None:
    """What was measured for one tier is known to the next."""
    bounds = (12, 45)

    def measure(stage: Stage) -> Measured:
        of_tiers = [stage.load <= bound for bound in bounds]
        return Measured(stage=stage, tiers=tuple((met, "met" if met else "missed") for met in of_tiers))

    tiers = [{"tokens_per_s": 100}, {"tokens_per_s": 30}]
    found, loads = search(measure, plan={"search": "slo"}, tiers=tiers, load={"concurrency": 4})
    assert (found.found, found.high) == (44, 46)
    assert loads == [4, 8, 16, 12, 14, 13, 32, 64, 48, 40, 44, 46]
