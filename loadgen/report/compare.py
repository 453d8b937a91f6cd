"""One run against another: their stages matched by load, every figure with how sure the difference is.

Pure functions over results. A figure of B is `better` or `worse` only where the interval of its difference from A
excludes zero (see `loadgen.metrics.difference`) and nothing speaks against the stage: where the client was the limit,
the stage inconclusive or its answers of another length, the numbers stand there without a word. Each interval holds
with the given confidence by itself: of many comparisons of equals, some will differ by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from loadgen.metrics.difference import CONFIDENCE, Estimate, Ratio, geometric_mean
from loadgen.metrics.figures import FIGURES, Load, compared, figures_of, sound_stage, stages_by_load, without_words
from loadgen.metrics.result import Compared, Result, StageResult
from loadgen.report.configuration import (
    Setting,
    caveats,
    configuration_differences,
    engine_of,
    hardware_of,
    model_of,
    unlikeness,
)

_TOKENS_WITHIN = 0.05
_FAILED_SHARE = 0.01


class Side(msgspec.Struct, frozen=True):
    """One of the runs that are compared."""

    name: str  # as it was named
    run_id: str
    started_at: str
    model: str
    hardware: str
    engine: str


class StageComparison(msgspec.Struct, frozen=True):
    """Two stages of the same load."""

    title: str
    stage_a: int  # its number, from 1
    stage_b: int
    doubts: list[str]  # why nothing in it is evidence; empty where it is
    figures: list[Compared]


class Mean(msgspec.Struct, frozen=True):
    """The geometric mean of a figure, B over A, over all matched stages that are not in doubt."""

    figure: str
    ratio: Ratio


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """B against A."""

    a: Side
    b: Side
    confidence: float
    configuration: list[Setting]
    unlike: list[str]  # why the two do not speak of the same thing; empty for what can be compared
    notes: list[str]
    stages: list[StageComparison]
    means: list[Mean]  # over the matrix; empty for a single stage
    only_a: list[str]  # the loads that only A has
    only_b: list[str]

    @property
    def words(self) -> dict[str, int]:
        """How many figures are `better`, `worse`, and `no evidence`."""
        found = [one.difference.word for stage in self.stages for one in stage.figures if one.difference is not None]
        return {word: found.count(word) for word in ("better", "worse", "no evidence")}


class CompareDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of a comparison; all are against the same A."""

    schema: Literal["vramp.compare/1"] = "vramp.compare/1"
    comparisons: list[RunComparison]


class _Pair(msgspec.Struct, frozen=True):
    title: str
    a: StageResult
    b: StageResult


def compare_runs(
    a: tuple[str, Result], b: tuple[str, Result], *, confidence: float = CONFIDENCE, any_shape: bool = False
) -> RunComparison:
    """B against A, each with its name.

    `any_shape` matches what is left over by its load alone, whatever its ISL and OSL. Raises `ResultError` for a
    result whose histograms cannot be read.
    """
    (name_a, result_a), (name_b, result_b) = a, b
    stages_a, repeated_a = _by_load(result_a, name_a)
    stages_b, repeated_b = _by_load(result_b, name_b)
    pairs = [_Pair(load.words, stage, stages_b[load]) for load, stage in stages_a.items() if load in stages_b]
    left_a = {load: stage for load, stage in stages_a.items() if load not in stages_b}
    left_b = {load: stage for load, stage in stages_b.items() if load not in stages_a}
    unlike = unlikeness(result_a, result_b)
    if any_shape:
        odd = _match_any_shape(left_a, left_b)
        pairs += odd
        unlike += [f"another shape: {pair.title}" for pair in odd]
    stages, estimates = [], []
    for pair in pairs:
        figures_a, figures_b = figures_of(pair.a, confidence), figures_of(pair.b, confidence)
        stage = _stage(pair, figures_a, figures_b)
        stages.append(stage)
        if not stage.doubts:
            estimates.append((figures_a, figures_b))
    return RunComparison(
        a=_side(name_a, result_a),
        b=_side(name_b, result_b),
        confidence=confidence,
        configuration=configuration_differences(result_a, result_b),
        unlike=unlike,
        notes=[*caveats(result_a, name_a), *caveats(result_b, name_b), *repeated_a, *repeated_b],
        stages=stages,
        means=list(_means(estimates)),
        only_a=[load.words for load in left_a],
        only_b=[load.words for load in left_b],
    )


