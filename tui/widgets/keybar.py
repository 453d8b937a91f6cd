"""The last rows: keys and what they do, as many as fit; a click on a key is that key.

One widget instead of Textual's footer, which mounts one for each key and builds them all again after every dialog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.events import Click

from tui.keys import Hint
from tui.widgets.paint import Painted, Word, width_of

Bar = Sequence[Hint]  # one row, the most needed first


class KeyBar(Painted):
    """Shows keys and takes clicks on them."""

    def __init__(self, hints: Callable[[int], Sequence[Bar]], *, id: str) -> None:
        """`hints` makes the rows for a height."""
        super().__init__(id=id)
        self._hints = hints

    def on_resize(self) -> None:
        """Another width, other keys; the screen calls it too when there is something else to show."""
        self.put([tuple(word for word, _ in row) for row in self._rows_of_words()])

    async def on_click(self, event: Click) -> None:
        """Act as if the key had been pressed; the words of a single key are as good as the key."""
        rows = self._rows_of_words()
        column = 0
        for word, action in rows[event.y] if 0 <= event.y < len(rows) else ():
            cells = width_of((word,))
            if column <= event.x < column + cells and action:
                await self.screen.run_action(action)
            column += cells

    def _rows_of_words(self) -> list[list[tuple[Word, str]]]:
        width, height = self.size
        return [_fitted(row, width) for row in self._hints(height)]


def _fitted(hints: Bar, width: int) -> list[tuple[Word, str]]:
    """The words of those that have room, each with its action."""
    found: list[tuple[Word, str]] = []
    room = width + 1
    for hint in hints:
        item = _words(hint)
        cells = width_of(tuple(word for word, _ in item))
        if cells <= room:
            found += item
            room -= cells
    return found


def _words(hint: Hint) -> list[tuple[Word, str]]:
    action = hint.keys[0][1] if len(hint.keys) == 1 else ""
    return [
        ((" ", "text"), ""),
        *(((key, "key"), action) for key, action in hint.keys),
        ((f" {hint.label}", hint.role), action),
        ((" ", "text"), ""),
    ]
