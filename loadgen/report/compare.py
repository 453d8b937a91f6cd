"""Compares two runs: stages matched by load, and for each figure how sure its difference is.

Pure functions over results. A figure of B is `better` or `worse` only if the interval of its difference from A excludes
zero (see `loadgen.metrics.difference`) and the stage is not in doubt: if the client was the limit, the stage
inconclusive or answers of another length, figures are shown without a word. Each interval holds with the given
confidence on its own: among many comparisons of equal runs, some will differ by chance.

Limits on a comparison, for CI: `ttft_p99>+10%` fails when B's TTFT p99 is more than 10 % above A's.

    LIMIT := FIGURE (">+" | "<-") NUMBER UNIT        UNIT := "%" | "ms" | "s"  (the latter two for latencies)

A limit is broken in a stage if the measured difference exceeds it and its interval excludes zero, so that the noise of
short stages breaks nothing. Strict limits use the measured difference alone. A figure known only as a lower bound is
checked against a limit only if that decides it. A limit is also broken where B failed to measure what A did. In a stage
in doubt, a difference beyond the limit is neither broken nor kept; but that B had requests failing does not excuse it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from loadgen.errors import ProfileError, ResultError
from loadgen.grouping import by_key
from loadgen.metrics.difference import CONFIDENCE, Estimate, Ratio, geometric_mean
from loadgen.profile import BASE
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
from loadgen.record.subject import engine_of, hardware_of, known_time, model_of
from loadgen.report.configuration import Setting, caveats, configuration_differences, unlikeness
from loadgen.report.notes import condition_words
from loadgen.report.output import OutputComparison, compare_output
from loadgen.schema.comparison import Compared, Difference, PublishedRatio
from loadgen.schema.result import Result, StageResult

_TOKENS_WITHIN = 0.05
_FAILED_SHARE = 0.01


class Side(msgspec.Struct, frozen=True):
    name: str  # as given by the user
    run_id: str
    started_at: str | None  # null if another tool's file has no date
    model: str
    hardware: str
    engine: str


class StageComparison(msgspec.Struct, frozen=True):
    title: str
    stage_a: int  # its number, from 1
    stage_b: int
    doubts: list[str]  # why its figures are not evidence; empty if they are
    figures: list[Compared]
    excused: bool = False  # a doubt is of another kind than that B had requests failing


class Mean(msgspec.Struct, frozen=True):
    """The geometric mean of a figure, B over A, over all matched stages without doubts."""

    figure: str
    ratio: Ratio


class MeasuredRatio(msgspec.Struct, frozen=True):
    """A published ratio, and the same of two stages of one load."""

    load: str
    published: PublishedRatio
    measured: float | None  # None if a stage lacks the figure, or has only a bound
    difference_percent: float | None
    doubt: str | None = None  # why the measured one is not evidence


class Ratios(msgspec.Struct, frozen=True):
    """The published ratios that several runs measured, and what they were published for."""

    source: str
    conditions: list[str]
    rows: list[MeasuredRatio]


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """B against A."""

    a: Side
    b: Side
    confidence: float
    configuration: list[Setting]
    unlike: list[str]  # why the runs are not comparable; empty if they are
    notes: list[str]
    definitions: dict[str, list[str]] = {}
    """Definitions of another tool that differ from vramp's, A's and B's: by latency, and `throughput`."""
    stages: list[StageComparison]
    means: list[Mean]  # over the matrix; empty for a single stage
    output: OutputComparison | None  # None if one of them had no canaries
    only_a: list[str]  # the loads that only A has
    only_b: list[str]
    unmeasured: list[str] = []  # the loads in `only_a` that B sent or, cut short, did not come to
    ratios: Ratios | None = None  # published for these two variants

    @property
    def words(self) -> dict[str, int]:
        """How many figures are `better`, `worse`, and `no evidence`."""
        found = [one.difference.word for stage in self.stages for one in stage.figures if one.difference is not None]
        return {word: found.count(word) for word in ("better", "worse", "no evidence")}


