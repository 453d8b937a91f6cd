"""The histogram against plain arithmetic and against HdrHistogram itself."""

import base64
import gc
import math
import zlib
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ResultError
from loadgen.metrics.histogram import EXPORTED_BOUNDS_US, HIGHEST_US, LOWEST_US, SIGNIFICANT_DIGITS, Histogram, _tops
from loadgen.schema.deltas import HISTOGRAM_LENGTH, EncodedHistogram

values_us = st.lists(st.integers(0, HIGHEST_US), max_size=60)


def of(values: list[int]) -> Histogram:
    histogram = Histogram()
    histogram.record_us(np.array(values, dtype=np.int64))
    return histogram


@given(values_us)
def test_records_exactly_what_hdrhistogram_records_one_by_one(values: list[int]) -> None:
    theirs = HdrHistogram(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS)
    for value in values:
        theirs.record_value(value)
    ours = HdrHistogram.decode(of(values).hdr())
    assert ours.get_total_count() == len(values)
    assert list(ours.counts) == list(theirs.counts)


@given(values_us, st.lists(st.integers(1, 59), max_size=5))
def test_merging_does_not_depend_on_the_cut_or_the_order(values: list[int], cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(values)), len(values)]
    parts = [of(values[low:high]) for low, high in pairwise(edges)]
    forwards, backwards = Histogram(), Histogram()
    for part in parts:
        forwards.add(part)
    for part in reversed(parts):
        backwards.add(part)
    assert forwards == backwards == of(values)


@given(values=values_us, more=values_us, limit_ms=st.floats(0, HIGHEST_US / 1000))
def test_a_part_can_be_subtracted_again(values: list[int], more: list[int], limit_ms: float) -> None:
    whole, bounds_us = of(values + more), [1, 1000, HIGHEST_US]
    rest, wanted = whole.without(of(more)), of(values)
    assert (rest.count, rest.mean_ms()) == (wanted.count, wanted.mean_ms())
    assert rest.share_above(limit_ms) == wanted.share_above(limit_ms)
    assert rest.counts_within(bounds_us) == wanted.counts_within(bounds_us)
    assert whole == of(values + more)


@given(values=values_us, more=values_us, limit_ms=st.floats(0, HIGHEST_US / 1000))
def test_taking_less_memory_changes_nothing(values: list[int], more: list[int], limit_ms: float) -> None:
    reduced, loose = of(values), of(values)
    reduced.thin()
    reduced.thin()
    assert reduced == loose
    assert reduced.hdr() == loose.hdr()
    assert reduced.summary() == loose.summary()
    assert reduced.share_above(limit_ms) == loose.share_above(limit_ms)
    assert reduced.above(limit_ms) == loose.above(limit_ms)
    assert reduced.counts_within([1, 1000, HIGHEST_US]) == loose.counts_within([1, 1000, HIGHEST_US])
    whole = Histogram()
    whole.add(reduced)
    assert whole == loose
    whole.add(of(more))
    assert whole == of([*values, *more])
    assert reduced == loose, "it may share its counters, but nobody writes to them"
    reduced.add(of(more))
    loose.add(of(more))
    assert reduced == loose


def test_a_thin_histogram_takes_no_more_than_its_counters_in_use() -> None:
    def taken(histogram: Histogram) -> int:
        return histogram._loose.nbytes + (0 if histogram._indices is None else histogram._indices.nbytes)

    few, many = of([20_000, 3_000_000]), of(list(range(2_000)))
    loose = taken(few), taken(many)
    few.thin()
    many.thin()
    assert (taken(few), taken(many)) == (2 * 16, loose[1])
    assert taken(Histogram.decode(of([20_000, 3_000_000]).encode())) == 2 * 16


@given(values_us)
def test_encoding_loses_nothing(values: list[int]) -> None:
    assert Histogram.decode(of(values).encode()) == of(values)


@given(values_us, st.integers(1, 1 << 20))
def test_a_journal_keeps_it_whole(values: list[int], weight: int) -> None:
    histogram = Histogram()
    histogram.record_us(np.array(values, dtype=np.int64), np.full(len(values), weight))
    line = msgspec.json.encode(histogram.encode())
    assert Histogram.decode(msgspec.json.decode(line, type=EncodedHistogram)) == histogram


