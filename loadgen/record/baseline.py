"""A stage compared with the stage of the same load in an earlier run.

The statistics are those of a comparison of two results (`loadgen.metrics.difference`), for figures that both measured
under the same load and shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from loadgen.metrics.difference import Estimate
from loadgen.metrics.histogram import Histogram
from loadgen.record.figures import (
    FIGURES,
    LoadShape,
    compared,
    figures_of,
    load_of,
    sound_stage,
    stages_by_load,
    without_words,
)
from loadgen.schema.comparison import BaselineView, Compared
from loadgen.schema.result import Result, StageResult

_NAMED = 2


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
            for figure, by in found[:_NAMED]:
                is_bounded = by.low_percent is not None and by.high_percent is not None
                bounds = f" ({by.low_percent:+.1f} to {by.high_percent:+.1f})" if is_bounded else ""
                words.append(f"{FIGURES[figure].title} {by.percent or 0.0:+.1f} %{bounds}")
            named = ", ".join(words)
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            return f"{word}: {named}{more}", word == "worse"
    return "no evidence of a difference", False
