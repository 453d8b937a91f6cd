"""A comparison as text: differences in configuration, the stages, the geometric means, and a summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from textwrap import wrap

from loadgen.format import UNKNOWN, fixed, signed_percent
from loadgen.record.figures import FIGURES
from loadgen.report.compare import CompareDocument, HeldAgainst, Mean, RunComparison, Side, StageComparison
from loadgen.report.configuration import Setting
from loadgen.report.notes import LATENCY_TITLES
from loadgen.report.output import TextDifference, comparison_words, difference_columns
from loadgen.report.tabular import Column, cut, escaped, json_text, markdown_table, text_lines
from loadgen.schema.comparison import Compared

_WIDTH = 100
_KEY = 38
_VALUE = 30


def compare_table(comparison: RunComparison) -> str:
    """The whole comparison, at most 120 columns wide."""
    means = comparison.means
    return "\n".join(
        [
            f"{' B against A ':=^{_WIDTH}}",
            *_heading(comparison),
            *_setting_lines(comparison),
            *(line for stage in comparison.stages for line in _stage_lines(stage, comparison)),
            *([f"{f' geometric mean of B over A, {means[0].ratio.stages} stages ':-^{_WIDTH}}"] if means else []),
            *text_lines(mean_columns(means), means, head=False),
            *_output_lines(comparison),
            "=" * _WIDTH,
            *closing_lines(comparison),
        ]
    )


def compare_markdown(comparison: RunComparison) -> str:
    a, b = comparison.a, comparison.b
    blocks = [
        f"### {escaped(b.name)} against {escaped(a.name)}",
        "\n".join(f"- **{letter}** {escaped(side_words(side))}" for letter, side in (("A", a), ("B", b))),
        "\n".join(f"- **not alike:** {escaped(text)}" for text in comparison.unlike),
        "\n".join(f"- {escaped(text)}" for text in comparison.notes),
        markdown_table(SETTINGS, comparison.configuration) or f"{no_settings(comparison).capitalize()}.",
        *(block for stage in comparison.stages for block in _stage_blocks(stage, comparison)),
        markdown_table(mean_columns(comparison.means), comparison.means),
        markdown_table(difference_columns(comparison.confidence), text_differences(comparison)),
        "\n".join(f"- {escaped(line)}" for line in closing_lines(comparison)),
    ]
    return "\n\n".join(block for block in blocks if block)


def text_differences(comparison: RunComparison) -> list[TextDifference]:
    """Differences between the scores of texts that both engines scored while idle."""
    return comparison.output.texts if comparison.output is not None else []


def _output_lines(comparison: RunComparison) -> list[str]:
    lines = text_lines(difference_columns(comparison.confidence), text_differences(comparison))
    return [f"{' output of the idle engines ':-^{_WIDTH}}", *lines] if lines else []


def compare_json(comparisons: Sequence[RunComparison]) -> str:
    return json_text(CompareDocument(comparisons=list(comparisons)))


def closing_lines(comparison: RunComparison) -> list[str]:
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


def difference_words(one: Compared, unknown: str = "too short to tell") -> tuple[str, str, str]:
    """The difference, its interval (or why that is `unknown`), and the word; an unknown end is open."""
    found = one.difference
    if found is None or (one.a_at_least and one.b_at_least):
        return UNKNOWN, "", ""
    sign = "<= " if one.a_at_least else ">= " if one.b_at_least else ""
    if found.percent is None:
        return f"{sign}{found.absolute:+.2f}", "", found.word
    percent = f"{sign}{signed_percent(found.percent)}"
    if found.low_percent is None and found.high_percent is None:
        return percent, unknown, found.word
    interval = f"{_end(found.low_percent)} to {_end(found.high_percent)}"
    return percent, interval, found.word


def held_words(one: HeldAgainst) -> str:
    """What was found where a limit is broken or in doubt."""
    if one.found is None:
        return one.why
    difference, interval, _ = difference_words(one.found)
    return "; ".join(filter(None, (f"{difference} ({interval})", one.why)))


def _heading(comparison: RunComparison) -> Iterator[str]:
    yield f"A  {side_words(comparison.a)}"
    yield f"B  {side_words(comparison.b)}"
    for text in comparison.unlike:
        yield f"NOT ALIKE: {text}"
    for text in comparison.notes:
        yield f"note: {text}"


def side_words(side: Side) -> str:
    return f"{side.name}: {side.model} on {side.hardware}, {side.engine}, {side.started_at}"


def no_settings(comparison: RunComparison) -> str:
    """The line to show if no setting differs."""
    if comparison.definitions:
        return "another tool's file does not contain the configuration"
    return "the configuration is the same"


def _setting_lines(comparison: RunComparison) -> Iterator[str]:
    settings = comparison.configuration
    if not settings:
        yield no_settings(comparison)
        return
    yield f"{'differs':<{_KEY}}{'A':<{_VALUE + 2}}B"
    for setting in settings:
        a, b = (UNKNOWN if value is None else cut(value, _VALUE) for value in (setting.a, setting.b))
        yield f"{'  ' + cut(setting.key, _KEY - 3):<{_KEY}}{a:<{_VALUE + 2}}{b}"


SETTINGS: tuple[Column[Setting], ...] = (
    Column("differs", lambda one: one.key, words=True),
    Column("A", lambda one: one.a or None, words=True),
    Column("B", lambda one: one.b or None, words=True),
)


def _stage_lines(stage: StageComparison, comparison: RunComparison) -> Iterator[str]:
    yield f"{f' {stage.title} ':-^{_WIDTH}}"
    for doubt in stage.doubts:
        yield f"no evidence here: {doubt}"
    *shown, word = figure_columns(comparison)
    evident = replace(word, label="", value=lambda one: difference_words(one)[2].replace("no evidence", ""))
    head, *lines = text_lines([*shown, evident], stage.figures) or [""]
    yield head
    for name, rows in groupby(zip(stage.figures, lines, strict=True), lambda row: _measure(row[0].figure)):
        yield from (line for _, line in rows)
        for text in comparison.definitions.get(name, []):
            yield from wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="      ")


def _measure(figure: str) -> str:
    """The key under which another tool's definition of a figure is stored."""
    return "throughput" if FIGURES[figure].unit in ("tok/s", "req/s") else figure.partition("_")[0]


