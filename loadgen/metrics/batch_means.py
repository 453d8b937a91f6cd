"""The effective sample size of a stage: the number of independent streams that its figures are worth.

Concurrent streams share the engine's batches and stalls, so hundreds of them can be worth a few. The stage is cut into
consecutive blocks, each at least as long as a stream, and the variance between blocks is measured (batch means; Law,
Simulation Modeling and Analysis, section 9.5.3). Every figure is a ratio of sums over blocks: a mean is values over
their count, a percentile the count below it over all, a throughput tokens over seconds. So one formula, the variance of
a ratio estimator (Cochran, Sampling Techniques, section 6.3), covers all. The variance of independent values divided by
this one is the effective share of them.

Bounded: a stage has at most `MAX_BLOCKS`; beyond that, neighbouring blocks are joined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage import StageMetrics
from loadgen.schema.comparison import Precision
from loadgen.schema.deltas import MAIN_LATENCIES

PERCENTS = {"p50": 50.0, "p90": 90.0, "p99": 99.0}
MAX_BLOCKS = 32
MIN_BLOCKS = 4  # fewer do not show the variance between them

_RATES = {
    "requests_per_s": ("window_requests",),
    "output_tokens_per_s": ("window_output_tokens",),
    "total_tokens_per_s": ("window_input_tokens", "window_output_tokens"),
}
_COUNTERS = ("window_requests", "window_input_tokens", "window_output_tokens", "good", "completed", "failed")


class Block:
    """What happened in a stretch of a stage."""

    def __init__(self) -> None:
        self.ticks = 0
        self.window_s = 0.0
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.latency = {name: Histogram() for name in MAIN_LATENCIES}

    def take(self, metrics: StageMetrics | Block) -> None:
        for name in _COUNTERS:
            self.counters[name] += metrics.counters[name]
        for name in MAIN_LATENCIES:
            if name in metrics.latency:
                self.latency[name].add(metrics.latency[name])

    def thin(self) -> None:
        """Use less memory, once the block is complete."""
        for histogram in self.latency.values():
            histogram.thin()


class BatchMeans:
    """The blocks of one stage."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._ticks = 1  # per block, except the last
        self._window_s = 0.0
        self._is_frozen = False
        self._precision: Precision | None = None
        self._is_known = False  # whether the precision is up to date

    def add(self, metrics: StageMetrics, window_s: float) -> None:
        """Add a tick, after which the measured window is `window_s` long; does nothing before the window opens.

        Ticks after `freeze` are ignored.
        """
        measured = any(name in metrics.latency for name in MAIN_LATENCIES)
        if self._is_frozen or (window_s == 0.0 and not measured):
            return
        if not self._blocks or self._blocks[-1].ticks == self._ticks:
            complete = self._blocks[-1:]
            if len(self._blocks) == MAX_BLOCKS:
                complete = self._blocks = _joined(self._blocks, 2)
                self._ticks *= 2
            for block in complete:
                block.thin()
            self._blocks.append(Block())
        block = self._blocks[-1]
        block.ticks += 1
        block.window_s += window_s - self._window_s
        self._window_s = window_s
        block.take(metrics)
        self._is_known = False

    def freeze(self) -> None:
        """Keep the precision and drop the blocks, once the stage is over."""
        self.precision()
        self._is_frozen = True
        self._blocks = []

    def precision(self) -> Precision | None:
        """The precision of the numbers so far; None if there are too few blocks."""
        if not self._is_frozen and not self._is_known:
            self._precision, self._is_known = self._computed(), True
        return self._precision

    def means_ms(self, name: str) -> list[float]:
        """The means of a latency in consecutive blocks, each at least as long as a stream; none after `freeze`."""
        means = (block.latency[name].mean_ms() for block in self._long_blocks())
        return [mean for mean in means if mean is not None]

    def _long_blocks(self) -> list[Block]:
        e2e_ms = _total(self._blocks, "e2e").mean_ms()
        if e2e_ms is None or self._window_s == 0.0:
            return []
        block_s = self._window_s / len(self._blocks)
        return _joined(self._blocks, max(1, -int(-e2e_ms / 1000 // block_s)))

    def _computed(self) -> Precision | None:
        blocks = self._long_blocks()
        if len(blocks) < MIN_BLOCKS:
            return None
        known = [name for name in MAIN_LATENCIES if _total(blocks, name).count]
        effective = {name: _effective_latency(name, blocks) for name in known}
        determined = [block.counters["completed"] + block.counters["failed"] for block in blocks]
        if sum(determined):
            good = [block.counters["good"] for block in blocks]
            effective["goodput"] = {"share": _effective_share(good, determined)}
        return Precision(
            blocks=len(blocks),
            block_s=round(self._window_s / len(blocks), 3),
            effective=effective,
            error_percent=_errors_percent(blocks),
        )


def ratio_variance(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """The variance of the sum of numerators over that of denominators, each pair from a block of its own."""
    above, below = np.array(numerators, dtype=float), np.array(denominators, dtype=float)
    spread = above - above.sum() / below.sum() * below
    count = len(above)
    return float(count / (count - 1) * (spread**2).sum() / below.sum() ** 2)


def _joined(blocks: Sequence[Block], size: int) -> list[Block]:
    """Neighbours joined into blocks of `size`; the last takes the remainder."""
    ends = range(size, len(blocks) + 1, size)
    groups = [list(blocks[end - size : end]) for end in ends]
    if groups:
        groups[-1] += blocks[ends[-1] :]
    joined = []
    for group in groups:
        total = group[0] if len(group) == 1 else Block()
        for block in group if len(group) > 1 else ():
            total.take(block)
            total.ticks += block.ticks
            total.window_s += block.window_s
        joined.append(total)
    return joined


def _total(blocks: Sequence[Block], name: str) -> Histogram:
    total = Histogram()
    for block in blocks:
        total.add(block.latency[name])
    return total


def _effective_latency(name: str, blocks: Sequence[Block]) -> dict[str, float]:
    total, parts = _total(blocks, name), [block.latency[name] for block in blocks]
    counts = [part.count for part in parts]
    variance = total.sum_squares_us / total.count - (total.sum_us / total.count) ** 2
    error = ratio_variance([part.sum_us for part in parts], counts)
    found = {"mean": _independent(total.count, variance, error, len(blocks))}
    for statistic, percent in PERCENTS.items():
        limit_ms = (total.percentile_us(percent)[0] + 0.5) / 1000  # values in its bucket count as below it
        below = [round(part.count * (1 - part.share_above(limit_ms))) for part in parts]
        found[statistic] = _effective_share(below, counts)
    return found


def _effective_share(parts: Sequence[int], counts: Sequence[int]) -> float:
    total = sum(counts)
    share = sum(parts) / total
    return _independent(total, share * (1 - share), ratio_variance(parts, counts), len(parts))


def _independent(count: int, variance: float, error: float, blocks: int) -> float:
    """How many independent values of this variance have this standard error; without variance, one per block."""
    if variance <= 0 or error <= 0:
        return float(min(count, blocks))
    return round(min(float(count), max(1.0, variance / error)), 2)


def _errors_percent(blocks: Sequence[Block]) -> dict[str, float]:
    windows = [block for block in blocks if block.window_s > 0]
    seconds = [block.window_s for block in windows]
    if len(windows) < MIN_BLOCKS:
        return {}
    errors = {}
    for name, counters in _RATES.items():
        counts = [sum(block.counters[counter] for counter in counters) for block in windows]
        if sum(counts):
            error = math.sqrt(ratio_variance(counts, seconds)) * sum(seconds) / sum(counts)
            errors[name] = round(100 * error, 4)
    return errors
