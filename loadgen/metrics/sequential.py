"""Sequential tests of whether the output has changed or a figure rises, valid however often they are evaluated.

Each bets against "nothing has changed": a wealth that starts at 1 is multiplied by factors whose mean is at most 1
while that is true, so the probability that it ever reaches 1/a is at most a (Ville's inequality; Howard, Ramdas,
McAuliffe, Sekhon, Time-uniform Chernoff bounds, 2020). Several bets share the wealth, for small and large changes. The
bound `FALSE_ALARMS` therefore holds for a run of any length.

A rise is tested on ranks: while the order of values means nothing, the newest is as likely below the middle of all so
far as above it, whatever their distribution, so that a bet on "above" has no gain on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean

FALSE_ALARMS = 0.001
"""Upper bound of the probability that a healthy run is accused: half for the tests, half for the unknown noise."""
TOLERANCE = 0.02
"""Nats per token by which scores under load may differ: another batch size sums in another order."""
MIN_NOISE = 0.02  # the assumed noise of a score is at least this, even if the idle engine repeats itself exactly
MAX_GAIN = math.log(1000.0)  # of one score: none raises the alarm alone
MAX_CHANGED = 0.25
"""The largest share of healthy greedy answers that differ from the idle one within its first quarter: near ties are
rarer, and fall anywhere."""
_STEPS = tuple(0.25 * 2**power / MIN_NOISE for power in range(6))
_RATES = (0.35, 0.5, 0.7, 0.9, 0.99)
_STAKES = (0.3, 0.6, 0.95)
MAX_MEANS = 32


class Evidence:
    """The logarithm of the wealth of several bets; its maximum so far counts.

    From the nth canary on, each bet stakes 1/(n(n+1)) of its wealth, so that a late fault is not outweighed by earlier
    good results; what is not staked yet keeps its value.
    """

    __slots__ = ("_count", "_log_laid", "log_most")

    def __init__(self, bets: int) -> None:
        self._count = 0
        self._log_laid = [-math.inf] * bets
        self.log_most = 0.0

    def gain(self, log_factors: Sequence[float]) -> None:
        self._count += 1
        laid_now, kept = -math.log(self._count * (self._count + 1)), -math.log(self._count + 1)
        self._log_laid = [
            _log_sum((laid, laid_now)) + gain for laid, gain in zip(self._log_laid, log_factors, strict=True)
        ]
        mean_laid = _log_sum(self._log_laid) - math.log(len(self._log_laid))
        self.log_most = max(self.log_most, _log_sum((mean_laid, kept)))

    def is_enough(self, false_alarms: float) -> bool:
        """Whether to raise the alarm, if false alarms may have at most this probability."""
        return self.log_most >= -math.log(false_alarms)


def _log_sum(logarithms: Sequence[float]) -> float:
    highest = max(logarithms)
    return highest + math.log(sum(math.exp(each - highest) for each in logarithms))


class ScoreDrift(Evidence):
    """Whether scores have moved from the idle ones, down or up; `noise` is their assumed standard deviation.

    Assumes sub-Gaussian noise. Capping a gain keeps the bound, as it only reduces the wealth.
    """

    __slots__ = ("_noise", "_tolerance")

    def __init__(self, noise: float, tolerance: float) -> None:
        super().__init__(2 * len(_STEPS))
        self._noise = max(noise, MIN_NOISE)
        self._tolerance = tolerance

    def add(self, difference: float) -> None:
        """Add a score minus the idle one of its text, in nats per token."""
        steps = [step * MIN_NOISE / self._noise for step in _STEPS]
        self.gain(
            [
                min(MAX_GAIN, step * (side * difference - self._tolerance) - (step * self._noise) ** 2 / 2)
                for side in (-1, 1)
                for step in steps
            ]
        )


class AnswerDrift(Evidence):
    """Whether more greedy answers leave the idle ones early than near ties explain."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(len(_RATES))

    def add(self, *, changed: bool) -> None:
        """`changed`: it differs from the idle answer within the first quarter."""
        pairs = ((rate, MAX_CHANGED) if changed else (1 - rate, 1 - MAX_CHANGED) for rate in _RATES)
        self.gain([math.log(bet / odds) for bet, odds in pairs])


def share_of_alarms(stage: int, instance: int) -> float:
    """The share of all false alarms for one of the two tests of a stage on a server; all shares add up to half.

    Both indices count from 0 in order of appearance; their final numbers need not be known.
    """
    return FALSE_ALARMS / 4 / ((stage + 1) * (stage + 2)) / ((instance + 1) * (instance + 2))


def noise_at_most(spread: float, freedom: int) -> float:
    """Upper bound of the idle scores' standard deviation, given the observed `spread`; 0 if they never differ.

    The chi-square quantile by Wilson and Hilferty, whose error is on the safe side.
    """
    if not spread or freedom < 1:
        return spread
    part = 2 / (9 * freedom)
    z = NormalDist().inv_cdf(FALSE_ALARMS / 4)
    return spread / math.sqrt(max(1e-3, 1 - part + z * math.sqrt(part)) ** 3)


def least_drift(noise: float, repeats: float, texts: int) -> float:
    """The smallest difference from the mean of `repeats` idle scores that tolerance and noise do not explain."""
    z = -NormalDist().inv_cdf(FALSE_ALARMS / 4 / max(1, texts) / 2)
    return TOLERANCE + z * noise / math.sqrt(max(1.0, repeats))


def agreement(one: str, other: str) -> tuple[float, int | None]:
    """The share of two answers before they differ, and the first differing character; None if equal."""
    if one == other:
        return 1.0, None
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return same / max(len(one), len(other)), same


def rise(values: Sequence[float], false_alarms: float) -> float | None:
    """The last third's mean over the first third's, minus 1; None if that may be chance."""
    third = len(values) // 3
    first = fmean(values[:third]) if third else 0.0
    is_sure = evidence_of_rise(values) >= -math.log(false_alarms)
    return fmean(values[-third:]) / first - 1 if first > 0 and is_sure else None


def evidence_of_rise(values: Sequence[float]) -> float:
    """The logarithm of the highest wealth of the bets that they rise; e to minus this bounds the p-value."""
    test = Evidence(len(_STAKES))
    for count in range(2, len(values) + 1):
        newest, seen = values[count - 1], values[:count]
        less, same = sum(value < newest for value in seen), seen.count(newest)
        above = (2 * less + same) / count - 1  # how far the newest is above the middle of all: from -1 to 1
        test.gain([math.log1p(stake * above) for stake in _STAKES])
    return test.log_most


def means(values: Sequence[float]) -> list[float]:
    """At most `MAX_MEANS` means of neighbours."""
    size = max(1, -(-len(values) // MAX_MEANS))
    return [fmean(values[at : at + size]) for at in range(0, len(values) - size + 1, size)]
