"""The load curve: figures by streams held, from loads that move and from stages with a constant load.

Everything measured at one load is one point, whatever led to it: stages of a plan, loads set by the operator, steps of
ramps. Ramps up and down are kept apart, so that hysteresis shows. Also here: the distribution of a stage's latencies,
sampled for drawing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.hits import hits_of
from loadgen.metrics.stage import LoadSum
from loadgen.record.stage import StageRecord
from loadgen.schema.deltas import HIT_COUNTS, MAIN_LATENCIES
from loadgen.schema.result import CurvePoint, StageResult
from loadgen.schema.snapshot import CURVE_PERCENTS, Distribution

Direction = Literal["", "up", "down"]
_Place = tuple[int, int, Direction, float]
"""A point's position on the curve: ISL, OSL, direction and load."""


def _point(place: _Place, total: LoadSum, kv_tokens: int | None) -> CurvePoint:
    span_s, held_area_s = total.span_ns / 1e9, total.held_area_ns / 1e9
    isl, osl, direction, load = place
    return CurvePoint(
        isl=isl,
        osl=osl,
        load=load,
        direction=direction,
        held=held_area_s / span_s if span_s else 0.0,
        measured_s=span_s,
        output_tokens_per_s=total.output_tokens / span_s if span_s else None,
        output_tokens_per_s_per_user=total.output_tokens / held_area_s if held_area_s else None,
        ttft_ms=total.ttft.summary(),
        itl_ms=total.itl.summary(),
        hits=hits_of(total.hits, pool_tokens=kv_tokens),
    )


class LoadCurve:
    """The curve of ended stages; running ones are added for each look."""

    def __init__(self, stages: Iterable[StageRecord] = ()) -> None:
        self._sums: dict[_Place, LoadSum] = {}
        self._points: dict[_Place, CurvePoint] = {}
        self._kv_tokens: int | None = None  # of the latest stage's servers
        for stage in stages:
            self.add(stage)

    def add(self, stage: StageRecord) -> None:
        """Add a stage that is complete."""
        for place, part in _parts(stage):
            self._sums.setdefault(place, LoadSum()).add(part)
            self._points[place] = _point(place, self._sums[place], stage.kv_tokens)
            self._kv_tokens = stage.kv_tokens

    def points(self, others: Iterable[LoadCurve] = ()) -> tuple[CurvePoint, ...]:
        """A point per load with measurements, here or in `others`, by shape, direction and load."""
        sums, points = self._sums.copy(), self._points.copy()
        for other in others:
            for place, part in other._sums.items():
                if place not in sums:
                    sums[place], points[place] = part, other._points[place]
                    continue
                total = LoadSum()
                total.add(sums[place])
                total.add(part)
                sums[place], points[place] = total, _point(place, total, self._kv_tokens)
        return tuple(points[place] for place in sorted(points))


def _parts(stage: StageRecord) -> Iterator[tuple[_Place, LoadSum]]:
    started = stage.started
    if started.no_load or (started.pass_number or 1) > 1:
        return  # a warm prefix cache would make it another curve
    load = float((started.rate if started.rate is not None else started.concurrency) or 0)
    direction: Direction = ""
    if started.steps and started.steps[0][1] != started.steps[-1][1]:
        direction = "up" if started.steps[-1][1] > started.steps[0][1] else "down"
    place = started.isl, started.osl, direction
    if not started.steps:
        if stage.window_s and started.rate is None:
            part = LoadSum()
            part.span_ns, part.held_area_ns = round(stage.window_s * 1e9), stage.counters["held_area_ns"]
            part.output_tokens = stage.counters["window_output_tokens"]
            part.hits.update({name: stage.counters[name] for name in HIT_COUNTS if stage.counters[name]})
            part.ttft, part.itl = stage.histogram("ttft"), stage.histogram("itl")
            yield (*place, load), part
        return
    for step, part in sorted(stage.metrics.bins.items()):
        yield (*place, started.steps[step][1] if step < len(started.steps) else load), part


def distribution_of(number: int, label: str, latency: Mapping[str, Histogram]) -> Distribution:
    """Values in milliseconds at `CURVE_PERCENTS` for each latency with data; `number` is the stage's."""
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
    """The distribution of a stage in a result, with number 0; raises `ResultError` for an invalid histogram."""
    summaries = {name: stage.latency_ms[name] for name in MAIN_LATENCIES if name in stage.latency_ms}
    latency = {name: Histogram.from_hdr(summary.hdr) for name, summary in summaries.items() if summary.hdr is not None}
    return distribution_of(0, label, latency)
