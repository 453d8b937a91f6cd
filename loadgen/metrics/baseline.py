"""A stage beside the stage of the same load in an earlier run: while it runs, and in the result.

The statistics are those of a comparison of two results (`loadgen.metrics.difference`); what is compared is only what
both have measured under the same load and shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from loadgen.metrics.curve import recorded_distribution
from loadgen.metrics.difference import Estimate
from loadgen.metrics.figures import (
    FIGURES,
    Load,
    compared,
    figures_of,
    load_of,
    running_figures,
    running_load,
    sound_stage,
    stages_by_load,
    without_words,
)
from loadgen.metrics.record import Record
from loadgen.metrics.result import BaselineView, Compared, Result, StageResult
from loadgen.metrics.snapshot import Distribution

_NAMED = 2
_EVERY_S = 1.0


class BaselineStage(msgspec.Struct, frozen=True):
    """What the baseline measured under one load."""

    figures: dict[str, Estimate]
    doubt: str | None  # why it is no evidence
    measured: StageResult


class Baseline(msgspec.Struct, frozen=True):
    """The stages of an earlier run, by load."""

    name: str
    model: str | None
    stages: dict[Load, BaselineStage]


def baseline_of(name: str, result: Result) -> Baseline:
    """A result as a baseline; raises `ResultError` for histograms that cannot be read."""
    stages = {}
    for load, same in stages_by_load(result).items():
        stage = sound_stage(same)
        doubt = "the baseline was client-limited" if stage.limited else None
        if doubt is None and stage.inconclusive is not None:
            doubt = f"the baseline is inconclusive: {stage.inconclusive}"
        stages[load] = BaselineStage(figures_of(stage), doubt, stage)
    return Baseline(name, result.environment.get("model"), stages)


def with_baseline(result: Result, baseline: Baseline) -> Result:
    """The result with each of its stages beside the baseline."""
    model = result.environment.get("model")
    stages = []
    for stage in result.stages:
        view = None
        if stage.requests.completed:
            doubt = stage.why if stage.limited else stage.inconclusive
            view = beside(baseline, load_of(stage), figures_of(stage), doubt=doubt, model=model)
        stages.append(msgspec.structs.replace(stage, baseline=view))
    return msgspec.structs.replace(result, stages=stages)


def beside(
    baseline: Baseline, load: Load, figures: Mapping[str, Estimate], *, doubt: str | None, model: str | None
) -> BaselineView:
    """The figures of a stage beside those of the baseline; `doubt` is why they are no evidence."""
    known = baseline.stages.get(load)
    if known is None:
        have = "; ".join(other.words for other in baseline.stages) or "nothing"
        return BaselineView(name=baseline.name, verdict=f"it has no stage with {load.words}, but {have}")
    found = compared(known.figures, figures)
    doubt = doubt or known.doubt
    if doubt is not None:
        found = without_words(found)
    words, bad = _verdict(found) if doubt is None else (f"no evidence: {doubt}", False)
    if baseline.model != model:
        words = f"of another model, {baseline.model}: {words}"
    return BaselineView(name=baseline.name, verdict=words, bad=bad, load=load.words, figures=tuple(found))


class BaselineWatch:
    """The baseline beside the running or last stage of a record, computed once a second."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._known: tuple[int, float, BaselineView] | None = None
        self._distributions: dict[Load, Distribution] = {}

    def view(self, record: Record) -> BaselineView | None:
        """None before the first stage has numbers."""
        stage = record.shown
        if stage is None or record.last_tick is None or not stage.counters["completed"]:
            return None
        index, now_s = stage.started.index, record.last_tick.t_s
        if self._known is not None and self._known[0] == index and now_s < self._known[1] + _EVERY_S:
            return self._known[2]
        view = beside(
            self._baseline,
            running_load(stage),
            running_figures(stage, record.limits),
            doubt=stage.limit() or stage.inconclusive,
            model=record.server.model if record.server is not None else None,
        )
        self._known = (index, now_s, view)
        return view

    def distribution(self, record: Record) -> Distribution | None:
        """How the latencies of the same load were distributed; None where the baseline has no such stage."""
        stage = record.shown
        load = running_load(stage) if stage is not None else None
        known = self._baseline.stages.get(load) if load is not None else None
        if load is None or known is None:
            return None
        if load not in self._distributions:
            self._distributions[load] = recorded_distribution(self._baseline.name, known.measured)
        return self._distributions[load]


def _verdict(figures: Sequence[Compared]) -> tuple[str, bool]:
    """The figures that are evidently worse, else better, the largest first."""
    for word in ("worse", "better"):
        found = [one for one in figures if one.difference is not None and one.difference.word == word]
        if found:
            found.sort(key=lambda one: -abs(_percent(one)))
            named = ", ".join(_words(one) for one in found[:_NAMED])
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            return f"{word}: {named}{more}", word == "worse"
    return "no evidence of a difference", False


def _words(one: Compared) -> str:
    difference = one.difference
    assert difference is not None
    title = FIGURES[one.figure].title
    if difference.low_percent is None or difference.high_percent is None:
        return f"{title} {_percent(one):+.1f} %"
    return f"{title} {_percent(one):+.1f} % ({difference.low_percent:+.1f} to {difference.high_percent:+.1f})"


def _percent(one: Compared) -> float:
    return (one.difference.percent or 0.0) if one.difference is not None else 0.0
