"""The last row: the keys that are needed most, as many as fit; a click on a key is that key.

One widget instead of Textual's footer, which mounts one for each key and builds them all again after every dialog.
"""

from __future__ import annotations

from textual.events import Click

from tui import keys
from tui.paint import Painted, Row, Word, width_of


class KeyBar(Painted):
    """Shows keys and takes clicks on them."""

    def on_resize(self) -> None:
        """Another width, other keys."""
        self.put([_row(self.size.width)])

    async def on_click(self, event: Click) -> None:
        """Act as if the key had been pressed."""
        column = 0
        for text, _ in _row(self.size.width):
            if column <= event.x < column + len(text) and text in keys.ACTION_OF:
                await self.screen.run_action(keys.ACTION_OF[text])
            column += len(text)


def _row(width: int) -> Row:
    words: list[Word] = []
    for names, label in keys.BAR:
        item: list[Word] = [(" ", "text")]
        item += [(name, "key") for name in names]
        item.append((f" {label}", "dim"))
        if width_of((*words, *item)) <= width:
            words += [*item, (" ", "text")]
    return tuple(words)
