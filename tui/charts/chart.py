"""Charts over the time of the run, in braille: pure functions to rows.

Rows: the title with the legend and the last values, the plot, and the axis with marks. All charts get the same `Span`,
so a column of cells is the same moment on each of them. Because the span moves in steps, most rows are those of the
frame before, and only the others are drawn again. Series differ by ink as well as by colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from loadgen import format as fmt
from tui.charts.canvas import CORNER, GUTTER, SAMPLES, Canvas, cell_across, trace
from tui.charts.definitions import Chart, Series
from tui.charts.scale import Scale, Span, linear, logarithmic
from tui.charts.timeline import Folded, History, Mark
from tui.widgets.rows import Row, Rows, Word, in_cells, joined, titled, width_of

_MIN_NOTE = 4

MarkColumns = dict[int, list[Mark]]  # by cell column, the most important first


def chart_rows(chart: Chart, history: History, span: Span, marks: Sequence[Mark], width: int, height: int) -> Rows:
    """Draw a chart with its title and axis, or the title alone if there is no room for more."""
    columns, rows = width - GUTTER, height - 2
    title = _title_row(chart, history, width)
    if columns < 4 or rows < 2:
        return [title]
    folded = history.folded(span, columns * 2)
    scale = _scale(chart, folded, rows)
    placed = mark_columns(marks, span, columns)
    canvas = traced(chart.series, folded, scale, lined_columns(placed), columns, rows)
    return [title, *canvas.with_ticks(scale), (*CORNER, *axis_row(placed, span, columns))]


def traced(
    series: Sequence[Series], folded: Folded, scale: Scale, lined: Sequence[int], columns: int, rows: int
) -> Canvas:
    """Draw the dots of all series, and behind them a line in each of the columns `lined`."""
    canvas = Canvas(columns, rows)
    for one in series:
        low, high = map(scale.shares, folded.bands[one.column])
        canvas.dots(trace(folded.columns, low, high, width=columns, height=rows, ink=one.ink), one.role)
    canvas.uprights(lined, "┊", "mark")
    return canvas


def lined_columns(marks: MarkColumns) -> list[int]:
    """Return the columns in which a mark is drawn as a line."""
    return [column for column, there in marks.items() if any(mark.how.line for mark in there)]


def mark_columns(marks: Sequence[Mark], span: Span, columns: int) -> MarkColumns:
    """Return the visible marks by cell column, the most important first, then the newest."""
    found: MarkColumns = {}
    for mark in sorted(marks, key=lambda mark: (mark.how.rank, -mark.t_s)):
        share = span.share(mark.t_s)
        if 0 <= share <= 1:
            found.setdefault(cell_across(share, columns), []).append(mark)
    return found


def axis_row(marks: MarkColumns, span: Span, columns: int) -> Row:
    """Draw the signs of marks, the loads that fit, the times at both ends, and notes in what is left."""
    words: list[Word] = [("─", "rule")] * columns
    for column, there in sorted(marks.items(), key=lambda item: (item[1][0].how.rank, -item[0])):
        signs = dict.fromkeys(mark.how.sign for mark in there[1:] if mark.kind != there[0].kind)
        first, role = there[0].how.sign, there[0].how.role
        label = there[0].label if there[0].kind == "load" else ""
        if not _put(words, column, f"{first}{label}{''.join(signs)} ", role):
            # The sign without its label, unless it would be inside a label or next to the same sign.
            around = [text for text, _ in words[max(0, column - 1) : column + 2]]
            if words[column][0] in ("─", " ") and first not in around:
                words[column] = (first, role)
    left, right = f"{fmt.clock(span.start_s)} ", f" {fmt.clock(span.end_s)}"
    _put(words, 0, left, "dim")
    _put(words, columns - len(right), right, "dim")
    for column, there in marks.items():
        if there[0].kind == "note" and words[column][0] == there[0].how.sign:
            _put_note(words, column + 1, there[0].label, there[0].how.role)
    return joined(words)


def _put(words: list[Word], column: int, text: str, role: str) -> bool:
    """Write a text on cells that are free; return whether they were."""
    wide = slice(column, column + len(text))
    if not 0 <= column <= len(words) - len(text) or any(word != ("─", "rule") for word in words[wide]):
        return False
    words[wide] = [(character, "rule" if character == "─" else role) for character in text]
    return True


def _put_note(words: list[Word], column: int, label: str, role: str) -> None:
    free = next((n for n, word in enumerate(words[column:]) if word != ("─", "rule") and n), len(words) - column)
    if free > _MIN_NOTE:
        cells = [*in_cells(label, free - 1), " "]
        words[column : column + len(cells)] = [(cell, role) for cell in cells]


def _title_row(chart: Chart, history: History, width: int) -> Row:
    log = " (log)" if chart.log else ""
    full, short = (_legend(chart, history, sample=sample) for sample in (True, False))
    for title, legend in ((chart.title + log, full), (chart.title, full), (chart.title, short)):
        if len(title) + 1 + width_of(legend) <= width:
            return titled(title, legend, width)
    name = chart.title.partition(" ")[0]
    if len(name) + 1 + width_of(short) > width:
        short = _legend(msgspec.structs.replace(chart, series=chart.series[-1:]), history, sample=False)
    return titled(name, short, width)


def _legend(chart: Chart, history: History, *, sample: bool) -> Row:
    """Return the series that have had a value, topmost first; with `sample`, also their ink and a fixed width."""
    words: list[Word] = []
    shown = [one for one in chart.series if history.knows(one.column)] or chart.series[-1:]
    for series in reversed(shown):
        bounds = history.last_bounds(series.column)
        if bounds is None:
            value = chart.number(history.last(series.column))
        else:
            value = fmt.interval((bounds[0], None if bounds[1] == math.inf else bounds[1]))
        lead = f"{SAMPLES[series.ink]} " if sample else ""
        gap = ("  " if sample else " ") if words else ""
        words += [(f"{gap}{lead}{series.label} ", series.role), (f"{value:>5}" if sample else value, "text")]
    return tuple(words)


def _scale(chart: Chart, folded: Folded, rows: int) -> Scale:
    intervals = range(3, 6) if rows >= 9 else range(2, 4) if rows >= 5 else range(2, 3)
    if chart.most is not None:
        return linear(chart.most, intervals)
    known = np.concatenate([ends for series in chart.series for ends in folded.bands[series.column]])
    known = known[np.isfinite(known)]
    highest = float(known.max(initial=-np.inf))
    if not chart.log:
        return linear(highest, intervals)
    lowest = float(known[known > 0].min(initial=np.inf))
    return logarithmic(lowest, highest, max(2, rows // 2))
