"""The last rows: the views and the keys that are needed most, as many as fit; a click on a key is that key.

One widget instead of Textual's footer, which mounts one for each key and builds them all again after every dialog.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual.events import Click

from tui import keys
from tui.paint import Painted, Row, Rows, Word, width_of
from tui.views import OVERVIEW, PAGES

_KEY_OF = {page.name: page.key for page in PAGES}


class KeyBar(Painted):
    """Shows keys and takes clicks on them; the views have a row of their own where there are two."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._page = OVERVIEW

    def show(self, page: str) -> None:
        """Let the view that shows stand out."""
        if page != self._page:
            self._page = page
            self.on_resize()

    def on_resize(self) -> None:
        """Another width, other keys."""
        self.put(self._bars())

    async def on_click(self, event: Click) -> None:
        """Act as if the key had been pressed; the name of a view is as good as its key."""
        bars = self._bars()
        column = 0
        for text, _ in bars[event.y] if 0 <= event.y < len(bars) else ():
            action = keys.ACTION_OF.get(text) or keys.ACTION_OF.get(_KEY_OF.get(text.strip(), ""))
            if column <= event.x < column + len(text) and action:
                await self.screen.run_action(action)
            column += len(text)

    def _bars(self) -> Rows:
        width, height = self.size
        below = _fitted(((names, label, "dim") for names, label in keys.BAR), width)
        if height < 2:
            return [below]
        pages = (((page.key,), page.name, "strong" if page.name == self._page else "dim") for page in PAGES)
        return [_fitted(pages, width), below]


def _fitted(items: Iterable[tuple[tuple[str, ...], str, str]], width: int) -> Row:
    words: list[Word] = []
    for names, label, role in items:
        item: list[Word] = [(" ", "text")]
        item += [(name, "key") for name in names]
        item.append((f" {label}", role))
        if width_of((*words, *item)) <= width:
            words += [*item, (" ", "text")]
    return tuple(words)
