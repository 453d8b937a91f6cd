"""Sequential tests: silent on what is healthy for as long as anyone looks, quick on what is not."""

import math
from itertools import count
from random import Random

import pytest

from loadgen.metrics.sequential import (
    FALSE_ALARMS,
    MAX_CHANGED,
    MIN_NOISE,
    TOLERANCE,
    AnswerDrift,
    ScoreDrift,
    least_drift,
    noise_at_most,
    share_of_alarms,
)

FIRST = share_of_alarms(0, 0)
AN_HOUR = 900  # scores of a server, at one canary in two seconds


def scores_until_alarm(drift: float, noise: float = 0.0) -> int:
    test, random = ScoreDrift(noise, TOLERANCE), Random(1)
    for number in count(1):
        test.add(random.gauss(drift, noise))
        if test.is_enough(FIRST):
            return number
    raise AssertionError


@pytest.mark.parametrize(("drift", "most"), [(0.5, 2), (-0.5, 2), (0.1, 3), (-0.06, 8), (0.05, 15), (0.04, 30)])
def test_the_larger_a_drift_the_sooner_it_is_found(drift: float, most: int) -> None:
    assert 2 <= scores_until_alarm(drift) <= most


@pytest.mark.parametrize("mean", [TOLERANCE, -TOLERANCE])
def test_an_hour_of_scores_that_only_noise_moves_raises_no_alarm(mean: float) -> None:
    for seed in range(8):
        random, test = Random(seed), ScoreDrift(0.0, TOLERANCE)
        for _ in range(AN_HOUR):
            test.add(random.gauss(mean, MIN_NOISE))
        assert not test.is_enough(FALSE_ALARMS)


def test_no_single_score_is_enough_however_wrong() -> None:
    test = ScoreDrift(0.0, TOLERANCE)
    test.add(-20.0)
    assert not test.is_enough(FIRST)
    test.add(-20.0)
    assert test.is_enough(FIRST)


def test_what_was_evident_once_stays_so() -> None:
    test = ScoreDrift(0.0, TOLERANCE)
    for difference in (-1.0, -1.0, *[0.0] * 500):
        test.add(difference)
    assert test.is_enough(FIRST)


def test_near_ties_of_an_hour_raise_no_alarm_and_ten_changed_answers_do() -> None:
    for seed in range(6):
        random, test = Random(seed), AnswerDrift()
        for _ in range(AN_HOUR):
            test.add(changed=random.random() < 0.9 * MAX_CHANGED)
        assert not test.is_enough(FALSE_ALARMS)
    wrong = AnswerDrift()
    for _ in range(10):
        wrong.add(changed=True)
    assert wrong.is_enough(FIRST)


def test_what_goes_wrong_after_an_hour_is_found_nearly_as_soon() -> None:
    scores, answers = ScoreDrift(0.0, TOLERANCE), AnswerDrift()
    for _ in range(AN_HOUR):
        scores.add(0.0)
        answers.add(changed=False)
    for _ in range(6):
        scores.add(-0.1)
    assert scores.is_enough(FIRST)
    for _ in range(18):
        answers.add(changed=True)
    assert answers.is_enough(FIRST)


def test_all_stages_on_all_servers_together_take_half_of_the_false_alarms() -> None:
    together = sum(2 * share_of_alarms(stage, server) for stage in range(200) for server in range(200))
    assert together < FALSE_ALARMS / 2
    assert together == pytest.approx(FALSE_ALARMS / 2, rel=0.02)


def test_the_noise_is_not_underestimated() -> None:
    random, missed = Random(7), 0
    for _ in range(2000):
        squares = sum(random.gauss(0.0, 1.0) ** 2 for _ in range(10))
        missed += noise_at_most(math.sqrt(squares / 10), 10) < 1.0
    assert missed <= 2
    assert noise_at_most(0.0, 10) == 0.0
    assert least_drift(0.0, 3, 5) == TOLERANCE < least_drift(0.01, 3, 5)
