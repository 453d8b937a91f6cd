"""The figures by which stages are compared, each with the interval of its true value.

They are the same for a stage of a result and for a running one, so that a comparison on the screen and one of two files
cannot disagree. Also here: a stage next to that of the same load in an earlier run, the baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from loadgen.format import target
from loadgen.metrics.batch_means import PERCENTS
from loadgen.metrics.difference import (
    CONFIDENCE,
    Estimate,
    difference,
    effective_sample_size,
    mean_estimate,
    percentile_estimate,
    rate_estimate,
    share_estimate,
)
from loadgen.metrics.histogram import Histogram
from loadgen.schema.comparison import BaselineView, Compared, Precision
from loadgen.schema.deltas import MAIN_LATENCIES, Summary
from loadgen.schema.engine import EngineStage
from loadgen.schema.journal import StageStarted
from loadgen.schema.result import Result, StageResult


class Figure(msgspec.Struct, frozen=True):
    """One figure of a stage that can be better or worse."""

    name: str  # as in `--fail-if`
    title: str
    unit: str
    lower_is_better: bool
    no_interval: str = "too short to tell"  # why an interval is missing


class LoadShape(msgspec.Struct, frozen=True):
    """A stage's load; stages with equal load and shape are comparable, and those without load by label."""

    concurrency: int | None
    rate: float | None
    arrival: str | None
    isl: int
    osl: int
    moves: str = ""  # the ends of a moving load; the label of a stage without load
    pass_number: int | None = None
    in_sessions: bool = False  # the concurrency is that of live sessions

    @property
    def requested(self) -> tuple[int | None, float | None, str | None, str, int | None]:
        return self.concurrency, self.rate, self.arrival, self.moves, self.pass_number

    @property
    def words(self) -> str:
        if self.concurrency == 0:
            return self.moves
        rate = f"rate {self.rate:g}/s" if self.rate is not None else None
        load = (
            f"conc {self.concurrency}" if self.concurrency is not None else " ".join(filter(None, (rate, self.arrival)))
        )
        again = f", pass {self.pass_number}" if self.pass_number is not None else ""
        if self.in_sessions:
            return f"{self.moves or target(self.concurrency, None, in_sessions=True)}{again}"
        return f"{self.moves or load}, ISL {self.isl}, OSL {self.osl}{again}"


def _all_figures() -> Iterator[Figure]:
    yield Figure("output_tok_s", "output tok/s", "tok/s", lower_is_better=False)
    yield Figure("total_tok_s", "total tok/s", "tok/s", lower_is_better=False)
    yield Figure("req_s", "req/s", "req/s", lower_is_better=False)
    for metric in MAIN_LATENCIES:
        for statistic in ("mean", *PERCENTS):
            yield Figure(f"{metric}_{statistic}", f"{metric.upper()} {statistic}", "ms", lower_is_better=True)
    yield Figure("goodput", "good streams", "%", lower_is_better=False)
    yield Figure("j_per_token", "J per output token", "J", lower_is_better=True)
    yield Figure("hits", "prefix hits", "%", lower_is_better=False, no_interval="not estimated")
    yield Figure("interactivity", "session tok/s", "tok/s", lower_is_better=False, no_interval="not estimated")


_MAX_NAMED = 2  # figures in a verdict against a baseline
FIGURES = {figure.name: figure for figure in _all_figures()}  # by name, in the order of the tables


def load_of(stage: StageResult) -> LoadShape:
    if stage.target.concurrency == 0:
        return _no_load(stage.label)
    return LoadShape(
        stage.target.concurrency,
        stage.target.rate,
        stage.target.arrival,
        stage.isl,
        stage.osl,
        moves=stage.label if stage.curve else "",
        pass_number=stage.pass_number,
        in_sessions=stage.sessions is not None,
    )


def load_requested(stage: StageStarted) -> LoadShape:
    if stage.no_load:
        return _no_load(stage.label)
    return LoadShape(
        stage.concurrency,
        stage.rate,
        stage.arrival if stage.rate is not None else None,
        stage.isl,
        stage.osl,
        moves=stage.label if stage.steps else "",
        pass_number=stage.pass_number,
        in_sessions=stage.in_sessions,
    )


def _no_load(label: str) -> LoadShape:
    """A stage without load: what it would have sent does not matter."""
    return LoadShape(0, None, None, 0, 0, label)