def compare_runs(
    a: tuple[str, Result], b: tuple[str, Result], *, confidence: float = CONFIDENCE, any_shape: bool = False
) -> RunComparison:
    """Compare B with A, each given with its name.

    `any_shape` matches remaining stages by load alone, whatever their ISL and OSL. Raises `ResultError` if a result's
    histograms cannot be read.
    """
    (name_a, result_a), (name_b, result_b) = a, b
    stages_a, repeated_a = _by_load(result_a, name_a)
    stages_b, repeated_b = _by_load(result_b, name_b)
    pairs = [(load.words, stage, stages_b[load]) for load, stage in stages_a.items() if load in stages_b]
    left_a = {load: stage for load, stage in stages_a.items() if load not in stages_b}
    left_b = {load: stage for load, stage in stages_b.items() if load not in stages_a}
    unlike = list(unlikeness(result_a, result_b))
    if any_shape:
        odd = _match_any_shape(left_a, left_b)
        pairs += odd
        unlike += [f"another shape: {title}" for title, _, _ in odd]

    estimates = [(figures_of(one, confidence), figures_of(other, confidence)) for _, one, other in pairs]
    stages = [_stage(*pair, *figures) for pair, figures in zip(pairs, estimates, strict=True)]
    # Of these loads B should have figures; every search has probes of its own.
    cut_short = result_b.state != "complete" and result_a.search is None
    sent_b = {load_of(stage) for stage in result_b.stages}
    sides = [
        Side(name, one.run_id, known_time(one.started_at), model_of(one), hardware_of(one), engine_of(one))
        for name, one in (a, b)
    ]
    return RunComparison(
        a=sides[0],
        b=sides[1],
        confidence=confidence,
        configuration=configuration_differences(result_a, result_b),
        unlike=unlike,
        notes=[*caveats(result_a, name_a), *caveats(result_b, name_b), *repeated_a, *repeated_b],
        definitions=by_key(
            (name, f"{letter}, {result.measured_by}: {text}")
            for letter, result in (("A", result_a), ("B", result_b))
            for name, text in result.definitions.items()
        ),
        stages=stages,
        means=list(_means([both for both, stage in zip(estimates, stages, strict=True) if not stage.doubts])),
        output=compare_output(result_a.canary, result_b.canary, confidence),
        only_a=[load.words for load in left_a],
        only_b=[load.words for load in left_b],
        unmeasured=[load.words for load in left_a if cut_short or load in sent_b],
        ratios=measured_ratios({variant_of(result_a): result_a, variant_of(result_b): result_b}),
    )


def _match_any_shape(
    left_a: dict[LoadShape, StageResult], left_b: dict[LoadShape, StageResult]
) -> list[tuple[str, StageResult, StageResult]]:
    """Pairs of equal load and different shape, removed from what is left."""
    pairs: list[tuple[str, StageResult, StageResult]] = []
    for load_a in list(left_a):
        load_b = next((load for load in left_b if load.requested == load_a.requested), None)
        if load_b is not None:
            title = f"{load_a.words} against ISL {load_b.isl}, OSL {load_b.osl}"
            pairs.append((title, left_a.pop(load_a), left_b.pop(load_b)))
    return pairs


def measured_ratios(variants: Mapping[str, Result]) -> Ratios | None:
    """Each published ratio of these variants, at each load that both have.

    None if there is none, or if the runs have different publications.
    """
    references = [result.reference for result in variants.values() if result.reference is not None]
    if len({reference.source for reference in references}) != 1:
        return None
    rows = [
        found
        for ratio in references[0].ratios
        if ratio.variant in variants and ratio.over in variants
        for found in _ratios_measured(ratio, variants[ratio.variant], variants[ratio.over])
    ]
    if not rows:
        return None
    named = {condition.name: condition.published for one in references for condition in one.conditions}
    conditions = []
    if named:
        conditions.append(f"published for {', '.join(f'{name} {value}' for name, value in named.items())}")
        conditions += dict.fromkeys(words for one in references for words in condition_words(one.conditions))
    return Ratios(references[0].source, conditions, rows)


def variant_of(result: Result) -> str:
    """The variant of the profile that a run began with."""
    return str(result.profile.get("name", "")).partition("+")[2] or BASE


def _ratios_measured(ratio: PublishedRatio, one: Result, other: Result) -> Iterator[MeasuredRatio]:
    others = stages_by_load(other)
    for load, stages in stages_by_load(one).items():
        wanted = {key: getattr(ratio, key) for key in ("concurrency", "rate", "isl", "osl")}
        if load not in others or any(value not in (None, getattr(load, key)) for key, value in wanted.items()):
            continue
        stage, over = sound_stage(stages), sound_stage(others[load])
        value, divisor = (_published_figure(ratio.figure, each) for each in (stage, over))
        measured = value / divisor if value is not None and divisor else None
        difference = None if measured is None else 100 * (measured / ratio.value - 1)
        yield MeasuredRatio(load.words, ratio, measured, difference, stage.doubt or over.doubt)


