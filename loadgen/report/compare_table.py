"""A comparison as text: what differs first, then the stages, the geometric mean, and what it comes to in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from loadgen.format import UNKNOWN, fixed, signed_percent
from loadgen.metrics.figures import FIGURES
from loadgen.metrics.result import Compared
from loadgen.report.compare import CompareDocument, Mean, RunComparison, Side, StageComparison
from loadgen.report.compare_config import Setting
from loadgen.report.markdown import escaped

_WIDTH = 100
_KEY = 38
_VALUE = 30


def compare_table(comparison: RunComparison) -> str:
    """The whole comparison, no more than 120 columns wide."""
    return "\n".join(
        [
            f"{' B against A ':=^{_WIDTH}}",
            *_heading(comparison),
            *_setting_lines(comparison.configuration),
            *(line for stage in comparison.stages for line in _stage_lines(stage, comparison.confidence)),
            *_mean_lines(comparison),
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
        _markdown_settings(comparison.configuration),
        *(_markdown_stage(stage, comparison.confidence) for stage in comparison.stages),
        _markdown_means(comparison),
        "\n".join(f"- {escaped(line)}" for line in closing_lines(comparison)),
    ]
    return "\n\n".join(block for block in blocks if block)


def compare_json(comparisons: Sequence[RunComparison]) -> str:
    """All of it as one document."""
    document = CompareDocument(comparisons=list(comparisons))
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


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
        a, b = (_cut(value, _VALUE) for value in (setting.a, setting.b))
        yield f"{'  ' + _cut(setting.key, _KEY - 3):<{_KEY}}{a:<{_VALUE + 2}}{b}"


def _stage_lines(stage: StageComparison, confidence: float) -> Iterator[str]:
    yield f"{f' {stage.title} ':-^{_WIDTH}}"
    for doubt in stage.doubts:
        yield f"no evidence here: {doubt}"
    interval = f"{100 * confidence:g} % interval"
    yield f"{'':<22}{'A':>12}{'B':>12}{'difference':>14}{interval:>22}"
    for one in stage.figures:
        yield _figure_line(one)


def _figure_line(one: Compared) -> str:
    difference, interval, word = difference_words(one)
    value_a, value_b = _values(one)
    shown = "" if word == "no evidence" else word
    return f"{_title(one.figure):<22}{value_a:>12}{value_b:>12}{difference:>14}{interval:>22}  {shown}".rstrip()


def _mean_lines(comparison: RunComparison) -> Iterator[str]:
    if not comparison.means:
        return
    yield f"{f' geometric mean of B over A, {comparison.means[0].ratio.stages} stages ':-^{_WIDTH}}"
    for mean in comparison.means:
        ratio, interval = _mean_words(mean)
        yield f"{_title(mean.figure):<22}{'':>24}{ratio:>14}{interval:>22}".rstrip()


def _mean_words(mean: Mean) -> tuple[str, str]:
    ratio = mean.ratio
    interval = "" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f} to {ratio.high:.3f}"
    return f"{ratio.ratio:.3f} x", interval


def _title(figure: str) -> str:
    known = FIGURES[figure]
    return f"{known.title} ({known.unit})" if known.unit in ("ms", "%") else known.title


def _markdown_settings(settings: Sequence[Setting]) -> str:
    if not settings:
        return "The configuration is the same."
    rows = [f"| {escaped(one.key)} | {escaped(one.a or UNKNOWN)} | {escaped(one.b or UNKNOWN)} |" for one in settings]
    return "\n".join(["| differs | A | B |", "|---|---|---|", *rows])


def _markdown_stage(stage: StageComparison, confidence: float) -> str:
    head = f"| | A | B | difference | {100 * confidence:g} % interval | B is |"
    rows = [
        f"| {' | '.join([_title(one.figure), *map(escaped, (*_values(one), *difference_words(one)))])} |"
        for one in stage.figures
    ]
    doubts = [f"- no evidence here: {escaped(doubt)}" for doubt in stage.doubts]
    table = "\n".join([head, "|---|---:|---:|---:|---:|---|", *rows])
    return "\n\n".join([f"#### {escaped(stage.title)}", *(["\n".join(doubts)] if doubts else []), table])


def _markdown_means(comparison: RunComparison) -> str:
    if not comparison.means:
        return ""
    rows = [f"| {_title(mean.figure)} | {' | '.join(_mean_words(mean))} |" for mean in comparison.means]
    stages = comparison.means[0].ratio.stages
    return "\n".join([f"| geometric mean, {stages} stages | B over A | interval |", "|---|---:|---:|", *rows])


def _end(percent: float | None) -> str:
    return "?" if percent is None else f"{percent:+.1f}"


def _values(one: Compared) -> tuple[str, str]:
    a, b = (">= " if bound else "" for bound in (one.a_at_least, one.b_at_least))
    return f"{a}{_number(one.a)}", f"{b}{_number(one.b)}"


def _number(value: float | None) -> str:
    return fixed(value, 4 if value is not None and abs(value) < 1 else 2)


def _cut(text: str | None, width: int) -> str:
    shown = UNKNOWN if text is None else text
    return shown if len(shown) <= width else shown[: width - 3] + "..."
