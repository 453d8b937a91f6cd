"""Published ratios of two variants next to the measured ones: they say the same on boxes whose figures differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from loadgen.format import signed_percent
from loadgen.profile import BASE
from loadgen.record.figures import sound_stage, stages_by_load
from loadgen.report.document import Section, Table
from loadgen.report.notes import Note, condition_words
from loadgen.report.tabular import Column
from loadgen.schema.comparison import PublishedRatio, ReferenceResult
from loadgen.schema.result import Result, StageResult

_LOAD = ("concurrency", "rate", "isl", "osl")


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
        for found in _measured(ratio, variants[ratio.variant], variants[ratio.over])
    ]
    return Ratios(references[0].source, list(_conditions(references)), rows) if rows else None


def variant_of(result: Result) -> str:
    """The variant of the profile that a run began with."""
    return str(result.profile.get("name", "")).partition("+")[2] or BASE


def _conditions(references: Sequence[ReferenceResult]) -> Iterator[str]:
    named = {condition.name: condition.published for one in references for condition in one.conditions}
    if named:
        yield f"published for {', '.join(f'{name} {value}' for name, value in named.items())}"
        yield from dict.fromkeys(words for one in references for words in condition_words(one.conditions))


def ratio_section(ratios: Ratios | None) -> Section:
    """The published ratios next to the measured ones, and their conditions."""
    if ratios is None:
        return Section("Published ratios")
    doubts = dict.fromkeys(f"{one.load}: {one.doubt}" for one in ratios.rows if one.doubt is not None)
    notes = [Note("published by", ratios.source), *(Note("", words) for words in ratios.conditions)]
    notes += [Note("no evidence at", words) for words in doubts]
    return Section("Published ratios", [Table(_COLUMNS, ratios.rows)], notes)


def _measured(ratio: PublishedRatio, one: Result, other: Result) -> Iterator[MeasuredRatio]:
    others = stages_by_load(other)
    for load, stages in stages_by_load(one).items():
        stage = sound_stage(stages)
        if load not in others or any(getattr(ratio, key) not in (None, getattr(load, key)) for key in _LOAD):
            continue
        over = sound_stage(others[load])
        value, divisor = (_figure(ratio.figure, each) for each in (stage, over))
        measured = value / divisor if value is not None and divisor else None
        difference = None if measured is None else 100 * (measured / ratio.value - 1)
        yield MeasuredRatio(load.words, ratio, measured, difference, stage.doubt or over.doubt)


def _figure(name: str, stage: StageResult) -> float | None:
    if name.endswith("_per_s"):
        rate: float | None = getattr(stage.throughput, name)
        return rate
    metric, statistic = name.removesuffix("_ms").split("_")
    summary = stage.latency_ms.get(metric)
    value: float | None = None if summary is None else getattr(summary, statistic)
    return None if summary is None or statistic in summary.lower_bounds else value


_COLUMNS: tuple[Column[MeasuredRatio], ...] = (
    Column("load", lambda one: one.load, words=True),
    Column("figure", lambda one: one.published.figure, words=True),
    Column("of", lambda one: one.published.variant, words=True),
    Column("over", lambda one: one.published.over, words=True),
    Column("measured", lambda one: one.measured),
    Column("published", lambda one: one.published.value),
    Column("difference", lambda one: signed_percent(one.difference_percent)),
    Column("published on", lambda one: one.published.of, words=True),
)