def _published_figure(name: str, stage: StageResult) -> float | None:
    if name.endswith("_per_s"):
        rate: float | None = getattr(stage.throughput, name)
        return rate
    metric, statistic = name.removesuffix("_ms").split("_")
    summary = stage.latency_ms.get(metric)
    value: float | None = None if summary is None else getattr(summary, statistic)
    return None if summary is None or statistic in summary.lower_bounds else value


def with_meant_shapes(runs: Sequence[tuple[str, Result]]) -> list[tuple[str, Result]]:
    """The runs, with requested lengths from other runs where another tool's file has only close mean lengths."""
    shapes = [{(stage.isl, stage.osl) for stage in result.stages} for _, result in runs]
    found = []
    for number, (name, result) in enumerate(runs):
        stages = result.stages
        if result.measured_by is not None:
            others = sorted(set().union(*shapes[:number], *shapes[number + 1 :]))
            stages = [_with_meant_shape(stage, others) for stage in stages]
            shapes[number] = {(stage.isl, stage.osl) for stage in stages}
        found.append((name, replace(result, stages=stages)))
    return found


def _with_meant_shape(stage: StageResult, others: Sequence[tuple[int, int]]) -> StageResult:
    near = [(isl, osl) for isl, osl in others if _near(stage.isl, isl) and _near(stage.osl, osl)]
    nearest = min(near, key=lambda it: abs(it[0] - stage.isl) + abs(it[1] - stage.osl), default=(stage.isl, stage.osl))
    return replace(stage, isl=nearest[0], osl=nearest[1])


def _near(tokens: float, other: float) -> bool:
    return abs(other - tokens) <= _TOKENS_WITHIN * tokens


def _by_load(result: Result, name: str) -> tuple[dict[LoadShape, StageResult], list[str]]:
    """The stage that represents each load, and a note for each load with several."""
    found = stages_by_load(result)
    chosen = {load: sound_stage(stages) for load, stages in found.items()}
    notes = [
        f"{name}: stages {', '.join(str(stage.index + 1) for stage in stages)} have the load {load.words}; "
        f"stage {chosen[load].index + 1} counts"
        for load, stages in found.items()
        if len(stages) > 1
    ]
    return chosen, notes


def _stage(
    title: str, a: StageResult, b: StageResult, figures_a: Mapping[str, Estimate], figures_b: Mapping[str, Estimate]
) -> StageComparison:
    doubts = list(_doubts(a, b))
    figures = compared(figures_a, figures_b)
    return StageComparison(
        title=title,
        stage_a=a.index + 1,
        stage_b=b.index + 1,
        doubts=doubts,
        figures=without_words(figures) if doubts else figures,
        excused=any(doubt != _failing("B", b) for doubt in doubts),
    )


def _doubts(a: StageResult, b: StageResult) -> Iterator[str]:
    if a.target.concurrency == 0:
        yield "vramp sent nothing: these are the engines' own figures, under whatever others sent"
    for name, stage in (("A", a), ("B", b)):
        if stage.doubt is not None:
            yield f"{name} is {stage.doubt}"
        if stage.curve:
            yield f"the load of {name} moves: its figures are not those of a single load"
        if failing := _failing(name, stage):
            yield failing
    if a.tokens.source != b.tokens.source:
        yield f"tokens were counted by {a.tokens.source} in A and by {b.tokens.source} in B"
    if (a.isl, a.osl) == (b.isl, b.osl):
        for kind in ("input", "output"):
            one, other = (getattr(stage.tokens, f"{kind}_per_request") for stage in (a, b))
            if one and other and not _near(one, other):
                yield f"a request had {one:.0f} {kind} tokens in A and {other:.0f} in B"


def _failing(name: str, stage: StageResult) -> str:
    failed, completed = stage.requests.failed_in_all, stage.requests.completed
    if failed <= _FAILED_SHARE * (failed + completed):
        return ""
    return f"{name} had {failed} of {failed + completed} requests failing: the rest is not the same load"


def _means(stages: Sequence[tuple[Mapping[str, Estimate], Mapping[str, Estimate]]]) -> Iterator[Mean]:
    for name in FIGURES:
        both = ((a[name], b[name]) for a, b in stages if name in a and name in b)
        pairs = [(a, b) for a, b in both if not a.at_least and not b.at_least]
        ratio = geometric_mean(pairs) if len(pairs) > 1 else None
        if ratio is not None:
            yield Mean(name, ratio)


