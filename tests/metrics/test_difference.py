"""Intervals of differences: no difference between equals, mirrored when swapped, wrong as rarely as they promise."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.difference import (
    CONFIDENCE,
    Estimate,
    chance_of_misses,
    difference,
    effective_sample_size,
    geometric_mean,
    mean_estimate,
    percentile_estimate,
    rank_bounds,
    rate_estimate,
    share_estimate,
    share_interval,
    streams_needed,
    student_t,
)
from loadgen.metrics.histogram import Histogram
from loadgen.schema.comparison import Difference

VALUES = st.floats(min_value=0.001, max_value=1e6)
GAPS = st.floats(min_value=0.0, max_value=1e6) | st.just(math.inf)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    value = draw(VALUES)
    return Estimate(value, value - draw(GAPS), value + draw(GAPS))


def percentile(values_ms: np.ndarray, percent: float) -> Estimate:
    histogram = Histogram()
    histogram.record_us((values_ms * 1000).astype(np.int64))
    (value_us,) = histogram.percentile_us(percent)
    return percentile_estimate(value_us / 1000, histogram, percent, len(values_ms), CONFIDENCE)


@given(estimates(), st.booleans())
def test_nothing_differs_from_itself(one: Estimate, lower_is_better: bool) -> None:
    found = difference(one, one, lower_is_better=lower_is_better)
    assert (found.absolute, found.percent, found.word) == (0.0, 0.0, "no evidence")


@given(estimates(), estimates(), st.booleans())
def test_swapping_turns_the_difference_round(a: Estimate, b: Estimate, lower_is_better: bool) -> None:
    there = difference(a, b, lower_is_better=lower_is_better)
    back = difference(b, a, lower_is_better=lower_is_better)
    turned = {"better": "worse", "worse": "better", "no evidence": "no evidence"}
    assert there.absolute == -back.absolute
    assert (there.low is None) == (back.high is None) and (there.high is None) == (back.low is None)
    if there.low is not None and back.high is not None:
        assert there.low == pytest.approx(-back.high)
    # Below the least percentage it depends on what the percentage is of.
    if "no evidence" not in (there.word, back.word):
        assert there.word == turned[back.word]


@given(estimates(), estimates(), st.booleans())
def test_a_word_says_what_the_interval_says(a: Estimate, b: Estimate, lower_is_better: bool) -> None:
    found = difference(a, b, lower_is_better=lower_is_better)
    if found.word != "no evidence":
        rises = found.low is not None and found.low > 0
        assert rises != (found.high is not None and found.high < 0)
        assert found.word == ("worse" if rises == lower_is_better else "better")


def test_a_small_difference_is_none_however_sure() -> None:
    exact = [Estimate(value, value, value) for value in (100.0, 101.9, 102.1)]
    assert difference(exact[0], exact[1], lower_is_better=True).word == "no evidence"
    assert difference(exact[0], exact[2], lower_is_better=True).word == "worse"


def test_a_difference_from_nothing_has_no_percentage_but_a_word() -> None:
    found = difference(Estimate(0.0, 0.0, 1.0), Estimate(95.0, 90.0, 98.0), lower_is_better=False)
    assert (found.absolute, found.percent, found.word) == (95.0, None, "better")


@pytest.mark.parametrize("count", [1, 2, 7, 50, 300])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_the_ranks_are_those_of_the_binomial_distribution(count: int, share: float) -> None:
    chances = [math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(count + 1)]
    low, high = rank_bounds(count, share, 0.99)
    assert sum(chances[:low]) <= 0.005 < sum(chances[: low + 1])
    assert sum(chances[high:]) <= 0.005 < sum(chances[high - 1 :])


@given(st.integers(1, 10**7), st.sampled_from([0.5, 0.9, 0.99]))
def test_ranks_enclose_the_percentile_for_any_number_of_streams(count: int, share: float) -> None:
    low, high = rank_bounds(count, share, 0.99)
    assert 0 <= low <= math.ceil(count * share) <= high <= count + 1


def test_few_streams_leave_an_end_open() -> None:
    found = percentile(np.linspace(10.0, 20.0, 100), 99)
    assert found.value == pytest.approx(19.9, rel=0.01)
    assert found.low > 10.0 and found.high == math.inf
    assert percentile(np.linspace(10.0, 20.0, 1000), 99).high < 20.1
    nothing = Histogram()
    assert percentile_estimate(1.0, nothing, 50, 0.0, CONFIDENCE) == Estimate(1.0)


def test_values_in_one_counter_are_not_distinguished() -> None:
    # 19.984 to 19.999 ms are one counter of the histogram.
    one, other = (percentile(np.append(np.full(500, value), 30.0), 50) for value in (19.985, 19.998))
    assert one == other
    assert (one.low, one.high) == (19.984, 19.999)


def test_equal_estimates_differ_as_rarely_as_the_confidence_promises() -> None:
    rng = np.random.default_rng(6)
    wrong = 0
    for _ in range(500):
        a, b = (percentile(rng.lognormal(3.0, 0.5, 300), 90) for _ in range(2))
        found = difference(a, b, lower_is_better=True)
        assert found.low is not None and found.high is not None
        wrong += not found.low <= 0 <= found.high
    # Of 500, 5 are promised; with 3 times as many the promise would be broken.
    assert wrong <= 15


def test_a_shift_is_found_with_enough_streams() -> None:
    rng = np.random.default_rng(7)
    words = {}
    for count in (20, 20_000):
        a, b = rng.lognormal(3.0, 0.5, count), 1.1 * rng.lognormal(3.0, 0.5, count)
        words[count] = difference(percentile(a, 50), percentile(b, 50), lower_is_better=True).word
    assert words == {20: "no evidence", 20_000: "worse"}


def test_mean_share_and_rate() -> None:
    # 2.576 standard errors of 10 / sqrt(100).
    assert mean_estimate(50.0, 10.0, 100, 0.99).high == pytest.approx(52.576, abs=0.001)
    assert mean_estimate(50.0, 10.0, 0.0, 0.99) == Estimate(50.0)
    # Wilson's interval, as Newcombe (1998) has it for 81 of 263 at 95 %.
    share = share_estimate(81 / 263, 263, 0.95)
    assert [share.low, share.high] == pytest.approx([25.53, 36.62], abs=0.01)
    assert share_estimate(1.0, 50, 0.99).high == 100.0
    assert share_estimate(1.0, 0.0, 0.99) == Estimate(100.0)
    rate = rate_estimate(1000.0, 1.0, 11, 0.99)
    assert [rate.low, rate.high] == pytest.approx([968.3, 1031.7], abs=0.1)


def test_wilsons_interval() -> None:
    # Brown, Cai and DasGupta: x = 0 of 10 leaves at most z2 / (n + z2).
    assert share_interval(0.0, 10, 0.95) == pytest.approx((0, 0.2775), abs=1e-3)
    assert share_interval(0.95, 100, 0.95) == pytest.approx((0.8882, 0.9785), abs=1e-3)
    assert share_interval(0.0, 0, 0.95) == (0, 1)


def test_a_damaged_journal_with_more_good_streams_than_streams_is_judged() -> None:
    assert share_interval(61.0, 1, 0.95) == share_interval(1.0, 1, 0.95)
    assert streams_needed(0.95, missed=-60.0) == streams_needed(0.95)


@given(st.integers(1, 400), st.data(), st.sampled_from([0.001, 0.01, 0.05, 0.5, 0.9]))
def test_the_chance_of_misses_is_the_tail_of_the_binomial_distribution(
    count: int, data: st.DataObject, allowed: float
) -> None:
    misses = data.draw(st.integers(0, count))
    exact = math.fsum(math.comb(count, k) * allowed**k * (1 - allowed) ** (count - k) for k in range(misses, count + 1))
    assert chance_of_misses(misses, count, allowed) == pytest.approx(exact, rel=1e-6, abs=1e-12)


@given(st.floats(0.05, 50), st.floats(0, 1), st.sampled_from([0.001, 0.01, 0.1]))
def test_between_whole_counts_the_chance_falls_with_the_misses(count: float, share: float, allowed: float) -> None:
    fewer, more = (chance_of_misses(count * share * part, count, allowed) for part in (0.9, 1.0))
    assert 0 <= more <= fewer * (1 + 1e-7) <= 1 + 1e-6


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 63.657), (2, 9.925), (3, 5.841), (4, 4.604), (5, 4.032), (10, 3.169), (30, 2.750), (1000, 2.581)],
)
def test_students_quantile(freedom: int, quantile: float) -> None:
    assert student_t(freedom, 0.99) == pytest.approx(quantile, rel=1e-4)


def test_few_blocks_reduce_the_effective_sample_size() -> None:
    assert (
        effective_sample_size(100.0, 4, 0.99)
        < effective_sample_size(100.0, 11, 0.99)
        < effective_sample_size(100.0, 1000, 0.99)
        < 100.0
    )


def test_the_geometric_mean_of_the_matrix() -> None:
    pairs = [(Estimate(100.0, 99.0, 101.0), Estimate(value, 0.99 * value, 1.01 * value)) for value in (50.0, 200.0)]
    found = geometric_mean(pairs)
    assert found is not None and found.ratio == pytest.approx(1.0) and found.stages == 2
    assert found.low is not None and found.high is not None and found.low < 1 < found.high
    turned = geometric_mean([(b, a) for a, b in pairs[:1]])
    alone = geometric_mean(pairs[:1])
    assert turned is not None and alone is not None and turned.ratio == pytest.approx(1 / alone.ratio)
    assert turned.high == pytest.approx(1 / alone.low if alone.low else math.nan)


def test_a_mean_over_stages_without_intervals_has_none() -> None:
    found = geometric_mean([(Estimate(100.0), Estimate(150.0))])
    assert found is not None and found.ratio == pytest.approx(1.5) and found.low is found.high is None
    assert geometric_mean([(Estimate(0.0), Estimate(1.0))]) is None
    assert geometric_mean([]) is None


def test_an_open_end_is_null_in_json() -> None:
    found = difference(Estimate(10.0), Estimate(20.0), lower_is_better=True)
    assert found == Difference(10.0, None, None, 100.0, None, None, "no evidence")
