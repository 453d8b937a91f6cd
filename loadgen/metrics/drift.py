"""Sequential tests of whether the output has changed: one may look after each canary, for as long as a run goes.

Each bets against "nothing has changed": a wealth that begins at 1 is multiplied by a factor whose mean is at most 1
while that is true, so that the chance of its ever reaching 1/a is at most a, however often one looks (Ville's
inequality; Howard, Ramdas, McAuliffe, Sekhon, Time-uniform Chernoff bounds, 2020). Several bets share the wealth, for
small changes and large. An hour's bound is therefore that of any run: `FALSE_ALARMS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

FALSE_ALARMS = 0.001
"""The most that a run of a healthy engine is accused: half for the tests, half for what is not known of the noise."""
TOLERANCE = 0.02
"""Nats a token by which scores beside a load may differ for good: a batch of another size adds in another order."""
LEAST_NOISE = 0.02  # taken for the noise of a score even where the idle engine repeats itself exactly
MOST_GAIN = math.log(1000.0)  # of one score: none raises the alarm alone
MOST_CHANGED = 0.25
"""The largest share of healthy greedy answers that differ from the idle one within its first quarter: near ties are
rarer, and fall anywhere."""
_STEPS = tuple(0.25 * 2**power / LEAST_NOISE for power in range(6))
_RATES = (0.35, 0.5, 0.7, 0.9, 0.99)


class Evidence:
    """The wealth of several bets, as a logarithm; it counts as it was at its highest.

    Each bet lays 1/(n(n+1)) of its wealth from the nth canary on, so that what goes wrong late is not held against all
    that was right before; what is not laid yet keeps its value.
    """

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
        """Whether a test may raise the alarm that does so wrongly at most with this probability."""
        return self.log_most >= -math.log(false_alarms)


def _log_sum(logarithms: Sequence[float]) -> float:
    highest = max(logarithms)
    return highest + math.log(sum(math.exp(each - highest) for each in logarithms))


class ScoreDrift(Evidence):
    """Whether scores have moved from the idle ones, down or up; `noise` is what is taken for their standard deviation.

    Sub-Gaussian noise is assumed. A gain that is capped keeps the bound: it can only make less of it.
    """

    def __init__(self, noise: float, tolerance: float) -> None:
        super().__init__(2 * len(_STEPS))
        self._noise = max(noise, LEAST_NOISE)
        self._tolerance = tolerance
        self._steps = [step * LEAST_NOISE / self._noise for step in _STEPS]

    def add(self, difference: float) -> None:
        """A score less the idle one of its text, in nats a token."""
        self.gain([self._gain(side * difference, step) for side in (-1, 1) for step in self._steps])

    def _gain(self, beyond: float, step: float) -> float:
        return min(MOST_GAIN, step * (beyond - self._tolerance) - (step * self._noise) ** 2 / 2)


class AnswerDrift(Evidence):
    """Whether more greedy answers leave the idle ones early than near ties explain."""

    def __init__(self) -> None:
        super().__init__(len(_RATES))

    def add(self, *, changed: bool) -> None:
        """`changed`: it differs from the idle answer within the first quarter."""
        pairs = ((rate, MOST_CHANGED) if changed else (1 - rate, 1 - MOST_CHANGED) for rate in _RATES)
        self.gain([math.log(bet / odds) for bet, odds in pairs])


def share_of_alarms(stage: int, instance: int) -> float:
    """What one of the two tests of a stage on a server may take of all false alarms; all of them add up to half.

    Both count from 0, in the order in which they come; how many there will be need not be known.
    """
    return FALSE_ALARMS / 4 / ((stage + 1) * (stage + 2)) / ((instance + 1) * (instance + 2))


def noise_at_most(spread: float, freedom: int) -> float:
    """The standard deviation that idle scores may have, of which `spread` was seen; 0 where they never differ.

    The chi-square quantile by Wilson and Hilferty; it is too small, which is on the safe side.
    """
    if not spread or freedom < 1:
        return spread
    part = 2 / (9 * freedom)
    z = NormalDist().inv_cdf(FALSE_ALARMS / 4)
    return spread / math.sqrt(max(1e-3, 1 - part + z * math.sqrt(part)) ** 3)


def least_drift(noise: float, repeats: float, texts: int) -> float:
    """What a difference from the mean of so many idle scores must exceed, or else tolerance and noise explain it."""
    z = -NormalDist().inv_cdf(FALSE_ALARMS / 4 / max(1, texts) / 2)
    return TOLERANCE + z * noise / math.sqrt(max(1.0, repeats))