def _side(name: str, result: Result) -> Side:
    return Side(
        name=name,
        run_id=result.run_id,
        started_at=result.started_at,
        model=model_of(result),
        hardware=hardware_of(result),
        engine=engine_of(result),
    )


def _by_load(result: Result, name: str) -> tuple[dict[Load, StageResult], list[str]]:
    """The stage that counts for each load, and a note where there are several."""
    found = stages_by_load(result)
    chosen = {load: sound_stage(stages) for load, stages in found.items()}
    notes = [
        f"{name}: stages {', '.join(str(stage.index + 1) for stage in stages)} have the load {load.words}; "
        f"stage {chosen[load].index + 1} counts"
        for load, stages in found.items()
        if len(stages) > 1
    ]
    return chosen, notes


def _match_any_shape(left_a: dict[Load, StageResult], left_b: dict[Load, StageResult]) -> list[_Pair]:
    """Pairs of the same load and another shape, taken out of what is left."""
    pairs = []
    for load_a in list(left_a):
        load_b = next((load for load in left_b if load.asked == load_a.asked), None)
        if load_b is not None:
            title = f"{load_a.words} against ISL {load_b.isl}, OSL {load_b.osl}"
            pairs.append(_Pair(title, left_a.pop(load_a), left_b.pop(load_b)))
    return pairs


def _stage(pair: _Pair, a: Mapping[str, Estimate], b: Mapping[str, Estimate]) -> StageComparison:
    doubts = list(_doubts(pair))
    figures = compared(a, b)
    return StageComparison(
        title=pair.title,
        stage_a=pair.a.index + 1,
        stage_b=pair.b.index + 1,
        doubts=doubts,
        figures=without_words(figures) if doubts else figures,
    )


def _doubts(pair: _Pair) -> Iterator[str]:
    for name, stage in (("A", pair.a), ("B", pair.b)):
        if stage.limited:
            yield f"{name} is client-limited: {stage.why}"
        if stage.inconclusive is not None:
            yield f"{name} is inconclusive: {stage.inconclusive}"
        if stage.curve:
            yield f"the load of {name} moves: these are the figures of no single load"
        failed, completed = stage.requests.failed, stage.requests.completed
        if failed > _FAILED_SHARE * (failed + completed):
            yield f"{name} had {failed} of {failed + completed} requests failing: the rest is not the same load"
    if pair.a.tokens.source != pair.b.tokens.source:
        yield f"tokens were counted by {pair.a.tokens.source} in A and by {pair.b.tokens.source} in B"
    if (pair.a.isl, pair.a.osl) == (pair.b.isl, pair.b.osl):
        for kind in ("input", "output"):
            one, other = (getattr(stage.tokens, f"{kind}_per_request") for stage in (pair.a, pair.b))
            if one and other and abs(other - one) > _TOKENS_WITHIN * one:
                yield f"a request had {one:.0f} {kind} tokens in A and {other:.0f} in B"


def _means(stages: Sequence[tuple[Mapping[str, Estimate], Mapping[str, Estimate]]]) -> Iterator[Mean]:
    for name in FIGURES:
        both = ((a[name], b[name]) for a, b in stages if name in a and name in b)
        pairs = [(a, b) for a, b in both if not a.at_least and not b.at_least]
        ratio = geometric_mean(pairs) if len(pairs) > 1 else None
        if ratio is not None:
            yield Mean(name, ratio)
