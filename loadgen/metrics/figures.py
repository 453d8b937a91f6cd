"""The figures by which stages are compared, each with the interval in which its true value lies.

The same for a stage of a result and for one that runs, so that a comparison on the screen and one of two files cannot
disagree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from loadgen.metrics.batch_means import PERCENTS
from loadgen.metrics.deltas import MAIN_LATENCIES, Summary
from loadgen.metrics.difference import (
    CONFIDENCE,
    Estimate,
    difference,
    mean_estimate,
    percentile_estimate,
    rate_estimate,
    share_estimate,
    worth,
)
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.result import Compared, Comparison, Limits, Precision, Result, StageResult
from loadgen.metrics.slo import judge
from loadgen.metrics.stage_record import StageRecord
from loadgen.profile.schema import Reference, ReferencePoint


class Figure(msgspec.Struct, frozen=True):
    """One number of a stage that can be better or worse."""

    name: str  # as `--fail-if` takes it
    title: str
    unit: str
    lower_is_better: bool


class Load(msgspec.Struct, frozen=True):
    """What a stage asked for: stages of the same load and shape can be compared."""

    concurrency: int | None
    rate: float | None
    arrival: str | None
    isl: int
    osl: int
    moves: str = ""  # from where to where, of a load that does

    @property
    def asked(self) -> tuple[int | None, float | None, str | None, str]:
        return self.concurrency, self.rate, self.arrival, self.moves

    @property
    def words(self) -> str:
        rate = [f"rate {self.rate:g}/s"] if self.rate is not None else []
        load = f"conc {self.concurrency}" if self.concurrency is not None else " ".join([*rate, self.arrival or ""])
        return f"{self.moves or load}, ISL {self.isl}, OSL {self.osl}"


def _all_figures() -> Iterator[Figure]:
    yield Figure("output_tok_s", "output tok/s", "tok/s", lower_is_better=False)
    yield Figure("req_s", "req/s", "req/s", lower_is_better=False)
    for metric in MAIN_LATENCIES:
        for statistic in ("mean", *PERCENTS):
            yield Figure(f"{metric}_{statistic}", f"{metric.upper()} {statistic}", "ms", lower_is_better=True)
    yield Figure("goodput", "good streams", "%", lower_is_better=False)
    yield Figure("j_per_token", "J per output token", "J", lower_is_better=True)


FIGURES = {figure.name: figure for figure in _all_figures()}  # by name, in the order of the tables


class _Stage(msgspec.Struct, frozen=True):
    """What the figures are made of."""

    requests_per_s: float | None
    output_tokens_per_s: float | None
    good_share: float | None
    joules_per_output_token: float | None
    summaries: dict[str, Summary]
    histograms: dict[str, Histogram]
    precision: Precision | None


def load_of(stage: StageResult) -> Load:
    """What a stage of a result asked for."""
    target = stage.target
    moves = stage.label if stage.curve else ""
    return Load(target.concurrency, target.rate, target.arrival, stage.isl, stage.osl, moves)


def stages_by_load(result: Result) -> dict[Load, list[StageResult]]:
    """The stages in which something was measured; several may have one load."""
    found: dict[Load, list[StageResult]] = {}
    for stage in result.stages:
        if stage.requests.completed or (stage.measured_s and stage.tokens.output):
            found.setdefault(load_of(stage), []).append(stage)
    return found


def sound_stage(stages: Sequence[StageResult]) -> StageResult:
    """Of several stages of one load the one that counts: the last with which nothing is wrong, else the last."""
    return max(stages, key=lambda stage: (not stage.limited and stage.inconclusive is None, stage.index))


def running_load(stage: StageRecord) -> Load:
    """What a stage that runs asks for."""
    started = stage.started
    arrival = started.arrival if started.rate is not None else None
    moves = started.label if started.steps else ""
    return Load(started.concurrency, started.rate, arrival, started.isl, started.osl, moves)


def figures_of(stage: StageResult, confidence: float = CONFIDENCE) -> dict[str, Estimate]:
    """The figures of a stage of a result; raises `ResultError` for a histogram that is none."""
    known = {
        name: summary
        for name, summary in stage.latency_ms.items()
        if name in MAIN_LATENCIES and (summary.count or summary.censored)
    }
    energy, goodput = stage.energy, stage.goodput
    return _figures(
        _Stage(
            requests_per_s=stage.throughput.requests_per_s,
            output_tokens_per_s=stage.throughput.output_tokens_per_s,
            good_share=goodput.share if goodput is not None else None,
            joules_per_output_token=energy.joules_per_output_token if energy is not None else None,
            summaries=known,
            histograms={name: Histogram.from_hdr(one.hdr) for name, one in known.items() if one.hdr is not None},
            precision=stage.precision,
        ),
        confidence,
    )


def running_figures(stage: StageRecord, limits: Limits) -> dict[str, Estimate]:
    """The figures of a stage so far; the energy is known only when it is over."""
    known = {name: stage.metrics.latency[name] for name in MAIN_LATENCIES if name in stage.metrics.latency}
    goodput = judge(stage, limits).goodput
    return _figures(
        _Stage(
            requests_per_s=stage.per_second("window_requests"),
            output_tokens_per_s=stage.per_second("window_output_tokens"),
            good_share=goodput.share if goodput is not None else None,
            joules_per_output_token=None,
            summaries=stage.summaries(*known),
            histograms=known,
            precision=stage.blocks.precision(),
        ),
        CONFIDENCE,
    )


def compared(a: Mapping[str, Estimate], b: Mapping[str, Estimate]) -> list[Compared]:
    """All figures that one of them has, in the order of `FIGURES`."""
    return [_compared(figure, a.get(name), b.get(name)) for name, figure in FIGURES.items() if name in a or name in b]


def without_words(figures: Sequence[Compared]) -> list[Compared]:
    """The same numbers where nothing is evidence, whatever their intervals say."""
    return [_without_word(one) for one in figures]


def _without_word(one: Compared) -> Compared:
    if one.difference is None:
        return one
    return msgspec.structs.replace(one, difference=msgspec.structs.replace(one.difference, word="no evidence"))


def _compared(figure: Figure, a: Estimate | None, b: Estimate | None) -> Compared:
    found = None
    if a is not None and b is not None:
        found = difference(a, b, lower_is_better=figure.lower_is_better)
    value_a, value_b = a.value if a is not None else None, b.value if b is not None else None
    return Compared(
        figure=figure.name,
        unit=figure.unit,
        a=value_a,
        b=value_b,
        difference=found,
        a_at_least=a is not None and a.at_least,
        b_at_least=b is not None and b.at_least,
    )


def _figures(stage: _Stage, confidence: float) -> dict[str, Estimate]:
    found = {
        "output_tok_s": _rate(stage.output_tokens_per_s, "output_tokens_per_s", stage, confidence),
        "req_s": _rate(stage.requests_per_s, "requests_per_s", stage, confidence),
        "goodput": _good(stage, confidence),
        # The power is steady beside the tokens that it makes.
        "j_per_token": _rate(stage.joules_per_output_token, "output_tokens_per_s", stage, confidence),
    }
    for name, summary in stage.summaries.items():
        found |= _latencies(name, summary, stage, confidence)
    return {name: estimate for name in FIGURES if (estimate := found.get(name)) is not None}


def _rate(value: float | None, name: str, stage: _Stage, confidence: float) -> Estimate | None:
    if value is None:
        return None
    precision = stage.precision
    if precision is None or name not in precision.error_percent:
        return Estimate(value)
    return rate_estimate(value, precision.error_percent[name], precision.blocks, confidence)


def _good(stage: _Stage, confidence: float) -> Estimate | None:
    if stage.good_share is None:
        return None
    return share_estimate(stage.good_share, _worth(stage, "goodput", "share", confidence), confidence)


def _latencies(name: str, summary: Summary, stage: _Stage, confidence: float) -> Iterator[tuple[str, Estimate]]:
    if summary.mean is None:
        return
    count = _worth(stage, name, "mean", confidence)
    mean = mean_estimate(summary.mean, summary.stddev or 0.0, count, confidence)
    yield f"{name}_mean", _as_known(mean, "mean", summary)
    histogram = stage.histograms.get(name)
    for statistic, percent in PERCENTS.items():
        value, count = getattr(summary, statistic), _worth(stage, name, statistic, confidence)
        estimate = Estimate(value)
        if histogram is not None:
            estimate = percentile_estimate(value, histogram, percent, count, confidence)
        yield f"{name}_{statistic}", _as_known(estimate, statistic, summary)


def _as_known(estimate: Estimate, statistic: str, summary: Summary) -> Estimate:
    """A lower bound lies anywhere above its value."""
    return Estimate(estimate.value, estimate.low, at_least=True) if statistic in summary.lower_bounds else estimate


def _worth(stage: _Stage, name: str, statistic: str, confidence: float) -> float:
    """How many independent values to count on; 0 for a stage too short to tell."""
    precision = stage.precision
    if precision is None or statistic not in precision.effective.get(name, {}):
        return 0.0
    return worth(precision.effective[name][statistic], precision.blocks, confidence)


_LATENCY = re.compile(r"(?P<metric>[a-z0-9]+)_(?:mean|p(?P<percent>\d+))_ms")


def compare(reference: Reference, stage: StageRecord) -> list[Comparison]:
    """Every published figure that speaks of this stage, beside what it measured."""
    points = [point for point in reference.points if _speaks_of(point, stage)]
    return [_comparison(point, figure, stage) for point in points for figure in point.figures]


def _speaks_of(point: ReferencePoint, stage: StageRecord) -> bool:
    started = stage.started
    asked = (started.concurrency, started.rate, started.isl, started.osl)
    published = (point.concurrency, point.rate, point.isl, point.osl)
    return all(want is None or want == have for want, have in zip(published, asked, strict=True))


def _comparison(point: ReferencePoint, figure: str, stage: StageRecord) -> Comparison:
    published, measured = point.figures[figure], _measured(figure, stage)
    difference = None if measured is None or published == 0 else 100 * (measured - published) / published
    return Comparison(
        stage=stage.started.index,
        of=point.of,
        figure=figure,
        published=published,
        measured=measured,
        difference_percent=None if difference is None else round(difference, 2),
    )


def _measured(figure: str, stage: StageRecord) -> float | None:
    if stage.counters["completed"] == 0:
        return None
    match = _LATENCY.fullmatch(figure)
    if match is None:
        plain: float | None = _plain_figures(stage)[figure]
        return plain
    histogram = stage.histogram(match["metric"])
    return histogram.mean_ms() if match["percent"] is None else histogram.percentile_ms(_percent(match["percent"]))


def _plain_figures(stage: StageRecord) -> dict[str, Any]:
    rate = stage.per_second("window_requests")
    return {
        "requests_per_s": rate,
        "requests_per_min": None if rate is None else 60 * rate,
        "input_tokens_per_s": stage.per_second("window_input_tokens"),
        "output_tokens_per_s": stage.per_second("window_output_tokens"),
        "total_tokens_per_s": stage.per_second("window_input_tokens", "window_output_tokens"),
        "duration_s": stage.window_s,
        "completed": stage.counters["completed"],
        "input_tokens": stage.counters["input_tokens"],
        "output_tokens": stage.counters["output_tokens"],
    }


def _percent(digits: str) -> float:
    """`50` is 50, `999` is 99.9."""
    return float(digits[:2] + "." + digits[2:]) if len(digits) > 2 else float(digits)
