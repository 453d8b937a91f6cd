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
    means,
    noise_at_most,
    rise,
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


NOISES = {
    "normal": lambda noise: noise.gauss(100, 10),
    "heavy tails": lambda noise: noise.lognormvariate(0, 2),
    "few values": lambda noise: noise.choice([1.0, 2.0]),
}


@pytest.mark.parametrize("name", NOISES)
def test_a_flat_series_is_accused_at_most_as_often_as_stated(name: str) -> None:
    noise, series, bound = Random(7), 1500, 0.05
    accused = sum(rise([NOISES[name](noise) for _ in range(24)], bound) is not None for _ in range(series))
    assert accused <= bound * series


@pytest.mark.parametrize("noise_share", [0.0, 0.02])
def test_a_leak_is_found(noise_share: float) -> None:
    noise = Random(7)
    found = rise([100 + 2 * n + 100 * noise.gauss(0, noise_share) for n in range(24)], 0.001)
    assert found == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0],
        [0.0] * 24,
        [5.0] * 24,
        [100.0 - n for n in range(24)],
        [100.0 - (n % 2) for n in range(24)],
        [100.0] * 12 + [120.0] * 12,  # one step, such as a buffer that was allocated
    ],
)
def test_what_does_not_rise_on_and_on_is_not_accused(values: list[float]) -> None:
    assert rise(values, 0.001) is None


def test_many_samples_become_few_means() -> None:
    assert means([1.0, 3.0]) == [1.0, 3.0]
    assert means([float(n // 4) for n in range(128)]) == [float(n) for n in range(32)]
    assert means([]) == []
