"""A comparison as text: what differs first, then the stages, the geometric mean, and what it comes to in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from loadgen.format import UNKNOWN, fixed, signed_percent
from loadgen.metrics.figures import FIGURES
from loadgen.metrics.result import Compared
from loadgen.report.compare import CompareDocument, Mean, RunComparison, Side, StageComparison
from loadgen.report.configuration import Setting
from loadgen.report.tabular import Column, cut, escaped, json_text, markdown_table, text_lines

_WIDTH = 100
_KEY = 38
_VALUE = 30


def compare_table(comparison: RunComparison) -> str:
    """The whole comparison, no more than 120 columns wide."""
    means = comparison.means
    return "\n".join(
        [
            f"{' B against A ':=^{_WIDTH}}",
            *_heading(comparison),
            *_setting_lines(comparison.configuration),
            *(line for stage in comparison.stages for line in _stage_lines(stage, comparison.confidence)),
            *([f"{f' geometric mean of B over A, {means[0].ratio.stages} stages ':-^{_WIDTH}}"] if means else []),
            *text_lines(_mean_columns(means), means, head=False),
            "=" * _WIDTH,
            *closing_lines(comparison),
        ]
    )


def compare_markdown(comparison: RunComparison) -> str:
    a, b = comparison.a, comparison.b
    blocks = [
        f"### {escaped(b.name)} against {escaped(a.name)}",
        "\n".join(f"- **{letter}** {escaped(_side_words(side))}" for letter, side in (("A", a), ("B", b))),
        "\n".join(f"- **not alike:** {escaped(text)}" for text in comparison.unlike),
        "\n".join(f"- {escaped(text)}" for text in comparison.notes),
        markdown_table(_SETTINGS, comparison.configuration) or "The configuration is the same.",
        *(block for stage in comparison.stages for block in _stage_blocks(stage, comparison.confidence)),
        markdown_table(_mean_columns(comparison.means), comparison.means),
        "\n".join(f"- {escaped(line)}" for line in closing_lines(comparison)),
    ]
    return "\n\n".join(block for block in blocks if block)


def compare_json(comparisons: Sequence[RunComparison]) -> str:
    return json_text(CompareDocument(comparisons=list(comparisons)))


def closing_lines(comparison: RunComparison) -> list[str]:
    """What the comparison comes to, and how far to trust it."""
    words, percent = comparison.words, f"{100 * comparison.confidence:g} %"
    total = sum(words.values())
    lines = [f"only in A: {', '.join(comparison.only_a)}"] if comparison.only_a else []
    lines += [f"only in B: {', '.join(comparison.only_b)}"] if comparison.only_b else []
    counted = ", ".join(f"{count} {word}" for word, count in words.items())
    lines += [
        f"stages compared: {len(comparison.stages)}; of {total} figures of B, {counted}",
        f"each interval holds with {percent} by itself: among {total} comparisons of equals about "
        f"{total * (1 - comparison.confidence):.1f} would be called different",
        "what differs from one start of a server to the next is not in it: compare A with a second run of A for that",
    ]
    return lines


def difference_words(one: Compared) -> tuple[str, str, str]:
    """The difference, its interval and the word; an end that is not known is open."""
    found = one.difference
    if found is None or (one.a_at_least and one.b_at_least):
        return UNKNOWN, "", ""
    sign = "<= " if one.a_at_least else ">= " if one.b_at_least else ""
    if found.percent is None:
        return f"{sign}{found.absolute:+.2f}", "", found.word
    percent = f"{sign}{signed_percent(found.percent)}"
    if found.low_percent is None and found.high_percent is None:
        return percent, "too short to tell", found.word
    interval = f"{_end(found.low_percent)} to {_end(found.high_percent)}"
    return percent, interval, found.word


def _heading(comparison: RunComparison) -> Iterator[str]:
    yield f"A  {_side_words(comparison.a)}"
    yield f"B  {_side_words(comparison.b)}"
    for text in comparison.unlike:
        yield f"NOT ALIKE: {text}"
    for text in comparison.notes:
        yield f"note: {text}"


def _side_words(side: Side) -> str:
    return f"{side.name}: {side.model} on {side.hardware}, {side.engine}, {side.started_at}"


def _setting_lines(settings: Sequence[Setting]) -> Iterator[str]:
    if not settings:
        yield "the configuration is the same"
        return
    yield f"{'differs':<{_KEY}}{'A':<{_VALUE + 2}}B"
    for setting in settings:
        a, b = (UNKNOWN if value is None else cut(value, _VALUE) for value in (setting.a, setting.b))
        yield f"{'  ' + cut(setting.key, _KEY - 3):<{_KEY}}{a:<{_VALUE + 2}}{b}"


_SETTINGS: tuple[Column[Setting], ...] = (
    Column("differs", lambda one: one.key, words=True),
    Column("A", lambda one: one.a or None, words=True),
    Column("B", lambda one: one.b or None, words=True),
)


def _stage_lines(stage: StageComparison, confidence: float) -> Iterator[str]:
    yield f"{f' {stage.title} ':-^{_WIDTH}}"
    for doubt in stage.doubts:
        yield f"no evidence here: {doubt}"
    *shown, word = _columns(confidence)
    evident = replace(word, label="", value=lambda one: difference_words(one)[2].replace("no evidence", ""))
    yield from text_lines([*shown, evident], stage.figures)


def _columns(confidence: float) -> list[Column[Compared]]:
    return [
        Column("", lambda one: _title(one.figure), words=True, width=22),
        Column("A", lambda one: _value(one.a, at_least=one.a_at_least), width=12),
        Column("B", lambda one: _value(one.b, at_least=one.b_at_least), width=12),
        Column("difference", lambda one: difference_words(one)[0], width=14),
        Column(f"{100 * confidence:g} % interval", lambda one: difference_words(one)[1], width=22),
        Column("B is", lambda one: difference_words(one)[2], words=True),
    ]


def _mean_columns(means: Sequence[Mean]) -> list[Column[Mean]]:
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


def _stage_blocks(stage: StageComparison, confidence: float) -> list[str]:
    doubts = "\n".join(f"- no evidence here: {escaped(doubt)}" for doubt in stage.doubts)
    return [f"#### {escaped(stage.title)}", doubts, markdown_table(_columns(confidence), stage.figures)]


def _end(percent: float | None) -> str:
    return "?" if percent is None else f"{percent:+.1f}"


def _value(value: float | None, *, at_least: bool) -> str:
    return f"{'>= ' if at_least else ''}{fixed(value, 4 if value is not None and abs(value) < 1 else 2)}"