def test_no_histogram_takes_more_than_its_counters() -> None:
    """With all of them in use, each as many times as a byte holds."""
    histogram, rng = Histogram(), np.random.default_rng(1)
    tops = _tops(np.arange(HISTOGRAM_LENGTH))
    histogram.record_us(tops, rng.integers(1, 256, HISTOGRAM_LENGTH))
    assert len(msgspec.json.encode(histogram.encode())) < 35_000


@given(st.binary(max_size=60), st.integers(1, 5))
def test_bytes_that_were_not_packed_by_us_are_refused(junk: bytes, count: int) -> None:
    good = of([5, 7]).encode()
    packed = zlib.compress(junk, wbits=-zlib.MAX_WBITS)
    for damaged in (junk, packed, good.packed + junk, good.packed[:-1]):
        try:
            encoded = msgspec.structs.replace(good, packed=damaged, count=count)
        except ValueError:
            continue
        assert Histogram.decode(encoded).count == count


@given(st.lists(st.integers(0, HIGHEST_US), min_size=1, max_size=60), st.sampled_from([1, 50, 90, 99, 99.9, 100]))
def test_percentiles_are_nearest_rank_to_three_digits(values: list[int], percent: float) -> None:
    rank = max(1, math.ceil(round(percent / 100 * len(values), 9)))
    exact = sorted(values)[rank - 1]
    (reported,) = of(values).percentile_us(percent)
    assert exact <= reported <= max(exact + 1, exact * 1.001)
    assert reported <= max(values)


def test_p90_of_16_values_is_the_15th() -> None:
    """The rank is rounded up, as in HdrHistogram for Java; the Python port takes the 14th."""
    assert of(list(range(1, 17))).percentile_us(90) == [15]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60))
def test_mean_and_deviation_are_exact(values: list[int]) -> None:
    summary = of(values).summary()
    assert summary.mean is not None and summary.stddev is not None
    assert summary.mean == pytest.approx(sum(values) / len(values) / 1000, rel=1e-12, abs=1e-9)
    assert summary.stddev == pytest.approx(float(np.std(np.array(values, dtype=float))) / 1000, rel=1e-6, abs=1e-3)
    assert (summary.min, summary.max) == (min(values) / 1000, max(values) / 1000)


def test_weights_count_a_value_so_many_times() -> None:
    weighted = Histogram()
    weighted.record_ns(np.array([5_000_000, 9_000_000, 1]), weights=np.array([3, 1, 0]))
    assert weighted == of([5000, 5000, 5000, 9000])


def test_nanoseconds_are_rounded_and_negative_ones_count_as_zero() -> None:
    histogram = Histogram()
    histogram.record_ns([1_499, 1_500, -7_000])
    assert (histogram.min_us, histogram.max_us, histogram.sum_us) == (0, 2, 3)


def test_values_beyond_the_range_are_clipped_and_counted() -> None:
    histogram = of([10, 10**13])
    assert histogram.clipped == 1
    assert histogram.count == 2
    assert Histogram.decode(histogram.encode()).clipped == 1


def test_an_empty_histogram_has_no_statistics() -> None:
    summary = Histogram().summary()
    assert summary.count == 0
    assert (summary.mean, summary.p99, summary.max) == (None, None, None)
    assert Histogram().percentile_ms(99) is None
    assert isinstance(Histogram().encode(), EncodedHistogram)


@given(st.lists(st.integers(0, 2 * HIGHEST_US), max_size=60))
def test_exported_buckets_count_exactly(values: list[int]) -> None:
    exact = [sum(value <= bound for value in values) for bound in EXPORTED_BOUNDS_US]
    assert of(values).counts_within(EXPORTED_BOUNDS_US) == exact


def test_share_above_a_limit() -> None:
    histogram = of([1000] * 9 + [50_000])
    assert histogram.share_above(10.0) == pytest.approx(0.1)
    assert histogram.share_above(60.0) == 0


@given(st.lists(st.integers(0, 2 * HIGHEST_US), max_size=60))
def test_hdrhistograms_own_encoding_is_read_back(values: list[int]) -> None:
    written = of(values)
    read = Histogram.from_hdr(written.hdr())
    assert (read.count, read.hdr()) == (written.count, Histogram.from_hdr(read.hdr()).hdr())
    if values:
        percents = (1, 10, 50, 90, 99)
        tops = zip(read.percentile_us(*percents), written.percentile_us(*percents), strict=True)
        # But for the maximum, which the encoding knows by its bucket.
        assert all(min(ours, written.max_us) == theirs for ours, theirs in tops)
        assert read.sum_us == pytest.approx(written.sum_us, rel=1e-3)