def stages_by_load(result: Result) -> dict[LoadShape, list[StageResult]]:
    """The stages with measurements; several may share a load, but each stage without load is by itself."""
    found: dict[LoadShape, list[StageResult]] = {}
    labels = Counter[str]()
    for stage in result.stages:
        if stage.target.concurrency == 0 and stage.measured_s:
            labels[stage.label] += 1
            again = f" ({labels[stage.label]})" if labels[stage.label] > 1 else ""
            found[_no_load(stage.label + again)] = [stage]
        elif stage.requests.completed or (stage.measured_s and stage.tokens.output):
            found.setdefault(load_of(stage), []).append(stage)
    return found


def sound_stage(stages: Sequence[StageResult]) -> StageResult:
    """The representative of several stages with one load: the last without problems, otherwise the last."""
    return max(stages, key=lambda stage: (stage.doubt is None, stage.index))


def figures_of(
    stage: StageResult, confidence: float = CONFIDENCE, histograms: Mapping[str, Histogram] | None = None
) -> dict[str, Estimate]:
    """The figures of a stage, over or not; raises `ResultError` for an invalid histogram.

    `histograms` are decoded from the result unless given. Without load, figures are the engine's own, whose percentiles
    are intervals and are not compared.
    """
    if stage.target.concurrency == 0:
        return _served(stage.engine) if stage.engine is not None else {}
    summaries = {
        name: summary
        for name, summary in stage.latency_ms.items()
        if name in MAIN_LATENCIES and (summary.count or summary.censored)
    }
    if histograms is None:
        histograms = {name: Histogram.from_hdr(one.hdr) for name, one in summaries.items() if one.hdr is not None}
    throughput, energy, goodput = stage.throughput, stage.energy, stage.goodput
    joules = energy.joules_per_output_token if energy is not None else None
    found = {
        "output_tok_s": _rate(throughput.output_tokens_per_s, "output_tokens_per_s", stage.precision, confidence),
        "total_tok_s": _rate(throughput.total_tokens_per_s, "total_tokens_per_s", stage.precision, confidence),
        "req_s": _rate(throughput.requests_per_s, "requests_per_s", stage.precision, confidence),
        # Power is steady compared with the tokens, so the error of the token rate is used.
        "j_per_token": _rate(joules, "output_tokens_per_s", stage.precision, confidence),
    }
    if stage.hits is not None and stage.hits.measured is not None:
        found["hits"] = Estimate(100 * stage.hits.measured)
    if stage.sessions is not None and stage.sessions.e2e_interactivity is not None:
        found["interactivity"] = Estimate(stage.sessions.e2e_interactivity)
    if goodput is not None and goodput.share is not None:
        count = _effective(stage.precision, "goodput", "share", confidence)
        found["goodput"] = share_estimate(goodput.share, count, confidence)
    for name, summary in summaries.items():
        found |= _latencies(name, summary, histograms.get(name), stage.precision, confidence)
    return {name: estimate for name in FIGURES if (estimate := found.get(name)) is not None}


def _served(engine: EngineStage) -> dict[str, Estimate]:
    known = {"output_tok_s": engine.generation_tokens_per_s, "req_s": engine.requests_per_s}
    if engine.prompt_tokens_per_s is not None and engine.generation_tokens_per_s is not None:
        known["total_tok_s"] = engine.prompt_tokens_per_s + engine.generation_tokens_per_s
    known |= {f"{name}_mean": engine.latency_ms[name].mean for name in MAIN_LATENCIES if name in engine.latency_ms}
    return {name: Estimate(value) for name in FIGURES if (value := known.get(name)) is not None}


def _rate(value: float | None, name: str, precision: Precision | None, confidence: float) -> Estimate | None:
    if value is None:
        return None
    if precision is None or name not in precision.error_percent:
        return Estimate(value)
    return rate_estimate(value, precision.error_percent[name], precision.blocks, confidence)


def _latencies(
    name: str, summary: Summary, histogram: Histogram | None, precision: Precision | None, confidence: float
) -> Iterator[tuple[str, Estimate]]:
    if summary.mean is None:
        return
    count = _effective(precision, name, "mean", confidence)
    mean = mean_estimate(summary.mean, summary.stddev or 0.0, count, confidence)
    yield f"{name}_mean", _as_known(mean, "mean", summary)
    for statistic, percent in PERCENTS.items():
        value = getattr(summary, statistic)
        if value is None:  # in an edited result
            continue
        estimate = Estimate(value)
        if histogram is not None:
            count = _effective(precision, name, statistic, confidence)
            estimate = percentile_estimate(estimate.value, histogram, percent, count, confidence)
        yield f"{name}_{statistic}", _as_known(estimate, statistic, summary)


