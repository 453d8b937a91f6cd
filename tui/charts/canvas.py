"""The drawing core of all charts: braille dots, 2 x 4 a cell, and texts over one another next to a gutter of ticks.

Invariants: every finite point lights its cell, whatever the ink, and a point outside the plot the nearest edge; a NaN
breaks the line; no numbers make it raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadgen import format as fmt
from loadgen.metrics.series import Floats, Ints
from tui.charts.scale import Scale
from tui.widgets.rows import Row, Rows, Word

Ink = Literal["line", "dots", "area"]
Cells = NDArray[np.uint8]

GUTTER = 7  # cells left of the plot: a number of five, a space and the axis
CORNER: Row = ((" " * (GUTTER - 1), "text"), ("└", "rule"))
SAMPLES: dict[Ink, str] = {"line": "─", "dots": "┄", "area": "▄"}
_BRAILLE, _SPACE = 0x2800, 0x20


class Canvas:
    """Cells to draw on; each remembers the role that was drawn last."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._codes: NDArray[np.uint32] = np.full((rows, columns), _SPACE, dtype=np.uint32)
        self._owner = np.zeros((rows, columns), dtype=np.int64)
        self._roles = ["text"]

    def dots(self, bits: Cells, role: str) -> None:
        """Draw braille over what is there; dots of two curves in one cell are merged."""
        lit = bits > 0
        before = np.where(self._codes >= _BRAILLE, self._codes - _BRAILLE, 0).astype(np.uint32)
        self._codes[lit] = (bits | before)[lit] + _BRAILLE
        self._owner[lit] = self._number(role)

    def text(self, column: int, row: int, text: str, role: str, *, over: bool = False) -> bool:
        """Write a text on blank cells, or on any if `over`; return whether it was written."""
        wide = slice(column, column + len(text))
        fits = 0 <= row < self.rows and 0 <= column <= self.columns - len(text)
        if not fits or (not over and (self._codes[row, wide] != _SPACE).any()):
            return False
        self._codes[row, wide] = [ord(character) for character in text]
        self._owner[row, wide] = self._number(role)
        return True

    def uprights(self, columns: Sequence[int], character: str, role: str) -> None:
        """Draw lines from top to bottom, behind what is there."""
        lined = np.zeros(self.columns, dtype=np.bool_)
        lined[list(columns)] = True
        free = lined & (self._codes == _SPACE)
        self._codes[free] = ord(character)
        self._owner[free] = self._number(role)

    def cell(self, x: float, y: float) -> tuple[int, int]:
        """Return the cell of a point given as shares of both sides."""
        return cell_across(x, self.columns), _cell_down(y, self.rows)

    def lines(self) -> list[Row]:
        """Return all rows, split where the role changes; blanks join the word to their left, to keep words few."""
        inked = np.where(self._codes != _SPACE, np.arange(self.columns), 0)
        owner = np.take_along_axis(self._owner, np.maximum.accumulate(inked, axis=1), axis=1)
        cuts: list[list[int]] = [[0] for _ in range(self.rows)]
        for row, column in np.argwhere(owner[:, 1:] != owner[:, :-1]).tolist():
            cuts[row].append(column + 1)
        text = self._codes.tobytes().decode("utf-32-le")
        texts = [text[start : start + self.columns] for start in range(0, len(text), self.columns)]
        return [
            tuple(
                (line[start:end], self._roles[number])
                for (start, end), number in zip(
                    pairwise([*starts, self.columns]), numbers[starts].tolist(), strict=True
                )
            )
            for line, numbers, starts in zip(texts, owner, cuts, strict=True)
        ]

    def with_ticks(self, scale: Scale) -> Rows:
        """Return all rows, with the ticks of the vertical axis on their left."""
        ticks: dict[int, Word] = {
            _cell_down(share, self.rows): (f"{fmt.number(tick):>5} ┤", "dim")
            for share, tick in zip(scale.shares(np.array(scale.ticks)).tolist(), scale.ticks, strict=True)
        }
        return [(ticks.get(row, ("      │", "rule")), *line) for row, line in enumerate(self.lines())]

    def _number(self, role: str) -> int:
        if role not in self._roles:
            self._roles.append(role)
        return self._roles.index(role)


def cell_across(share: float, columns: int) -> int:
    """Return the column of cells in which a share of the width lies."""
    return int(min(max(share, 0.0), 1.0) * (columns * 2 - 1) + 0.5) // 2


def _cell_down(share: float, rows: int) -> int:
    return int((1 - min(max(share, 0.0), 1.0)) * (rows * 4 - 1) + 0.5) // 4


def trace(columns: Ints, low: Floats, high: Floats, *, width: int, height: int, ink: Ink = "line") -> Cells:
    """Return the dots of one series as a (height, width) array of braille bits.

    Each point spans `low` to `high` (shares of the height, 0 at the bottom) in a column of dots.
    """
    pixels = np.zeros((height * 4, width * 2), dtype=np.bool_)
    known = np.isfinite(low) & np.isfinite(high)
    column = columns[known]
    top, bottom = _scaled(1 - high[known], height * 4), _scaled(1 - low[known], height * 4)
    row = np.arange(height * 4)[:, None]
    pixels[:, column] = (top <= row) & (row <= bottom)
    pixels[top, column] = pixels[bottom, column] = True  # where several points share a column, too
    places = np.flatnonzero(known)
    joined = places[1:] == places[:-1] + 1
    middle = (top + bottom) // 2
    _draw_lines(pixels, column[:-1][joined], column[1:][joined], middle[:-1][joined], middle[1:][joined])
    if ink == "dots":
        pixels[:, 0::2] |= pixels[:, 1::2]
        pixels[:, 1::2] = False
    elif ink == "area":
        np.logical_or.accumulate(pixels, axis=0, out=pixels)

    # Eight dots are the bits of a braille code point: three down on the left, on the right, then the lowest.
    left, right = pixels[:, 0::2].view(np.uint8), pixels[:, 1::2].view(np.uint8)
    upper = left | right << 3
    bits = upper[0::4] | upper[1::4] << 1 | upper[2::4] << 2 | left[3::4] << 6 | right[3::4] << 7
    return bits.astype(np.uint8, copy=False)


def polyline(x: Floats, y: Floats, *, width: int, height: int, ink: Ink = "line") -> Cells:
    """Return the dots of points joined in order, as a (height, width) array of braille bits.

    Points are given as shares of both sides.
    """
    known = np.isfinite(x)
    y = np.where(known, y, np.nan)
    return trace(_scaled(np.where(known, x, 0.0), width * 2), y, y, width=width, height=height, ink=ink)


def _scaled(share: Floats, size: int) -> Ints:
    return (np.clip(share, 0.0, 1.0) * (size - 1) + 0.5).astype(np.int64)


def _draw_lines(pixels: NDArray[np.bool_], x0: Ints, x1: Ints, y0: Ints, y1: Ints) -> None:
    """Draw all straight lines at once, each with as many dots as its longer side has."""
    steps = np.maximum(np.abs(x1 - x0), np.abs(y1 - y0))
    line = np.repeat(np.arange(len(steps)), steps + 1)
    first = np.cumsum(steps + 1) - (steps + 1)
    share = (np.arange(len(line)) - first[line]) / np.maximum(steps, 1)[line]
    rows = np.rint(y0[line] + share * (y1 - y0)[line]).astype(np.int64)
    columns = np.rint(x0[line] + share * (x1 - x0)[line]).astype(np.int64)
    pixels[rows, columns] = True
