"""Panel: a panel of rows on the Line API.

A tick recomputes the rows, a pure function of the view and the size; there is no child widget and no markup. A panel
that does not show costs nothing: it is painted when it comes back.
"""

from __future__ import annotations

from collections.abc import Callable

from textual.events import Click
from textual.message import Message

from tui.charts.chart import Chart, chart_rows
from tui.panels.frame import Frame
from tui.widgets.paint import Painted, Rows

Paint = Callable[[Frame, int, int], Rows]  # frame, width and height to rows; more rows than the height are cut


def of_chart(chart: Chart) -> Paint:
    """What a board paints that shows a chart."""

    def paint(view: Frame, width: int, height: int) -> Rows:
        return chart_rows(chart, view.timeline.history, view.span, view.timeline.marks.all, width, height)

    return paint


class Panel(Painted):
    """Draws what its function makes of the latest view."""

    class Chosen(Message):
        """A click on the panel."""

        def __init__(self, board: Panel) -> None:
            super().__init__()
            self.board = board

    def __init__(self, paint: Paint, *, id: str) -> None:
        super().__init__(id=id)
        self._paint = paint
        self._view: Frame | None = None

    def show(self, view: Frame) -> None:
        self._view = view
        if self.is_on_screen:
            self._draw()

    def on_resize(self) -> None:
        """Rows depend on the size; this comes too when the panel is shown again."""
        self._draw()

    def on_click(self, event: Click) -> None:
        """The screen knows what to do."""
        event.stop()
        self.post_message(self.Chosen(self))

    def _draw(self) -> None:
        width, height = self.size
        if self._view is not None and width and height:
            self.put(self._paint(self._view, width, height))
