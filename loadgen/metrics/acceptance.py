"""Whether a box is as good as demanded: pass, fail or neither, with a known rate of error on both sides.

A demand is an edge: the bound with its margin. A box that lies exactly on the edge is as good as demanded.

**Starts are the unit.** Requests of one start share its memory layout, compiled kernels and clocks: thousands of them
say nothing of the next start. A figure is therefore taken once a start, and its interval is Student's t over starts
(replications: Law, Simulation Modeling and Analysis, section 9.5.2; Kalibera and Jones, Rigorous Benchmarking in
Reasonable Time, ISMM 2013). How values depend on each other within a start does not matter, because nothing is assumed
of it. The price is few degrees of freedom: with two starts that differ by 1 %, a level of 0.001 is a half-width of
225 %, and nothing but more starts, or knowledge of how much starts differ, makes it smaller. Such knowledge is either
estimated on other boxes, and pooled with the starts of this one, or an upper bound that the profile states. Neither is
used if this box's starts differ evidently more. What all starts have in common, such as a warm room, is in no interval.
The rates of error below are those of values that differ normally; no test of a mean keeps its rate for every
distribution (Bahadur and Savage, Annals of Mathematical Statistics 27, 1956): `benchmarks/acceptance.py` shows how far
heavy tails, skewness and rare good starts go.

**Failing** needs the interval to lie wholly beyond the edge. Many criteria are many chances of a false alarm, so that
all p-values go through Holm's procedure (Scandinavian Journal of Statistics 6, 1979), which needs no independence: a
box exactly as good as demanded in every criterion fails with a probability of at most `FALSE_FAIL`.

**Passing** needs every criterion's interval to lie wholly within. A box that is on or beyond the edge of any criterion
passes with a probability of at most `FALSE_PASS`, without a correction for their number: it must pass the one that it
should not (Berger, Technometrics 24, 1982).

**Judging again** after more starts is another chance of both errors: the nth judgement spends 1/(n(n+1)) of either.

Shares of trials have exact binomial limits (Clopper and Pearson), and if the trials of several starts are known, the
wider of these and of the interval over starts, because failures come together. A trend is the growth allowed taken out
of the series, then tested for a rise by the sequential test of `trend`, valid however often it is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

import numpy as np

from loadgen.metrics.batch_means import ratio_variance
from loadgen.metrics.difference import chance_of_misses, streams_needed, student_t, student_within
from loadgen.metrics.sequential import evidence_of_rise
from loadgen.profile.values import limit_of
from loadgen.schema.certificate import Outcome, Spread

FALSE_FAIL = 0.01  # of a certificate for a box exactly as good as demanded
FALSE_PASS = 0.05  # of a certificate for a box that is not good enough in some criterion
MIN_STARTS = 2
MIN_TREND_VALUES = 12
MAX_STARTS_NAMED = 30  # nobody starts a server more often to learn that it lies on the bound
RESOLUTION = 0.001
"""Starts are never assumed to differ by less, as a share of the figure: histograms have three digits."""
_MAX_SHOWN_PERCENT = 99.9  # of a goodput: no number of requests shows that all are good
_EVIDENTLY_MORE = 2.0  # times the known spread
OWN_STARTS = "the starts of this box"


class Trial(NamedTuple):
    """What was measured, against its edge."""

    value: float
    p_good: float  # the probability of such a value or a worse one if the box lies on the edge
    p_bad: float  # the probability of such a value or a better one if the box lies on the edge
    ends: Callable[[float, float], tuple[float, float]]
    """The ends of the interval that are wrong with these probabilities: on the good side, and on the bad one."""
    spread: Spread | None = None


class Level(NamedTuple):
    """The probabilities of error that one judgement may spend."""

    fail: float
    not_pass: float


def level_of(look: int, *, fail: float = FALSE_FAIL) -> Level:
    """What the judgement with this number, from 1, may spend; all of them together at most the whole."""
    share = 1 / (look * (look + 1))
    return Level(fail * share, FALSE_PASS * share)


class Held(NamedTuple):
    """What Holm's procedure found for one criterion."""

    is_rejected: bool
    level: float  # of the end of its interval that must lie beyond the edge


def holm(p_values: Sequence[float], level: float) -> list[Held]:
    """Which hypotheses are rejected, so that any true one is among them with a probability of `level` at most."""
    found: list[Held] = [Held(False, level)] * len(p_values)
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    going = True
    for rank, index in enumerate(order):
        if going:
            each = level / (len(order) - rank)
            going = p_values[index] <= each
        found[index] = Held(going, each)
    return found


