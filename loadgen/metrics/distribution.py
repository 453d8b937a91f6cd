"""How the latencies of a stage are distributed, sampled where the screen draws them; live, or of a result."""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.metrics.deltas import MAIN_LATENCIES
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.result import StageResult
from loadgen.metrics.snapshot import CURVE_PERCENTS, Distribution


def distribution_of(number: int, label: str, latency: Mapping[str, Histogram]) -> Distribution:
    """The values at `CURVE_PERCENTS` in milliseconds, of those latencies that have any; `number` is the stage's."""
    known = {name: latency[name] for name in MAIN_LATENCIES if name in latency and latency[name].count}
    return Distribution(
        stage=number,
        label=label,
        counts={name: histogram.count for name, histogram in known.items()},
        curves_ms={
            name: tuple(value_us / 1000 for value_us in histogram.percentile_us(*CURVE_PERCENTS))
            for name, histogram in known.items()
        },
    )


def recorded_distribution(label: str, stage: StageResult) -> Distribution:
    """The same of a stage in a result, with the number 0; raises `ResultError` for what is no HdrHistogram."""
    summaries = {name: stage.latency_ms[name] for name in MAIN_LATENCIES if name in stage.latency_ms}
    latency = {name: Histogram.from_hdr(summary.hdr) for name, summary in summaries.items() if summary.hdr is not None}
    return distribution_of(0, label, latency)
