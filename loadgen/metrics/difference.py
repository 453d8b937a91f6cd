"""How sure a difference between two measurements is: intervals that assume no shape of a distribution.

Each measured value gets an interval of its own, and two of them make the interval of their difference:

- a percentile: order statistics whose ranks a binomial count exceeds with half the doubt at either end (David and
  Nagaraja, Order Statistics, section 7.1), valid for any distribution. With too few streams for such a rank, the
  interval is open at that end;
- a mean and a rate: their standard error times a quantile;
- a share: Wilson's score interval;
- the difference: by the method of variance estimates recovery (Zou and Donner, Statistics in Medicine 27, 2008), which
  keeps the asymmetry of both; over several stages, the same method on logarithms bounds a geometric mean of ratios.

These hold for independent values, which streams of one engine are not: `effective_sample_size` gives the number of
independent values they are worth. Differences between two starts of the same server do not show in a single run;
`MIN_PERCENT` keeps small ones from counting as evidence, and repeating a run shows the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import msgspec
import numpy as np

from loadgen.metrics.histogram import Histogram
from loadgen.profile.values import limit_of, per_stream_limits_ms, stage_limits_ms
from loadgen.schema.comparison import Difference, Word
from loadgen.schema.result import Limits

CONFIDENCE = 0.99  # of each interval: in a hundred comparisons of equal runs, about one may show a difference
SLO_CONFIDENCE = 0.95  # of a verdict on a limit
MIN_PERCENT = 2.0
"""A smaller difference is never evidence, however narrow its interval: two starts of one server differ as much."""


class Estimate(msgspec.Struct, frozen=True):
    """A measured value and the interval of the true one; an unknown end is infinite."""

    value: float
    low: float = -math.inf
    high: float = math.inf
    at_least: bool = False  # the true value is this or more: streams still waited when the stage ended


class Ratio(msgspec.Struct, frozen=True):
    """The geometric mean of B over A, with an interval if every part has one."""

    ratio: float
    low: float | None
    high: float | None
    stages: int  # how many ratios it covers


def effective_sample_size(effective: float, blocks: int, confidence: float) -> float:
    """How many independent values to assume if `effective` was estimated from so many blocks (at least two).

    Corrected by Student's t over the normal quantile, because their variance was estimated, too.
    """
    return effective * (normal_quantile(confidence) / student_t(blocks - 1, confidence)) ** 2


def percentile_estimate(
    value: float, histogram: Histogram, percent: float, count: float, confidence: float
) -> Estimate:
    """A percentile in milliseconds and its interval, from a histogram that is worth `count` independent values."""
    trials = int(min(histogram.count, count))
    if trials < 1:
        return Estimate(value)
    low_rank, high_rank = rank_bounds(trials, percent / 100, confidence)
    low, high = -math.inf, math.inf
    if low_rank > 0:
        top_us = histogram.percentile_us(100 * low_rank / trials)[0]
        # The smallest value in its bucket: 3 digits are 2,048 steps.
        low = (top_us + 1 - (1 << max(0, top_us.bit_length() - 11))) / 1000
    if high_rank <= trials:
        high = histogram.percentile_us(100 * high_rank / trials)[0] / 1000
    return Estimate(value, min(low, value), max(high, value))


def mean_estimate(value: float, stddev: float, count: float, confidence: float) -> Estimate:
    """A mean of values that are worth `count` independent ones."""
    if count <= 0:
        return Estimate(value)
    half = normal_quantile(confidence) * stddev / math.sqrt(count)
    return Estimate(value, value - half, value + half)


def share_interval(share: float, count: float, confidence: float) -> tuple[float, float]:
    """Wilson's interval of a share, for `count` effectively independent values; without any, 0 to 1.

    It holds for shares near 1, where the normal one does not (Wilson 1927; Brown, Cai and DasGupta 2001).
    """
    if count <= 0:
        return 0.0, 1.0
    share = min(1.0, max(0.0, share))  # in a damaged journal, more were good than there were
    z2 = normal_quantile(confidence) ** 2
    middle, spread = share + z2 / (2 * count), math.sqrt(z2 * share * (1 - share) / count + z2**2 / (4 * count**2))
    low, high = (middle - spread) / (1 + z2 / count), (middle + spread) / (1 + z2 / count)
    return max(0.0, min(low, share)), min(1.0, max(high, share))


def streams_needed(wanted: float, missed: float = 0.0, confidence: float = SLO_CONFIDENCE) -> float:
    """How many independent streams show that a share is at least `wanted`, if `missed` of them miss: Wilson's bound.

    381 for a p99 without a miss.
    """
    missed = max(0.0, missed)  # as in `share_interval`
    spread = normal_quantile(confidence) * math.sqrt(wanted * (1 - wanted))
    allowed = 1 - wanted
    return float(((spread + math.sqrt(spread**2 + 4 * allowed * missed)) / (2 * allowed)) ** 2)


def fewest_streams(limits: Limits) -> int:
    """The least number of independent streams that can show that every limit is met."""
    shares = [(limit_of(name)[1] or 0.0) / 100 for name in stage_limits_ms(limits.latency_ms)]
    if per_stream_limits_ms(limits.latency_ms):
        shares.append(limits.goodput)
    return math.ceil(max((streams_needed(share) for share in shares if share), default=0.0))


def chance_of_misses(misses: float, count: float, allowed: float) -> float:
    """The probability of at least `misses` among `count` independent values, if the true share of misses is `allowed`.

    The tail of the binomial distribution, also for counts that are not whole: the incomplete beta function, by its
    continued fraction (DLMF 8.17.5 and 8.17.22).
    """
    if misses <= 1e-9 or allowed >= 1:
        return 1.0
    a, b = misses, count - misses + 1
    if allowed > (a + 1) / (a + b + 2):
        return 1 - _beta_fraction(b, a, 1 - allowed)
    return _beta_fraction(a, b, allowed)


def _beta_fraction(a: float, b: float, x: float) -> float:
    if x <= 0:
        return 0.0
    ways = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    value = 1.0
    for step in range(200, 0, -1):
        half, is_odd = divmod(step, 2)
        if is_odd:
            term = -(a + half) * (a + b + half) * x / ((a + step - 1) * (a + step))
        else:
            term = half * (b - half) * x / ((a + step - 1) * (a + step))
        value = 1 + term / value
    return math.exp(ways + a * math.log(x) + b * math.log1p(-x)) / a / value


def chance_of_rise(bad: int, count: int, other_bad: int, other_count: int) -> float:
    """The probability that `bad` or more of all bad values are among these, if both have the same share (Fisher)."""
    if bad * other_count <= other_bad * count:
        return 1.0
    all_bad, everything = bad + other_bad, count + other_count
    term = math.exp(_ways(all_bad, bad) + _ways(everything - all_bad, count - bad) - _ways(everything, count))
    total = 0.0
    for here in range(bad, min(all_bad, count) + 1):
        total += term
        term *= (all_bad - here) * (count - here) / ((here + 1) * (everything - all_bad - count + here + 1))
    return min(1.0, total)


def _ways(count: int, chosen: int) -> float:
    """The logarithm of the binomial coefficient."""
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


def share_estimate(share: float, count: float, confidence: float) -> Estimate:
    """A share of 0 to 1, in percent, among what is worth `count` independent values."""
    if count <= 0:
        return Estimate(100 * share)
    low, high = share_interval(share, count, confidence)
    return Estimate(100 * share, 100 * low, 100 * high)


def rate_estimate(value: float, error_percent: float, blocks: int, confidence: float) -> Estimate:
    """A rate whose standard error was estimated from so many blocks."""
    half = student_t(blocks - 1, confidence) * value * error_percent / 100
    return Estimate(value, value - half, value + half)


def difference(a: Estimate, b: Estimate, *, lower_is_better: bool) -> Difference:
    absolute = b.value - a.value
    low = absolute - math.hypot(b.value - b.low, a.high - a.value)
    high = absolute + math.hypot(b.high - b.value, a.value - a.low)
    percent, low_percent, high_percent = (100 * one / a.value if a.value else None for one in (absolute, low, high))
    word: Word = "better" if (high < 0) is lower_is_better else "worse"
    if (percent is not None and abs(percent) < MIN_PERCENT) or low <= 0 <= high:
        word = "no evidence"
    return Difference(
        absolute=absolute,
        low=_finite(low),
        high=_finite(high),
        percent=percent,
        low_percent=_finite(low_percent),
        high_percent=_finite(high_percent),
        word=word,
    )


def geometric_mean(pairs: Sequence[tuple[Estimate, Estimate]]) -> Ratio | None:
    """The geometric mean of B over A; None without pairs, or where one of the values is not above zero."""
    if not pairs or any(one.value <= 0 for pair in pairs for one in pair):
        return None
    mean = sum(math.log(b.value / a.value) for a, b in pairs) / len(pairs)
    below = [_log_gap(b.low, b.value) for _, b in pairs] + [_log_gap(a.value, a.high) for a, _ in pairs]
    above = [_log_gap(b.value, b.high) for _, b in pairs] + [_log_gap(a.low, a.value) for a, _ in pairs]
    low, high = mean - math.hypot(*below) / len(pairs), mean + math.hypot(*above) / len(pairs)
    bounded = math.isfinite(low) and math.isfinite(high)
    return Ratio(
        ratio=math.exp(mean),
        low=math.exp(low) if bounded else None,
        high=math.exp(high) if bounded else None,
        stages=len(pairs),
    )


@lru_cache(maxsize=4096)
def rank_bounds(count: int, share: float, confidence: float) -> tuple[int, int]:
    """The ranks (from 1) that bracket the quantile `share`; 0 and `count + 1` if there is no such rank.

    A binomial count of `count` trials falls below the lower rank, or reaches the upper one, with at most half of
    1 - `confidence` each.
    """
    tail = (1 - confidence) / 2
    # Beyond twelve standard deviations there is nothing to add.
    reach = 12 * math.sqrt(count * share * (1 - share)) + 40
    first, last = max(0, int(count * share - reach)), min(count, int(count * share + reach))
    trials = np.arange(first + 1, last + 1)
    steps = np.log((count - trials + 1) / trials) + math.log(share / (1 - share))
    log_first = _ways(count, first) + first * math.log(share) + (count - first) * math.log1p(-share)
    chances = np.exp(log_first + np.concatenate([[0.0], np.cumsum(steps)]))
    at_most, at_least = np.cumsum(chances), np.cumsum(chances[::-1])
    low = first + int(np.searchsorted(at_most, tail, side="right"))
    high = last + 1 - int(np.searchsorted(at_least, tail, side="right"))
    return low, high


def normal_quantile(confidence: float) -> float:
    """The two-sided quantile of the normal distribution."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


@lru_cache(maxsize=4096)
def student_t(freedom: int, confidence: float) -> float:
    """The two-sided quantile of Student's t for whole degrees of freedom.

    Its square is the quantile of F with 1 and as many degrees of freedom.
    """
    low, high = 0.0, 1.0
    while student_within(high, freedom) < confidence:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_within(middle, freedom) < confidence else (low, middle)
    return high


def student_within(t: float, freedom: int) -> float:
    """The probability of a value between -t and t (Abramowitz and Stegun 26.7.3 and 26.7.4, finite sums)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine2, odd = math.cos(angle) ** 2, freedom % 2
    term = total = math.cos(angle) if odd else 1.0
    if freedom == 1:
        return 2 * angle / math.pi
    for step in range(2 + odd, freedom - 1, 2):
        term *= cosine2 * (step - 1) / step
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def _log_gap(low: float, high: float) -> float:
    return math.log(high / low) if low > 0 and math.isfinite(high) else math.inf


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
