"""The highest load that meets the limits, on servers whose limit is known."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.difference import share_interval
from loadgen.metrics.result import SloVerdict
from loadgen.plan import Measured, Plan, Stage, next_stages
from tests.plan.probing import play, profile, search

SLO = {"ttft_p99": "2s"}


def sure(limit: float) -> Callable[[Stage], Measured]:
    """Meets up to a load, and no further; every measurement is sure of it."""

    def measure(stage: Stage) -> Measured:
        met = stage.load <= limit
        return Measured(stage=stage, met=met, verdict="met" if met else "missed")

    return measure


def noisy(limit: float, seed: int) -> Callable[[Stage], Measured]:
    """The share of good streams falls from 1 to 0 around the limit; more streams are seen in a longer stage."""
    random = Random(seed)

    def measure(stage: Stage) -> Measured:
        share = min(1.0, max(0.0, 0.95 + 0.5 * (1 - stage.load / limit)))
        count = int(50 * (stage.duration_s or 0))
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
    assert "goes no higher" in found.why
    found, loads = search(sure(1), plan={"search": "slo", "least": 3}, slo=SLO, load={"concurrency": 8})
    assert (loads, found.found, found.resolved) == ([8, 4, 3], None, False)
    assert "misses the limits, and the search goes no lower" in found.why


def test_the_bounds_of_the_answer_are_looked_at_again_for_longer() -> None:
    def measure(stage: Stage) -> Measured:
        met = stage.load <= 20
        unsure = stage.load == 16 and (stage.duration_s or 0) < 20
        return Measured(stage=stage, met=met, verdict="unresolved" if unsure else "met" if met else "missed")

    plan = next_stages(profile(plan={"search": "slo", "precision": 0.5}, slo=SLO))
    found, stages = play(plan, measure)
    assert [(stage.load, stage.duration_s, stage.longest_s) for stage in stages] == [
        (8, 10, 120),
        (16, 10, 120),
        (32, 10, 120),
        (24, 10, 120),
        (16, 20, 240),
    ]
    assert found is not None
    assert found.resolved


def test_what_stays_unsure_is_unresolved() -> None:
    def measure(stage: Stage) -> Measured:
        return Measured(stage=stage, met=stage.load <= 10, verdict="missed" if stage.load > 11 else "unresolved")

    found, loads = search(measure, plan={"search": "slo"}, slo=SLO)
    assert (found.found, found.low, found.high, found.resolved) == (10, None, 12, False)
    assert loads.count(10) == loads.count(11) == 3
    assert "not with 95 % confidence" in found.why


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