def outcome_of(trial: Trial, held: Held, level: Level) -> Outcome:
    """What one criterion comes to, once Holm's procedure has seen all."""
    if held.is_rejected:
        return "fail"
    return "pass" if trial.p_bad <= level.not_pass else "inconclusive"


def spread_of(values: Sequence[float], known: Spread | None) -> Spread:
    """How much the starts differ: by themselves, or with what is known, unless they differ evidently more."""
    freedom, mean = len(values) - 1, fmean(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / freedom)
    share = max(RESOLUTION, deviation / abs(mean)) if mean else RESOLUTION
    own = Spread(share, freedom, OWN_STARTS)
    if known is None or share > _EVIDENTLY_MORE * known.share:
        return own
    if known.freedom is None:
        return known
    pooled = (known.freedom * known.share**2 + freedom * share**2) / (known.freedom + freedom)
    return Spread(math.sqrt(pooled), known.freedom + freedom, f"{known.source}, with {OWN_STARTS}")


def over_starts(values: Sequence[float], edge: float, *, lower_is_better: bool, known: Spread | None = None) -> Trial:
    """The mean of a figure over starts, of which there are at least two."""
    mean, spread = fmean(values), spread_of(values, known)
    error = spread.share * abs(mean) / math.sqrt(len(values))
    return _of_normal(mean, error, spread.freedom, edge, lower_is_better=lower_is_better)._replace(spread=spread)


def _of_normal(value: float, error: float, freedom: int | None, edge: float, *, lower_is_better: bool) -> Trial:
    side = 1 if lower_is_better else -1
    beyond = side * (value - edge) / error if error else side * math.copysign(math.inf, value - edge)
    p_good = _tail(beyond, freedom)

    def ends(good: float, bad: float) -> tuple[float, float]:
        gaps = quantile(good, freedom) * error, quantile(bad, freedom) * error
        return (value - gaps[0], value + gaps[1]) if lower_is_better else (value - gaps[1], value + gaps[0])

    return Trial(value, p_good, 1 - p_good, ends)


def _tail(t: float, freedom: int | None) -> float:
    """The probability of a value of `t` or more."""
    if freedom is None:
        return NormalDist().cdf(-t)
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    half = (1 - student_within(abs(t), freedom)) / 2
    return half if t >= 0 else 1 - half


def quantile(level: float, freedom: int | None) -> float:
    """The value that is exceeded with the probability `level`, of Student's t or, without `freedom`, the normal."""
    return -NormalDist().inv_cdf(level) if freedom is None else student_t(freedom, 1 - 2 * level)


def starts_needed(values: Sequence[float], edge: float, spread: Spread, *, level: Level) -> int | None:
    """How many more starts would show on which side of the edge the figure lies; None if too many.

    It assumes that mean and spread stay as they are. `level` is that of the next judgement.
    """
    mean, started = fmean(values), len(values)
    own = spread.freedom is not None
    for count in range(started + 1, MAX_STARTS_NAMED + 1):
        freedom = spread.freedom + count - started if own and spread.freedom is not None else None
        half = max(quantile(each, freedom) for each in level) * spread.share * abs(mean) / math.sqrt(count)
        if half < abs(mean - edge):
            return count - started
    return None


def requests_needed(figure: str, edge: float) -> int:
    """How many requests of a start can show a percentile or a goodput: as many as a search needs without a miss.

    0 for other figures. With fewer, a fault in more of the requests than it may hit is too often in none of them.
    """
    if figure == "goodput_percent":
        share = min(edge, _MAX_SHOWN_PERCENT) / 100
    else:
        share = (limit_of(figure.removesuffix("_ms"))[1] or 0.0) / 100 if figure.endswith("_ms") else 0.0
    return math.ceil(streams_needed(share))


