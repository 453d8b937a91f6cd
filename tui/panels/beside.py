"""Panels side by side, each painted by itself."""

from __future__ import annotations

from collections.abc import Sequence

from tui.widgets.paint import Row, Rows, Word, cropped, width_of

GAP = 2


def beside(panels: Sequence[tuple[Rows, int]], height: int) -> Rows:
    """Rows of panels, given with their widths, as rows across all of them."""
    return [_across(panels, y) for y in range(min(height, max((len(rows) for rows, _ in panels), default=0)))]


def widths_of(width: int, count: int) -> list[int]:
    """How wide each of some panels is; what is left over goes to the first ones."""
    room = width - GAP * (count - 1)
    return [room // count + (number < room % count) for number in range(count)]


def _across(panels: Sequence[tuple[Rows, int]], y: int) -> Row:
    words: list[Word] = []
    for number, (rows, width) in enumerate(panels):
        row = cropped(rows[y], width) if y < len(rows) else ()
        last = number == len(panels) - 1
        words += [*row, (" " * (width - width_of(row) + (0 if last else GAP)), "text")]
    return tuple(words)