_LIMIT = re.compile(
    r"\s*(?P<figure>\w+)\s*(?P<side>[<>])\s*(?P<sign>[+-])\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>%|ms|s)\s*"
)
Outcome = Literal["kept", "broken", "in doubt"]
GRAMMAR = "FIGURE>+NUMBER% or FIGURE<-NUMBER%, for latencies also in ms or s"


class Limit(msgspec.Struct, frozen=True):
    """A limit on how much a figure may change."""

    text: str
    figure: str
    up: bool  # True: it must not rise by more; False: it must not fall by more
    by: float  # in percent of A, or in the figure's unit; above zero
    relative: bool


class HeldAgainst(msgspec.Struct, frozen=True):
    """A stage that was checked against a limit."""

    limit: str
    stage: str
    outcome: Outcome
    found: Compared | None = None  # None: B has no such figure
    why: str = ""  # it has none, or the doubts


def parse_limit(text: str) -> Limit:
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise ProfileError(f"--fail-if {text}: expected {GRAMMAR}, such as ttft_p99>+10%")
    figure, up, unit = match["figure"], match["side"] == ">", match["unit"]
    if figure not in FIGURES:
        raise ProfileError(f"--fail-if {text}: no figure {figure}; there are {', '.join(FIGURES)}")
    if up != (match["sign"] == "+"):
        raise ProfileError(f"--fail-if {text}: > goes with +, < with -: {GRAMMAR}")
    if unit != "%" and FIGURES[figure].unit != "ms":
        raise ProfileError(f"--fail-if {text}: {figure} is no latency; its limits are in %")
    by = float(match["number"]) * (1000 if unit == "s" else 1)
    return Limit(text=text, figure=figure, up=up, by=by, relative=unit == "%")


def hold_against(comparison: RunComparison, limits: Sequence[Limit], *, strict: bool) -> list[HeldAgainst]:
    """Check every stage that has a limit's figure; raises `ResultError` for a limit whose figure no stage has."""
    found: list[HeldAgainst] = []
    for limit in limits:
        held = list(_held(comparison, limit, strict=strict))
        if not held:
            name = comparison.b.name
            raise ResultError(
                f"--fail-if {limit.text}: no stage has this figure in both A and {name}, other than as a bound"
            )
        found += held
    return found


def _held(comparison: RunComparison, limit: Limit, *, strict: bool) -> Iterator[HeldAgainst]:
    name = comparison.b.name
    for load in comparison.unmeasured:
        yield HeldAgainst(limit.text, load, "broken", why=f"{name} has no figures of this load")
    for stage in comparison.stages:
        for one in stage.figures:
            if one.figure != limit.figure:
                continue
            if one.b is None:
                yield HeldAgainst(limit.text, stage.title, "broken", why=f"{name} has no {one.figure}")
            elif one.difference is not None and _is_known(one, one.difference, limit):
                outcome = _outcome(stage, one.difference, limit, strict=strict)
                why = "; ".join(stage.doubts) if outcome == "in doubt" else ""
                yield HeldAgainst(limit.text, stage.title, outcome, one, why)


def _outcome(stage: StageComparison, difference: Difference, limit: Limit, *, strict: bool) -> Outcome:
    if not is_beyond(difference, limit):
        return "kept"
    is_evident = (difference.low or 0) > 0 if limit.up else (difference.high or 0) < 0
    if strict or (not stage.excused and is_evident):
        return "broken"
    return "in doubt" if stage.doubts else "kept"


def is_beyond(difference: Difference, limit: Limit) -> bool:
    """Whether the measured difference is more than the limit allows."""
    moved = difference.percent if limit.relative else difference.absolute
    if moved is None:  # relative to zero, any change exceeds any percentage
        moved = math.copysign(math.inf, difference.absolute) if difference.absolute else 0.0
    return moved > limit.by if limit.up else -moved > limit.by


def _is_known(one: Compared, found: Difference, limit: Limit) -> bool:
    """Whether lower bounds suffice to tell on which side of the limit the difference is."""
    most, least = one.a_at_least, one.b_at_least
    if limit.up:
        return not (most if is_beyond(found, limit) else least)
    return not (least if is_beyond(found, limit) else most)
