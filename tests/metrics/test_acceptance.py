"""Whether a box is as good as demanded: p-values and intervals agree, and errors are as rare as stated."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.acceptance import (
    FALSE_FAIL,
    FALSE_PASS,
    OWN_STARTS,
    holm,
    level_of,
    of_shares,
    of_trend,
    outcome_of,
    over_starts,
    prediction_limit,
    rate_at_most,
    spread_of,
    starts_needed,
    trials_needed,
)
from loadgen.schema.certificate import Spread

VALUES = st.lists(st.floats(50, 200), min_size=2, max_size=8)
LEVELS = st.sampled_from([0.0001, 0.001, 0.01, 0.05])


@given(VALUES, st.floats(50, 200), st.booleans(), LEVELS, LEVELS)
def test_the_interval_says_what_the_p_values_say(
    values: list[float], edge: float, lower_is_better: bool, fail: float, not_pass: float
) -> None:
    trial = over_starts(values, edge, lower_is_better=lower_is_better)
    low, high = trial.ends(fail, not_pass)
    assert low <= trial.value <= high
    if abs(edge - low) > 1e-6 and abs(edge - high) > 1e-6:
        assert (trial.p_good <= fail) is (edge < low if lower_is_better else edge > high)
        assert (trial.p_bad <= not_pass) is (edge > high if lower_is_better else edge < low)


@given(st.integers(1, 300), st.integers(0, 300), st.floats(0.01, 0.99), LEVELS, LEVELS)
def test_limits_of_a_share_say_what_its_p_values_say(
    trials: int, good: int, edge: float, fail: float, not_pass: float
) -> None:
    trial = of_shares([min(good, trials)], [trials], edge)
    low, high = trial.ends(fail, not_pass)
    assert 0 <= low <= trial.value <= high <= 1
    if abs(edge - low) > 1e-6 and abs(edge - high) > 1e-6:
        assert (trial.p_good <= fail) is (edge > high)
        assert (trial.p_bad <= not_pass) is (edge < low)


def test_failures_that_come_together_are_less_sure() -> None:
    alike, together = of_shares([90, 90, 90], [100] * 3, 0.95), of_shares([100, 100, 70], [100] * 3, 0.95)
    assert alike.value == together.value
    assert alike.p_good < 0.01 < 0.1 < together.p_good
    assert together.ends(0.01, 0.05)[0] < alike.ends(0.01, 0.05)[0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), LEVELS)
def test_holm_rejects_the_smallest_first(p_values: list[float], level: float) -> None:
    held = holm(p_values, level)
    rejected = [p for p, one in zip(p_values, held, strict=True) if one.is_rejected]
    kept = [p for p, one in zip(p_values, held, strict=True) if not one.is_rejected]
    assert all(p <= level for p in rejected)
    assert not rejected or not kept or max(rejected) <= min(kept)
    assert any(one.is_rejected for one in held) is (min(p_values) <= level / len(p_values))


def test_all_judgements_together_spend_no_more_than_the_whole() -> None:
    levels = [level_of(look) for look in range(1, 2000)]
    assert sum(level.fail for level in levels) < FALSE_FAIL
    assert sum(level.not_pass for level in levels) < FALSE_PASS
    assert all(one.fail > other.fail for one, other in pairwise(levels))


@pytest.mark.parametrize("goes_on", [False, True])
def test_boxes_exactly_as_good_as_demanded_hardly_ever_fail(goes_on: bool) -> None:
    noise, boxes = random.Random(7), 600
    failed = 0
    for _ in range(boxes):
        figures = [[noise.gauss(100, 1) for _ in range(6)] for _ in range(8)]
        for look, starts in enumerate((4, 5, 6) if goes_on else (4,), start=1):
            level = level_of(look)
            trials = [over_starts(values[:starts], 100, lower_is_better=True) for values in figures]
            held = holm([trial.p_good for trial in trials], level.fail)
            if any(outcome_of(*pair, level) == "fail" for pair in zip(trials, held, strict=True)):
                failed += 1
                break
    assert failed <= 2 * FALSE_FAIL * boxes


def test_what_is_known_of_other_boxes_is_pooled_unless_this_one_differs_more() -> None:
    known = Spread(0.01, 16, "others")
    pooled = spread_of([100, 101, 102], known)
    assert pooled.freedom == 18 and pooled.source == f"others, with {OWN_STARTS}"
    assert 0.0098 < pooled.share < 0.0101
    own = spread_of([100, 110, 120], known)
    assert (own.freedom, own.source) == (2, OWN_STARTS) and own.share == pytest.approx(1 / 11)
    stated = Spread(0.02, None, "stated")
    assert spread_of([100, 101, 102], stated) is stated
    assert spread_of([100.0] * 3, None).share == 0.001  # the resolution of a histogram


@pytest.mark.parametrize("edge", [103.0, 105.0, 95.0])
def test_as_many_more_starts_as_are_named_would_tell(edge: float) -> None:
    values, level = [99.0, 100.0, 101.0], level_of(2)
    more = starts_needed(values, edge, spread_of(values, None), level=level)
    assert more is not None
    spread = 1 / math.sqrt(2 / (2 + more))  # so that the deviation stays 1
    longer = [*values, *[100.0] * more]
    longer = [100 + (value - 100) * spread for value in longer]
    trial = over_starts(longer, edge, lower_is_better=True)
    assert min(trial.p_good, trial.p_bad) <= max(level)
    assert starts_needed(values, 100.01, spread_of(values, None), level=level) is None


def test_as_many_more_trials_as_are_named_would_tell() -> None:
    more = trials_needed(10, 100, 0.85, level_of(2))
    assert more is not None
    count = 100 + more
    assert of_shares([round(0.9 * count)], [count], 0.85).p_bad <= level_of(2).not_pass
    assert trials_needed(15, 100, 0.85, level_of(2)) is None


@pytest.mark.parametrize(
    ("grown", "good", "bad"),
    [(0.0, False, True), (0.1, False, False), (0.4, True, False)],
    ids="flat allowed more".split(),
)
def test_a_trend_against_the_growth_that_is_allowed(grown: float, good: bool, bad: bool) -> None:
    noise = random.Random(3)
    trial = of_trend([100 * (1 + grown) ** (n / 23) * noise.gauss(1, 0.01) for n in range(24)], 0.1)
    assert trial.value == pytest.approx(grown, abs=0.03)
    assert (trial.p_good < 0.001, trial.p_bad < 0.01) == (good, bad)


def test_one_more_box_of_the_same_kind_is_hardly_ever_beyond_the_limit() -> None:
    noise, draws, level = random.Random(5), 3000, 0.05
    beyond = 0
    for _ in range(draws):
        *others, one = (noise.gauss(100, 1) for _ in range(9))
        beyond += one > prediction_limit(others, level, upper=True)
    assert 0.035 < beyond / draws < 0.065


def test_none_in_t_hours() -> None:
    assert rate_at_most(24.0) == pytest.approx(3 / 24, rel=0.01)
