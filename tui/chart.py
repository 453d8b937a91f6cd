"""Chart: series over the run's time, drawn in braille on the Line API.

Rows: the title with the legend and the last values, the plot, and the axis with the changes of load. All charts get the
same `Span`, so a column of cells is the same moment on each of them. Because the span moves in steps, most rows of a
beat are those of the last, and only the others are drawn again. Series differ by ink as well as by colour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tui import format as fmt
from tui.history import Folded, History
from tui.paint import Painted, Row, Rows, Word, titled, width_of
from tui.raster import Ink, trace
from tui.scale import Scale, Span, linear, logarithmic

GUTTER = 7
"""Cells left of the plot: a number of five, a space and the axis."""
_SAMPLES: dict[Ink, str] = {"line": "─", "dots": "┄", "area": "▄"}
_BRAILLE, _SPACE, _MARK = 0x2800, 0x20, ord("┊")


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: the column of the history, the name in the legend, its role and ink."""

    column: str
    label: str
    role: str
    ink: Ink = "line"


@dataclass(frozen=True, slots=True)
class Mark:
    """A change of load on the time axis."""

    t_s: float
    label: str


class Chart(Painted):
    """Draws a history; the first series lies lowest."""

    def __init__(
        self,
        title: str,
        series: Sequence[Series],
        history: History,
        *,
        id: str,
        log: bool = False,
        number: Callable[[float | None], str] = fmt.number,
    ) -> None:
        super().__init__(id=id)
        self._title = title
        self._number = number
        self._series = tuple(series)
        self._history = history
        self._log = log
        self._span = Span(0.0, 60.0)
        self._marks: Sequence[Mark] = ()

    def show(self, span: Span, marks: Sequence[Mark]) -> None:
        """Draw the history again over a span of time."""
        self._span, self._marks = span, marks
        width, height = self.size
        if width and height:
            self.put(self._draw(width, height))

    def on_resize(self) -> None:
        """Everything depends on the size."""
        self.show(self._span, self._marks)

    def _draw(self, width: int, height: int) -> Rows:
        columns, rows = width - GUTTER, height - 2
        title = self._title_row(width)
        if columns < 4 or rows < 2:
            return [title]
        folded = self._history.folded(self._span.start_s, self._span.end_s, columns * 2)
        scale = self._scale(folded, rows)
        marks = _mark_columns(self._marks, self._span, columns)
        plot = self._plot(folded, scale, marks, columns, rows)
        labels = _tick_labels(scale, rows)
        body = [(_gutter(labels.get(row)), *plot[row]) for row in range(rows)]
        return [title, *body, _axis_row(marks, self._span, columns)]

    def _title_row(self, width: int) -> Row:
        log = " (log)" if self._log else ""
        full, short = self._legend(sample=True), self._legend(sample=False)
        for title, legend in ((self._title + log, full), (self._title, full), (self._title, short)):
            if len(title) + 1 + width_of(legend) <= width:
                return titled(title, legend, width)
        return titled(self._title.partition(" ")[0], short, width)

    def _legend(self, *, sample: bool) -> Row:
        """The series with their last values, the topmost first; with room, a sample of the ink and a fixed width."""
        words: list[Word] = []
        for series in reversed(self._series):
            value = self._number(self._history.last(series.column))
            lead = f"{_SAMPLES[series.ink]} " if sample else ""
            gap = ("  " if sample else " ") if words else ""
            words += [(f"{gap}{lead}{series.label} ", series.role), (f"{value:>5}" if sample else value, "text")]
        return tuple(words)

    def _scale(self, folded: Folded, rows: int) -> Scale:
        highs = [folded.highs(series.column) for series in self._series]
        highest = float(np.fmax.reduce(np.concatenate(highs), initial=np.nan))
        if not self._log:
            return linear(highest, range(3, 6) if rows >= 9 else range(2, 4) if rows >= 5 else range(2, 3))
        lows = np.concatenate([folded.lows(series.column) for series in self._series])
        lowest = float(np.fmin.reduce(lows[lows > 0], initial=np.nan))
        return logarithmic(lowest, highest, max(2, rows // 2))

    def _plot(self, folded: Folded, scale: Scale, marks: dict[int, str], columns: int, rows: int) -> list[Row]:
        bits = np.zeros((rows, columns), dtype=np.uint8)
        owner = np.zeros((rows, columns), dtype=np.int64)
        for number, series in enumerate(self._series, start=1):
            low, high = scale.shares(folded.lows(series.column)), scale.shares(folded.highs(series.column))
            cells = trace(folded.columns, low, high, width=columns, height=rows, ink=series.ink)
            owner[cells > 0] = number
            bits |= cells
        codes = np.where(bits > 0, bits.astype(np.uint32) + _BRAILLE, _SPACE).astype(np.uint32)
        for column in marks:
            free = bits[:, column] == 0
            codes[free, column] = _MARK
            owner[free, column] = len(self._series) + 1
        roles = ("text", *(series.role for series in self._series), "mark")
        return [_runs(codes[row], owner[row], roles) for row in range(rows)]


def _gutter(label: str | None) -> Word:
    return (" " * 5 + " │", "rule") if label is None else (f"{label:>5} ┤", "dim")


def _runs(codes: NDArray[np.uint32], owner: NDArray[np.int64], roles: Sequence[str]) -> Row:
    """One row of cells, cut where the owner changes."""
    text = codes.tobytes().decode("utf-32-le")
    cuts = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), len(text)]
    return tuple((text[start:end], roles[owner[start]]) for start, end in pairwise(cuts))


def _mark_columns(marks: Sequence[Mark], span: Span, columns: int) -> dict[int, str]:
    """The cell column of each mark in sight; of several in one, the last."""
    found: dict[int, str] = {}
    for mark in marks:
        share = span.share(mark.t_s)
        if 0 <= share <= 1:
            found[int(share * (columns * 2 - 1) + 0.5) // 2] = mark.label
    return found


def _tick_labels(scale: Scale, rows: int) -> dict[int, str]:
    shares = scale.shares(np.array(scale.ticks))
    return {
        int((1 - share) * (rows * 4 - 1) + 0.5) // 4: fmt.number(tick)
        for share, tick in zip(shares.tolist(), scale.ticks, strict=True)
    }


def _axis_row(marks: dict[int, str], span: Span, columns: int) -> Row:
    """The labels of marks that fit, the newest first, and the times at both ends where there is still room."""
    cells = ["─"] * columns
    roles = ["rule"] * columns
    labels = [(column, f"▴{label} ", "mark") for column, label in sorted(marks.items(), reverse=True)]
    right = f" {fmt.clock(span.end_s)}"
    for column, text, role in (
        *labels,
        (0, f"{fmt.clock(span.start_s)} ", "dim"),
        (columns - len(right), right, "dim"),
    ):
        wide = slice(column, column + len(text))
        if 0 <= column <= columns - len(text) and all(role == "rule" for role in roles[wide]):
            cells[wide], roles[wide] = list(text), [role] * len(text)
    words = [(" " * (GUTTER - 1), "text"), ("└", "rule")]
    words += zip(cells, roles, strict=True)
    return _joined(words)


def _joined(words: list[Word]) -> Row:
    """Neighbours of one role as one word."""
    joined: list[Word] = []
    for text, role in words:
        if joined and joined[-1][1] == role:
            joined[-1] = (joined[-1][0] + text, role)
        else:
            joined.append((text, role))
    return tuple(joined)