@given(st.text(max_size=40))
def test_what_is_no_histogram_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ResultError, match="not an HdrHistogram"):
        Histogram.from_hdr(text)


def test_a_histogram_that_unpacks_without_end_is_refused() -> None:
    packed = zlib.compress(bytes(1 << 24))
    with pytest.raises(ResultError, match="of another kind"):
        Histogram.from_hdr(base64.b64encode(bytes(8) + packed).decode())


@pytest.mark.parametrize(("lowest", "highest"), [(0, 1 << 32), (0, 1 << 60), (-1, 0), (9, 8)])
def test_values_beyond_the_counters_are_no_histogram(lowest: int, highest: int) -> None:
    """The codec would read memory as far as the maximum says."""
    with pytest.raises(ValueError, match="not within its counters"):
        EncodedHistogram(count=0, sum_us=0, sum_squares_us=0, min_us=lowest, max_us=highest)


def test_a_histogram_of_another_shape_is_refused() -> None:
    with pytest.raises(ResultError, match="of another kind"):
        Histogram.from_hdr(HdrHistogram(1, 1000, 2).encode().decode())


def packed(first: int, *wide: int) -> bytes:
    """Counters as they are packed: the first index, then steps and counts of eight bytes each."""
    raw = bytes([8, 8]) + first.to_bytes(2, "little") + b"".join(number.to_bytes(8, "little") for number in wide)
    return zlib.compress(raw, wbits=-zlib.MAX_WBITS)


@pytest.mark.parametrize(
    "changes",
    [
        {"packed": packed(60_000, 1)},
        {"packed": packed(5, (1 << 64) - 9, 1, 1), "count": 2},
        {"packed": packed(5, 0, 1, 1), "count": 2},
        {"packed": packed(5, 1 << 62, 1 << 62, 1, 1, 1), "count": 3},
        {"packed": b"AAAA"},
        {"packed": packed(5, 1, 2)},
        {"packed": packed(5, 0), "count": 0},
        {"packed": packed(5, 2)},
        {"packed": b""},
        {"packed": packed(5, 1 << 41), "count": 1 << 41},
        {"sum_us": 6},
    ],
)
def test_damaged_encodings_are_refused(changes: dict[str, int | bytes]) -> None:
    encoded = {"packed": packed(5, 1), "count": 1, "sum_us": 5, "sum_squares_us": 25, "min_us": 5, "max_us": 5}
    assert Histogram.decode(msgspec.convert(encoded, EncodedHistogram)).count == 1
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(encoded | changes, EncodedHistogram)


times_us = st.lists(st.integers(1, 2000), max_size=30)


@given(times_us, times_us.filter(bool))
def test_statistics_that_censored_values_could_raise_are_lower_bounds(known: list[int], waits: list[int]) -> None:
    """Values up to 2,047 us have counters of their own, so percentiles are exact."""
    histogram, censored = Histogram(), Histogram()
    histogram.record_us(np.array(known, dtype=np.int64))
    censored.record_us(np.array(waits, dtype=np.int64))
    summary = histogram.summary_with(censored)
    at_least, endless = sorted(known + waits), sorted([*known, *(10**9 for _ in waits)])
    assert (summary.count, summary.censored) == (len(known), len(waits))
    for name, percent in (("p50", 50), ("p90", 90), ("p99", 99), ("p999", 99.9)):
        rank = math.ceil(round(percent / 100 * len(at_least), 9)) - 1
        assert getattr(summary, name) == at_least[rank] / 1000
        assert (name in summary.lower_bounds) == (at_least[rank] != endless[rank])
    assert {"mean", "max"} <= set(summary.lower_bounds)
    assert summary.mean == pytest.approx(sum(at_least) / len(at_least) / 1000)


def test_without_censored_values_nothing_is_a_lower_bound() -> None:
    histogram = Histogram()
    histogram.record_us(np.array([5, 7]))
    assert histogram.summary_with(Histogram()) == histogram.summary()


def test_the_encoder_of_hdrhistogram_is_freed_at_once() -> None:
    gc.collect()
    gc.disable()
    try:
        before = encoders_alive()
        Histogram.from_hdr(of([1_000]).hdr())
        assert encoders_alive() == before
    finally:
        gc.enable()


def encoders_alive() -> int:
    return sum(isinstance(each, HdrHistogram) for each in gc.get_objects())
