"""Board: a panel of text rows on the Line API.

A tick recomputes the rows, a pure function of the view and the size; there is no child widget and no markup.
"""

from __future__ import annotations

from collections.abc import Callable

from tui.paint import Painted, Rows
from tui.view import View

Paint = Callable[[View, int, int], Rows]
"""View, width and height to rows; more rows than the height are cut."""


class Board(Painted):
    """Draws what its function makes of the latest view."""

    def __init__(self, paint: Paint, *, id: str) -> None:
        super().__init__(id=id)
        self._paint = paint
        self._view: View | None = None

    def show(self, view: View) -> None:
        """Take a new view."""
        self._view = view
        width, height = self.size
        if width and height:
            self.put(self._paint(view, width, height))

    def on_resize(self) -> None:
        """Rows depend on the size."""
        if self._view is not None:
            self.show(self._view)