def of_shares(good: Sequence[int], trials: Sequence[int], edge: float) -> Trial:
    """A share of good trials, by start, that is to be at least `edge`."""
    count, bad = sum(trials), sum(trials) - sum(good)
    share = sum(good) / count

    def limits(level_good: float, level_bad: float) -> tuple[float, float]:
        """The shares under which so few, or so many, bad ones are not too unlikely (Clopper and Pearson)."""
        low, high = 0.0, 1.0
        if bad < count:
            low = _where(lambda good: 1 - chance_of_misses(bad + 1, count, 1 - good), level_bad)
        if bad > 0:
            high = _where(lambda good: 1 - chance_of_misses(bad, count, 1 - good), 1 - level_good)
        return low, high

    p_bad = 1 - chance_of_misses(bad + 1, count, 1 - edge) if bad < count else 1.0
    exact = Trial(share, chance_of_misses(bad, count, 1 - edge), p_bad, limits)
    counted = [trial for trial in trials if trial]
    if len(counted) < MIN_STARTS or bad in (0, count):
        return exact
    pairs = [pair for pair in zip(good, trials, strict=True) if pair[1]]
    error = math.sqrt(ratio_variance([one for one, _ in pairs], [of for _, of in pairs]))
    apart = _of_normal(share, error, len(pairs) - 1, edge, lower_is_better=False)

    def wider(level_good: float, level_bad: float) -> tuple[float, float]:
        lows, highs = zip(exact.ends(level_good, level_bad), apart.ends(level_good, level_bad), strict=True)
        return max(0.0, min(lows)), min(1.0, max(highs))

    return Trial(share, max(exact.p_good, apart.p_good), max(exact.p_bad, apart.p_bad), wider)


def _where(rising: Callable[[float], float], value: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return low


def trials_needed(bad: int, count: int, edge: float, level: Level) -> int | None:
    """How many more trials would show on which side of the edge the share lies, if it stays as it is."""
    share, number = (count - bad) / count, count
    while number < 100 * count:
        number = math.ceil(1.2 * number)
        missed = bad * number / count
        beyond = chance_of_misses(missed, number, 1 - edge)
        if (share < edge and beyond <= level.fail) or (
            share >= edge and 1 - chance_of_misses(missed + 1, number, 1 - edge) <= level.not_pass
        ):
            return number - count
    return None


def of_trend(values: Sequence[float], edge: float) -> Trial:
    """The growth of a series from its beginning to its end as a share, which is to be at most `edge`.

    The growth is that of a line through the logarithms. The error of its slope is widened by how much neighbours depend
    on each other.
    """
    count = len(values)
    place = (np.arange(count) + 0.5) / count - 0.5
    logs = np.log(np.array(values, dtype=float))
    total = float((place**2).sum())
    slope = float((place * logs).sum()) / total
    rest = logs - logs.mean() - slope * place
    squares = float((rest**2).sum())
    alike = max(0.0, float((rest[1:] * rest[:-1]).sum()) / squares) if squares > 0 else 0.0
    error = math.sqrt(squares / (count - 2) / total * (1 + alike) / max(0.05, 1 - alike))
    line = _of_normal(
        slope, max(error, RESOLUTION / math.sqrt(count)), count - 2, math.log1p(edge), lower_is_better=True
    )
    allowed = np.exp(math.log1p(edge) * (place + 0.5))
    sequential = math.exp(-evidence_of_rise((np.array(values) / allowed).tolist())) if slope > math.log1p(edge) else 1.0

    def ends(good: float, bad: float) -> tuple[float, float]:
        low, high = line.ends(good, bad)
        return math.expm1(low), math.expm1(high)

    return Trial(math.expm1(slope), max(sequential, line.p_good), line.p_bad, ends)


def rate_at_most(hours: float) -> float:
    """The highest rate, in events an hour, under which seeing none for so long has a probability of 5 %: 3/T."""
    return -math.log(0.05) / hours


def prediction_limit(values: Sequence[float], level: float, *, upper: bool) -> float:
    """The value that one more of the same kind exceeds (or falls below) with the probability `level`.

    Student's t with the error of one more value (Hahn and Meeker, Statistical Intervals, chapter 4), for normal values.
    """
    count = len(values)
    spread = max(stdev(values), RESOLUTION * abs(fmean(values)))
    reach = quantile(level, count - 1) * spread * math.sqrt(1 + 1 / count)
    return fmean(values) + (reach if upper else -reach)


def rank_sum_chance(own: Sequence[float], others: Sequence[float]) -> float:
    """The probability that these values rank this high or higher among all, if all are alike: exact, for any shape.

    The rank sum of Wilcoxon (Biometrics Bulletin 1, 1945), over all choices of as many of the values; ties share their
    mean rank.
    """
    ordered = sorted([*own, *others])
    twice = {value: 2 * ordered.index(value) + ordered.count(value) + 1 for value in ordered}  # twice its mean rank
    most = sum(twice[value] for value in ordered)
    ways = np.zeros((len(own) + 1, most + 1))
    ways[0, 0] = 1.0
    for value in ordered:
        rank = twice[value]
        ways[1:, rank:] += ways[:-1, : most + 1 - rank].copy()
    observed = sum(twice[value] for value in own)
    return float(ways[-1, observed:].sum() / ways[-1].sum())
