"""Comparisons as documents: of two runs, as text, Markdown and HTML, and of the variants of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from loadgen.format import UNKNOWN, Statistic, signed_percent
from loadgen.masking import masked
from loadgen.record.figures import FIGURES
from loadgen.report.assessment import first_line
from loadgen.report.columns import columns
from loadgen.report.compare import (
    HeldAgainst,
    Mean,
    MeasuredRatio,
    Ratios,
    RunComparison,
    StageComparison,
    measured_ratios,
)
from loadgen.report.configuration import Setting
from loadgen.report.document import Section, Table
from loadgen.report.notes import LATENCY_TITLES, Note
from loadgen.report.output import comparison_words, difference_columns
from loadgen.report.tabular import Column, cut, figure_words, json_text
from loadgen.report.text import sections_markdown, sections_text
from loadgen.schema.comparison import Compared
from loadgen.schema.result import Result, StageResult
from loadgen.schema.shared import RunState

_VALUE = 38  # characters of a setting, as text
_WIDTH = 120
_REASON = 110
_SWEPT = "requests_per_s output_tokens_per_s ttft_mean_ms ttft_p99_ms tpot_mean_ms tpot_p99_ms"
_AGAINST_BASE = ("output_tokens_per_s", "ttft_mean_ms", "tpot_mean_ms")
_COUNTS = {"failed": "failed", "unsent": "never sent", "carried_over": "carried over"}


def compare_text(comparison: RunComparison) -> str:
    """The whole comparison, at most 120 columns wide."""
    return sections_text(compare_sections(comparison, _VALUE), _WIDTH)


def compare_markdown(comparison: RunComparison) -> str:
    return sections_markdown(compare_sections(comparison)).removeprefix("#")  # the first heading is that of all


def compare_sections(comparison: RunComparison, value_chars: int | None = None) -> list[Section]:
    """Every format's sections: what is compared, the configuration, the stages, the means, and how far to trust it.

    Settings are cut to `value_chars`, if given.
    """
    sides = [
        Note(letter, f"{side.name}: {side.model} on {side.hardware}, {side.engine}, {side.started_at or 'no date'}")
        for letter, side in (("A", comparison.a), ("B", comparison.b))
    ]
    sides += [Note("not alike", text) for text in comparison.unlike] + [Note("", text) for text in comparison.notes]
    foreign = "another tool's file does not contain the configuration"
    same = Note("", foreign if comparison.definitions else "the configuration is the same")
    found = [
        Section(f"{comparison.b.name} against {comparison.a.name}", notes=sides),
        Section(
            "Configuration",
            [Table(_settings(value_chars), comparison.configuration)],
            [] if comparison.configuration else [same],
        ),
        *(_stage(stage, comparison) for stage in comparison.stages),
        ratio_section(comparison.ratios),
        Section("Over all stages", [Table(_mean_columns(comparison.means), comparison.means)]),
        Section(
            "Output of the idle engines",
            [Table(difference_columns(comparison.confidence), comparison.output.texts if comparison.output else [])],
        ),
        Section("In all", notes=[Note("", line) for line in _closing_lines(comparison)]),
    ]
    return [section for section in found if not section.is_empty]


def _stage(stage: StageComparison, comparison: RunComparison) -> Section:
    doubts = [Note("no evidence here", doubt) for doubt in stage.doubts]
    defined = [(name, text) for name, texts in comparison.definitions.items() for text in texts]
    definitions = [Note(LATENCY_TITLES.get(name, name), text) for name, text in defined]
    return Section(stage.title, [Table(_figure_columns(comparison), stage.figures)], [*doubts, *definitions])


def ratio_section(ratios: Ratios | None) -> Section:
    """The published ratios next to the measured ones, and their conditions."""
    if ratios is None:
        return Section("Published ratios")
    doubts = dict.fromkeys(f"{one.load}: {one.doubt}" for one in ratios.rows if one.doubt is not None)
    notes = [Note("published by", ratios.source), *(Note("", words) for words in ratios.conditions)]
    notes += [Note("no evidence at", words) for words in doubts]
    return Section("Published ratios", [Table(_RATIOS, ratios.rows)], notes)


_RATIOS: tuple[Column[MeasuredRatio], ...] = (
    Column("load", lambda one: one.load, words=True),
    Column("figure", lambda one: one.published.figure, words=True),
    Column("of", lambda one: one.published.variant, words=True),
    Column("over", lambda one: one.published.over, words=True),
    Column("measured", lambda one: one.measured),
    Column("published", lambda one: one.published.value),
    Column("difference", lambda one: signed_percent(one.difference_percent)),
    Column("published on", lambda one: one.published.of, words=True),
)


def compare_json(comparisons: Sequence[RunComparison]) -> str:
    return json_text({"schema": "vramp.compare/1", "comparisons": comparisons})


def _closing_lines(comparison: RunComparison) -> list[str]:
    """A summary of the comparison, and how far to trust it."""
    words, percent = comparison.words, f"{100 * comparison.confidence:g} %"
    total = sum(words.values())
    lines = [f"only in A: {', '.join(comparison.only_a)}"] if comparison.only_a else []
    lines += [f"only in B: {', '.join(comparison.only_b)}"] if comparison.only_b else []
    lines += comparison_words(comparison.output) if comparison.output is not None else []
    counted = ", ".join(f"{count} {word}" for word, count in words.items())
    lines += [f"stages compared: {len(comparison.stages)}; of {total} figures of B, {counted}"]
    if comparison.definitions:
        return [*lines, "no figure is evidence: another tool's file does not say how its values spread"]
    return [
        *lines,
        f"each interval holds with {percent} on its own: among {total} comparisons of equal runs, about "
        f"{total * (1 - comparison.confidence):.1f} would differ by chance",
        "differences between starts of one server are not included: compare A with a second run of A for that",
    ]


def _difference_words(one: Compared, unknown: str = "") -> tuple[str, str, str]:
    """The difference, its interval (or why that is `unknown`), and the word; an unknown end is open."""
    found = one.difference
    if found is None or (one.a_at_least and one.b_at_least):
        return UNKNOWN, "", ""
    sign = "<= " if one.a_at_least else ">= " if one.b_at_least else ""
    if found.percent is None:
        return f"{sign}{found.absolute:+.2f}", "", found.word
    percent = f"{sign}{signed_percent(found.percent)}"
    if found.low_percent is None and found.high_percent is None:
        return percent, unknown or FIGURES[one.figure].no_interval, found.word
    interval = f"{_end(found.low_percent)} to {_end(found.high_percent)}"
    return percent, interval, found.word


def held_words(one: HeldAgainst) -> str:
    """What was found where a limit is broken or in doubt."""
    if one.found is None:
        return one.why
    difference, interval, _ = _difference_words(one.found)
    return "; ".join(filter(None, (f"{difference} ({interval})", one.why)))


def _settings(most: int | None) -> list[Column[Setting]]:
    """Keys and values of both, at most so many characters of each."""

    def short(text: str | None) -> str | None:
        return text if not text or most is None else cut(text, most)

    return [
        Column("differs", lambda one: short(one.key), words=True),
        Column("A", lambda one: short(one.a) or None, words=True),
        Column("B", lambda one: short(one.b) or None, words=True),
    ]


def _figure_columns(comparison: RunComparison) -> list[Column[Compared]]:
    confidence = comparison.confidence
    unknown = "not in its file" if comparison.definitions else ""
    return [
        Column("", lambda one: _title(one.figure), words=True, width=22),
        Column("A", lambda one: figure_words(one.a, at_least=one.a_at_least), width=12),
        Column("B", lambda one: figure_words(one.b, at_least=one.b_at_least), width=12),
        Column("difference", lambda one: _difference_words(one)[0], width=14),
        Column(f"{100 * confidence:g} % interval", lambda one: _difference_words(one, unknown)[1], width=22),
        Column("B is", lambda one: _difference_words(one)[2], words=True),
    ]


def _mean_columns(means: Sequence[Mean]) -> list[Column[Mean]]:
    def interval(mean: Mean) -> str:
        ratio = mean.ratio
        return "" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f} to {ratio.high:.3f}"

    stages = means[0].ratio.stages if means else 0
    return [
        Column(f"geometric mean, {stages} stages", lambda mean: _title(mean.figure), words=True, width=22),
        Column("B over A", lambda mean: f"{mean.ratio.ratio:.3f} x", width=38),
        Column("interval", interval, width=22),
    ]


def _title(figure: str) -> str:
    known = FIGURES[figure]
    return f"{known.title} ({known.unit})" if known.unit in ("ms", "%") else known.title


def _end(percent: float | None) -> str:
    return "?" if percent is None else f"{percent:+.1f}"


class VariantOutcome(NamedTuple):
    variant: str
    state: RunState
    reason: str
    result: Result | None


SweepRow = dict[str, Any]
"""One stage of one variant, as in the JSON; all but the first three are empty for a variant without stages."""


def sweep_rows(outcomes: Sequence[VariantOutcome]) -> list[SweepRow]:
    """The rows of all variants, in their order; a load that occurs twice in a plan is two stages."""
    rows: list[SweepRow] = []
    bases: dict[str, SweepRow] = {}
    for outcome in outcomes:
        stages = outcome.result.stages if outcome.result is not None else []
        titles = [f"{stage.label}, ISL {stage.isl}, OSL {stage.osl}" for stage in stages]
        for place, (title, stage) in enumerate(zip(titles, stages, strict=True)):
            before = titles[:place].count(title)
            row = _sweep_row(outcome, f"{title} ({before + 1})" if before else title, stage)
            base = bases.setdefault(row["stage"], row)
            row["is_base"] = row is base
            if row is not base:
                # Unknown where one of the two is, or is only a lower bound.
                bounds = row["lower_bounds"] + base["lower_bounds"]
                for name in _AGAINST_BASE:
                    is_known = row[name] is not None and base[name] and name not in bounds
                    change = float(100 * (row[name] / base[name] - 1)) if is_known else None
                    row["difference_percent"][name] = change
            rows.append(row)
        rows += [] if stages else [_sweep_row(outcome, None, None)]
    return rows


def _sweep_row(outcome: VariantOutcome, title: str | None, stage: StageResult | None) -> SweepRow:
    requests = getattr(stage, "requests", None)
    values = {
        name: column.value(stage) if stage is not None else None
        for name, column in zip(_SWEPT.split(), columns(_SWEPT), strict=True)
    }
    return {
        "variant": outcome.variant,
        "state": outcome.state,
        "reason": outcome.reason,
        "stage": title,
        "isl": getattr(stage, "isl", None),
        "osl": getattr(stage, "osl", None),
        **{name: getattr(requests, name, 0) or 0 for name in ("completed", "failed", "unsent", "carried_over")},
        "limited": getattr(stage, "limited", False),
        **{name: one.value if isinstance(one, Statistic) else one for name, one in values.items()},
        "lower_bounds": [name for name, one in values.items() if isinstance(one, Statistic) and one.at_least],
        "difference_percent": {},  # by figure, from the base
        "is_base": False,  # the first variant that has the stage is its 100 %
    }


def sweep_ratios(outcomes: Sequence[VariantOutcome]) -> Ratios | None:
    """The published ratios that these variants measured."""
    return measured_ratios({one.variant: one.result for one in outcomes if one.result is not None})


def sweep_text(rows: Sequence[SweepRow], ratios: Ratios | None = None) -> str:
    """A table per stage with a row per variant, published ratios, and the variants that lack some or all figures."""
    stages = dict.fromkeys(row["stage"] for row in rows if row["stage"] is not None)
    shown = list(_sweep_columns())
    found = [Section(stage, [Table(shown, [row for row in rows if row["stage"] == stage])]) for stage in stages]
    found += [ratio_section(ratios)] if ratios is not None else []
    endings = {
        row["variant"]: f"{'no numbers' if row['stage'] is None else row['state']}: "
        f"{cut(first_line(row['reason']), _REASON)}"
        for row in rows
        if row["state"] != "complete"
    }
    found += [Section("Not complete", notes=[Note(*ending) for ending in endings.items()])] if endings else []
    return sections_text(found)


def _sweep_columns() -> Iterator[Column[SweepRow]]:
    yield Column("variant", itemgetter("variant"), words=True)
    for name, column in zip(_SWEPT.split(), columns(_SWEPT), strict=True):
        yield Column(column.label, lambda row, name=name: Statistic(row[name], name in row["lower_bounds"]))  # type: ignore[misc]
        if name in _AGAINST_BASE:
            yield Column("", partial(_percent_of_base, name))
    yield Column("", _troubles, words=True)


def _percent_of_base(name: str, row: SweepRow) -> str:
    percent = row["difference_percent"].get(name)
    return "(100 %)" if row["is_base"] else "" if percent is None else f"({percent:+.1f}%)"


def _troubles(row: SweepRow) -> str:
    words = [f"{row[name]} {words}" for name, words in _COUNTS.items() if row[name]]
    return "  ".join([*words, *(["client-limited"] if row["limited"] else [])])


def sweep_json(profile: str, seed: int, rows: Sequence[SweepRow], ratios: Ratios | None = None) -> str:
    """The rows as JSON, without secrets that the reason of a failure may quote."""
    head = {"schema": "vramp.sweep-report/1", "profile": profile, "seed": seed}
    return json_text(masked({**head, "rows": rows, "ratios": ratios})) + "\n"