def figure_columns(comparison: RunComparison) -> list[Column[Compared]]:
    confidence = comparison.confidence
    unknown = "not in its file" if comparison.definitions else "too short to tell"
    return [
        Column("", lambda one: _title(one.figure), words=True, width=22),
        Column("A", lambda one: _value(one.a, at_least=one.a_at_least), width=12),
        Column("B", lambda one: _value(one.b, at_least=one.b_at_least), width=12),
        Column("difference", lambda one: difference_words(one)[0], width=14),
        Column(f"{100 * confidence:g} % interval", lambda one: difference_words(one, unknown)[1], width=22),
        Column("B is", lambda one: difference_words(one)[2], words=True),
    ]


def mean_columns(means: Sequence[Mean]) -> list[Column[Mean]]:
    stages = means[0].ratio.stages if means else 0
    return [
        Column(f"geometric mean, {stages} stages", lambda mean: _title(mean.figure), words=True, width=22),
        Column("B over A", lambda mean: f"{mean.ratio.ratio:.3f} x", width=38),
        Column("interval", _mean_interval, width=22),
    ]


def _mean_interval(mean: Mean) -> str:
    ratio = mean.ratio
    return "" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f} to {ratio.high:.3f}"


def _title(figure: str) -> str:
    known = FIGURES[figure]
    return f"{known.title} ({known.unit})" if known.unit in ("ms", "%") else known.title


def _stage_blocks(stage: StageComparison, comparison: RunComparison) -> list[str]:
    doubts = "\n".join(f"- no evidence here: {escaped(doubt)}" for doubt in stage.doubts)
    reported = [(name, text) for name, texts in comparison.definitions.items() for text in texts]
    definitions = "\n".join(f"- **{LATENCY_TITLES.get(name, name)}**, {escaped(text)}" for name, text in reported)
    table = markdown_table(figure_columns(comparison), stage.figures)
    return [f"#### {escaped(stage.title)}", doubts, table, definitions]


def _end(percent: float | None) -> str:
    return "?" if percent is None else f"{percent:+.1f}"


def _value(value: float | None, *, at_least: bool) -> str:
    return f"{'>= ' if at_least else ''}{fixed(value, 4 if value is not None and abs(value) < 1 else 2)}"