def _as_known(estimate: Estimate, statistic: str, summary: Summary) -> Estimate:
    """Open the interval upwards if the value is a lower bound."""
    return Estimate(estimate.value, estimate.low, at_least=True) if statistic in summary.lower_bounds else estimate


def _effective(precision: Precision | None, name: str, statistic: str, confidence: float) -> float:
    """How many independent values to assume; 0 if the stage was too short to tell."""
    if precision is None or statistic not in precision.effective.get(name, {}):
        return 0.0
    return effective_sample_size(precision.effective[name][statistic], precision.blocks, confidence)


def compared(a: Mapping[str, Estimate], b: Mapping[str, Estimate]) -> list[Compared]:
    """All figures that either has, in the order of `FIGURES`."""
    found = []
    for name, figure in FIGURES.items():
        left, right = a.get(name), b.get(name)
        if left is None and right is None:
            continue
        found.append(
            Compared(
                figure=name,
                unit=figure.unit,
                a=left.value if left is not None else None,
                b=right.value if right is not None else None,
                difference=None
                if left is None or right is None
                else difference(left, right, lower_is_better=figure.lower_is_better),
                a_at_least=left is not None and left.at_least,
                b_at_least=right is not None and right.at_least,
            )
        )
    return found


def without_words(figures: Sequence[Compared]) -> list[Compared]:
    """The same figures without verdicts, for stages in doubt."""
    differences = [one.difference and replace(one.difference, word="no evidence") for one in figures]
    return [replace(one, difference=difference) for one, difference in zip(figures, differences, strict=True)]


class Baseline(msgspec.Struct, frozen=True):
    """The stages of an earlier run, by load."""

    name: str
    model: str | None
    stages: dict[LoadShape, StageResult]
    figures: dict[LoadShape, dict[str, Estimate]]


def baseline_of(name: str, result: Result) -> Baseline:
    """A result as a baseline; raises `ResultError` for histograms that cannot be read."""
    stages = {load: sound_stage(same) for load, same in stages_by_load(result).items()}
    figures = {load: figures_of(stage) for load, stage in stages.items()}
    return Baseline(name, result.environment.get("model"), stages, figures)


def with_baseline(result: Result, baseline: Baseline) -> Result:
    """The result with each of its stages compared with the baseline."""
    model = result.environment.get("model")
    stages = [
        replace(stage, baseline=compared_with(baseline, stage, model) if stage.requests.completed else None)
        for stage in result.stages
    ]
    return replace(result, stages=stages)


def compared_with(
    baseline: Baseline, stage: StageResult, model: str | None, histograms: Mapping[str, Histogram] | None = None
) -> BaselineView:
    """The figures of a stage compared with the baseline's under the same load."""
    load = load_of(stage)
    known = baseline.stages.get(load)
    if known is None:
        have = "; ".join(other.words for other in baseline.stages) or "nothing"
        return BaselineView(name=baseline.name, verdict=f"it has no stage with {load.words}, but {have}")
    found = compared(baseline.figures[load], figures_of(stage, histograms=histograms))
    doubt = stage.doubt or (known.doubt and f"the baseline is {known.doubt}")
    if doubt is not None:
        found = without_words(found)
    words, bad = _verdict(found) if doubt is None else (f"no evidence: {doubt}", False)
    if baseline.model != model:
        words = f"of another model, {baseline.model}: {words}"
    return BaselineView(name=baseline.name, verdict=words, bad=bad, load=load.words, figures=tuple(found))


def _verdict(figures: Sequence[Compared]) -> tuple[str, bool]:
    """In words, the figures that are evidently worse, or else those that are better, the largest difference first."""
    for word in ("worse", "better"):
        found = [(one.figure, one.difference) for one in figures if one.difference and one.difference.word == word]
        if found:
            found.sort(key=lambda one: -abs(one[1].percent or 0.0))
            words = []
            for figure, by in found[:_MAX_NAMED]:
                is_bounded = by.low_percent is not None and by.high_percent is not None
                bounds = f" ({by.low_percent:+.1f} to {by.high_percent:+.1f})" if is_bounded else ""
                words.append(f"{FIGURES[figure].title} {by.percent or 0.0:+.1f} %{bounds}")
            named = ", ".join(words)
            more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
            return f"{word}: {named}{more}", word == "worse"
    return "no evidence of a difference", False
