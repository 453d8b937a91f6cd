"""Latency histograms: HdrHistogram's counts and codec, recorded and read with numpy.

The only importer of `hdrh`. Values are integer microseconds from 0 to about 71 minutes with 3 significant digits;
larger ones are clipped and counted in `clipped`. Count, sum and sum of squares are exact integers, so that merging is
associative and commutative to the last bit: a result depends neither on the number of workers nor on how snapshots
were cut. Percentiles are nearest rank (ceil) over the cumulative counts; an empty histogram has none.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Self

import msgspec
import numpy as np
from hdrh.codec import HdrCookieException, HdrLengthException
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

from loadgen.errors import ResultError
from loadgen.schema.deltas import HISTOGRAM_LENGTH, EncodedHistogram, Summary, pack_counters, unpack_counters

LOWEST_US = 1
HIGHEST_US = 3_600_000_000
SIGNIFICANT_DIGITS = 3

_SHAPE = HdrHistogram(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS)
assert int(_SHAPE.counts_len) == HISTOGRAM_LENGTH
_MAGNITUDE = int(_SHAPE.sub_bucket_half_count_magnitude)
_HALF = int(_SHAPE.sub_bucket_half_count)
_MASK = int(_SHAPE.sub_bucket_mask)
# The index formula holds up to the end of the last bucket, which is above HIGHEST_US.
_TOP_US = int(_SHAPE.get_value_from_index(HISTOGRAM_LENGTH - 1))
_NOT_HDR = (HdrCookieException, HdrLengthException, IndexError, OverflowError, RuntimeError, ValueError, zlib.error)
# In the payload of the V2 encoding: digits, lowest and highest value, then the counters of at most nine bytes each.
_OUR_KIND = struct.pack(">iqq", SIGNIFICANT_DIGITS, LOWEST_US, HIGHEST_US)
_MAX_PAYLOAD = 40 + 9 * HISTOGRAM_LENGTH
_NO_COUNTS: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
_SUMS = ("count", "sum_us", "sum_squares_us", "min_us", "max_us", "clipped")
EXPORTED_BOUNDS_US = tuple((4 + quarter << octave - 2) - 1 for octave in range(7, 32) for quarter in range(4))
"""Four bounds per doubling from 128 us to over an hour, all tops of buckets, so that counts up to them are exact."""
_PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}


class Histogram:
    """Counts of latencies in microseconds; a commutative monoid under `add`, with `Histogram()` as zero."""

    __slots__ = ("_first", "_indices", "_loose", *_SUMS)

    def __init__(self) -> None:
        self._loose: NDArray[np.int64] = _NO_COUNTS  # all from the lowest bucket in use to the highest
        self._first = 0  # the index of the first of these
        self._indices: NDArray[np.int64] | None = None
        """While thin, the indices of the counters in `_loose`; both arrays are shared, so nothing writes to them."""
        self.count = 0
        self.sum_us = 0
        self.sum_squares_us = 0
        self.min_us = 0
        self.max_us = 0
        self.clipped = 0

    def _used(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The indices of the counters that are not zero, and these (read-only)."""
        if self._indices is not None:
            return self._indices, self._loose
        (used,) = np.nonzero(self._loose)
        return self._first + used, self._loose[used]

    def thin(self) -> None:
        """Keep only the counters in use, where that saves memory; changing the histogram restores all of them."""
        if self._indices is None:
            indices, counts = self._used()
            if 2 * len(indices) < len(self._loose):
                self._first, self._indices, self._loose = 0, indices, counts

    def record_ns(self, values_ns: Sequence[int] | NDArray[np.int64], weights: NDArray[np.int64] | None = None) -> None:
        """Record durations in nanoseconds, each `weights[i]` times; a negative one counts as 0."""
        values_us = (np.asarray(values_ns, dtype=np.int64) + 500) // 1000
        self.record_us(values_us, weights)

    def record_us(self, values_us: NDArray[np.int64], weights: NDArray[np.int64] | None = None) -> None:
        """Record durations in microseconds, each `weights[i]` times (once without weights)."""
        if weights is not None:
            kept = weights > 0
            values_us, weights = values_us[kept], weights[kept]
        if len(values_us) == 0:
            return
        over = values_us > _TOP_US
        if over.any():
            self.clipped += int(over.sum() if weights is None else weights[over].sum())
        values_us = np.clip(values_us, 0, _TOP_US)
        indices = _index(values_us)
        first = _bucket_of(int(indices.min()))
        self._add_counts(first, np.bincount(indices - first, weights).astype(np.int64))
        low, high = int(values_us.min()), int(values_us.max())
        self.min_us = low if self.count == 0 else min(self.min_us, low)
        self.max_us = max(self.max_us, high)
        self.count += len(values_us) if weights is None else int(weights.sum())
        self.sum_us += int((values_us if weights is None else values_us * weights).sum())
        # Squares of microseconds overflow 64 bits within an hour: sum three partial products that do not.
        large, small = values_us >> 16, values_us & 0xFFFF
        times = 1 if weights is None else weights
        products = (large * large, large * small, small * small)
        top, middle, bottom = (int((product * times).sum()) for product in products)
        self.sum_squares_us += (top << 32) + (middle << 17) + bottom

    def _add_counts(self, first: int, counts: NDArray[np.int64]) -> None:
        """Add counters, the first of which has this index, that of a bucket."""
        self._loosen()
        self._make_room(first, first + len(counts))
        begin = first - self._first
        self._loose[begin : begin + len(counts)] += counts

    def _add_used(self, indices: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Add counters with these ascending indices; an empty histogram shares them."""
        if self.count == 0:
            self._first, self._indices, self._loose = 0, indices, counts
            return
        self._loosen()
        self._make_room(_bucket_of(int(indices[0])), int(indices[-1]) + 1)
        self._loose[indices - self._first] += counts

    def _loosen(self) -> None:
        if self._indices is not None:
            indices, counts, self._indices = self._indices, self._loose, None
            self._first, self._loose = 0, _NO_COUNTS
            if len(indices):
                self._make_room(_bucket_of(int(indices[0])), int(indices[-1]) + 1)
                self._loose[indices - self._first] = counts

    def _make_room(self, first: int, end: int) -> None:
        """Extend the counters to include `first` to `end` (exclusive), in whole buckets.

        Arrays of only a few sizes can reuse each other's memory.
        """
        if not len(self._loose):
            self._first = first
        before = max(0, self._first - first)
        after = max(0, -(-(end - self._first - len(self._loose)) // _HALF) * _HALF)
        if before or after:
            around = [np.zeros(room, dtype=np.int64) for room in (before, after)]
            self._loose = np.concatenate([around[0], self._loose, around[1]])
            self._first -= before

    def add(self, other: Histogram) -> None:
        if other.count == 0:
            return
        if other._indices is None:
            self._add_counts(other._first, other._loose)
        else:
            self._add_used(*other._used())
        self.min_us = other.min_us if self.count == 0 else min(self.min_us, other.min_us)
        self.max_us = max(self.max_us, other.max_us)
        self.count += other.count
        self.sum_us += other.sum_us
        self.sum_squares_us += other.sum_squares_us
        self.clipped += other.clipped

    def without(self, part: Histogram) -> Histogram:
        """These values without those of `part`, which must be among them; the extremes stay as they are.

        If `part` is empty this is the histogram itself: to be read, not to be added to.
        """
        if not part.count:
            return self

        rest = Histogram()
        rest.add(self)
        indices, counts = part._used()
        rest._loosen()
        rest._loose[indices - rest._first] -= counts
        rest.count -= part.count
        rest.sum_us -= part.sum_us
        rest.sum_squares_us -= part.sum_squares_us
        rest.clipped -= part.clipped
        return rest

    def values_us(self) -> tuple[list[int], list[int]]:
        """The values that were recorded, each as the top of its bucket, and how often."""
        indices, counts = self._used()
        return [min(top, self.max_us) for top in _tops(indices).tolist()], counts.tolist()

    def percentile_us(self, *percents: float) -> list[int]:
        """Nearest-rank percentiles in microseconds; the histogram must not be empty.

        Each is the top of its bucket, as HdrHistogram reports it, but never above the recorded maximum.
        """
        assert self.count, "an empty histogram has no percentiles"
        indices, counts = self._used()
        ranks = [max(1, math.ceil(round(percent / 100 * self.count, 9))) for percent in percents]
        places = np.searchsorted(np.cumsum(counts), ranks, side="left")
        return [min(top, self.max_us) for top in _tops(indices[places]).tolist()]

    def percentile_ms(self, percent: float) -> float | None:
        """One nearest-rank percentile in milliseconds, None when nothing was recorded."""
        return self.percentile_us(percent)[0] / 1000 if self.count else None

    def mean_ms(self) -> float | None:
        """The exact mean in milliseconds, None when nothing was recorded."""
        return self.sum_us / self.count / 1000 if self.count else None

    def counts_within(self, bounds_us: Sequence[int]) -> list[int]:
        """How many values are at most each of these ascending bounds; exact if bounds are tops of buckets."""
        indices, counts = self._used()
        cumulative = np.concatenate([[0], np.cumsum(counts)])
        within = np.searchsorted(indices, _index(np.array(bounds_us, dtype=np.int64)), side="right")
        return [int(count) for count in cumulative[within]]

    def share_above(self, limit_ms: float) -> float:
        """The share of values in buckets entirely above a limit; 0 when empty."""
        if self.count == 0:
            return 0.0
        above = _index_of(limit_ms) + 1
        if self._indices is None:  # faster than below, because each tick calls this hundreds of times
            return float(self._loose[max(0, above - self._first) :].sum()) / self.count
        indices, counts = self._used()
        return float(counts[np.searchsorted(indices, above) :].sum()) / self.count

    def above(self, limit_ms: float) -> Histogram:
        """The values in buckets entirely above a limit, summed as the tops of their buckets."""
        indices, counts = self._used()
        above = indices > _index_of(limit_ms)
        tops = np.minimum(_tops(indices[above]), self.max_us)
        histogram = Histogram()
        histogram.record_us(tops, counts[above])
        return histogram

    def summary(self, *, with_hdr: bool = False) -> Summary:
        """The statistics in milliseconds; the population's standard deviation."""
        if self.count == 0:
            return Summary(count=0)
        values_us = self.percentile_us(*_PERCENTILES.values())
        percentiles: dict[str, Any] = {name: us / 1000 for name, us in zip(_PERCENTILES, values_us, strict=True)}
        variance = self.sum_squares_us * self.count - self.sum_us**2
        return Summary(
            count=self.count,
            mean=self.mean_ms(),
            stddev=math.sqrt(variance) / self.count / 1000,
            min=self.min_us / 1000,
            max=self.max_us / 1000,
            hdr=self.hdr() if with_hdr else None,
            **percentiles,
        )

    def summary_with(self, censored: Histogram, *, with_hdr: bool = False) -> Summary:
        """The statistics with censored values, known only to be at least those in `censored`."""
        if censored.count == 0:
            return self.summary(with_hdr=with_hdr)
        together = Histogram()
        together.add(self)
        together.add(censored)
        bounds = []
        for name, percent in _PERCENTILES.items():
            rank = max(1, math.ceil(round(percent / 100 * together.count, 9)))
            # It would change if all censored values were infinite.
            if rank > self.count or self.percentile_us(100 * rank / self.count) != together.percentile_us(percent):
                bounds.append(name)
        if not self.count or censored.min_us < self.min_us:
            bounds.append("min")
        return msgspec.structs.replace(
            together.summary(with_hdr=with_hdr),
            count=self.count,
            stddev=None,
            censored=censored.count,
            lower_bounds=("mean", *bounds, "max"),
        )

    def hdr(self) -> str:
        """HdrHistogram's own V2 encoding (base64), readable by its tools in any language."""
        hdr = HdrHistogram(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS)
        indices, counts = self._used()
        np.frombuffer(hdr.counts, dtype=np.uint64)[indices] = counts
        # The codec truncates counts at the maximum, so total, minimum and maximum must be set.
        hdr.total_count, hdr.min_value, hdr.max_value = self.count, self.min_us, self.max_us
        encoded: bytes = hdr.encode()
        hdr.encoder.histogram = None  # They hold each other, and 190 kB; written several times a second.
        return encoded.decode("ascii")

    @classmethod
    def from_hdr(cls, text: str) -> Self:
        """Read what `hdr` wrote; counts are exact, sums use the middle of each bucket.

        Raises `ResultError` for anything else.
        """
        try:
            # Before the codec unpacks or allocates an unlimited amount.
            payload = zlib.decompressobj().decompress(base64.b64decode(text, validate=True)[8:], _MAX_PAYLOAD + 1)
            if len(payload) > _MAX_PAYLOAD or payload[12:32] != _OUR_KIND:
                raise ValueError("of another kind")
            hdr = HdrHistogram.decode(text)
            counts = np.frombuffer(hdr.counts, dtype=np.uint64).astype(np.int64)
            hdr.encoder.histogram = None
        except _NOT_HDR as error:
            raise ResultError(f"not an HdrHistogram of a result: {str(error) or 'of another kind'}") from error
        histogram = cls()
        (indices,) = np.nonzero(counts)
        tops, bottoms = _tops(indices), _tops(indices - 1) + 1
        histogram.record_us((tops + bottoms) // 2, counts[indices])
        if len(indices):
            histogram.min_us, histogram.max_us = int(bottoms[0]), int(tops[-1])
        return histogram

    def encode(self) -> EncodedHistogram:
        sums: dict[str, Any] = {name: getattr(self, name) for name in _SUMS}
        return EncodedHistogram(packed=pack_counters(*self._used()), **sums)

    def encode_some(self) -> EncodedHistogram | None:
        """The encoded histogram; None if nothing was recorded."""
        return self.encode() if self.count else None

    @classmethod
    def decode(cls, encoded: EncodedHistogram | None) -> Self:
        """Read what `encode` made; None gives an empty histogram."""
        histogram = cls()
        if encoded is None:
            return histogram
        if encoded.count:
            steps, counts = unpack_counters(encoded.packed)
            histogram._indices, histogram._loose = np.cumsum(steps), counts
        for name in _SUMS:
            setattr(histogram, name, getattr(encoded, name))
        return histogram

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        return self.encode() == other.encode()

    __hash__ = None  # type: ignore[assignment]  # mutable


def _index(values_us: NDArray[np.int64]) -> NDArray[np.int64]:
    """The counter index of each value: HdrHistogram's bucket and sub-bucket, vectorised (exact below 2**53)."""
    bucket = np.frexp((values_us | _MASK).astype(np.float64))[1].astype(np.int64) - (_MAGNITUDE + 1)
    return ((bucket + 1) << _MAGNITUDE) + ((values_us >> bucket) - _HALF)


def _index_of(limit_ms: float) -> int:
    """The counter index of one limit, 17 times as fast as `_index` of an array of one."""
    value_us = min(int(limit_ms * 1000), _TOP_US)
    bucket = (value_us | _MASK).bit_length() - (_MAGNITUDE + 1)
    return ((bucket + 1) << _MAGNITUDE) + ((value_us >> bucket) - _HALF)


def _bucket_of(index: int) -> int:
    """The first index of a counter's bucket."""
    return index - index % _HALF


def _tops(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """The largest value of each counter; -1 for the place before the first."""
    bucket = np.maximum((indices >> _MAGNITUDE) - 1, 0)
    sub_bucket = (indices & (_HALF - 1)) + _HALF
    return np.where(indices < _HALF, indices, ((sub_bucket + 1) << bucket) - 1)
