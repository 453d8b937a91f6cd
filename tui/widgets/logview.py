"""The log over the whole view: it follows, scrolls, and finds; the wheel scrolls too."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import chop_cells
from textual.binding import Binding, BindingType
from textual.events import Click, MouseScrollDown, MouseScrollUp

from loadgen import format as fmt
from tui.panels.frame import Frame
from tui.screens.dialogs import AskText
from tui.widgets.logbook import LogBook
from tui.widgets.paint import Row, Rows, Word, titled
from tui.widgets.panel import Panel

LOG = (
    Binding("up", "scroll(-1)", "up", tooltip="In the log: a line up", id="log.up"),
    Binding("down", "scroll(1)", "down", tooltip="In the log: a line down", id="log.down"),
    Binding("pageup", "page(-1)", "page up", tooltip="In the log: a screenful up", id="log.page_up"),
    Binding("pagedown", "page(1)", "page down", tooltip="In the log: a screenful down", id="log.page_down"),
    Binding("home", "scroll(-1000000)", "begin", tooltip="In the log: to its first line", id="log.begin"),
    Binding("end,f", "follow", "follow", tooltip="In the log: to its last line, and stay there", id="log.follow"),
    Binding("ctrl+f", "search", "search", tooltip="In the log: find a text", id="log.search"),
    Binding("<", "find(-1)", "above", tooltip="In the log: the text once more, above", id="log.above"),
    Binding(">", "find(1)", "below", tooltip="In the log: the text once more, below", id="log.below"),
)
"""Live while the view of the log shows."""
_WHEEL = 3
_INDENT = 4  # of what a long line goes on with


class LogView(Panel):
    """A window on the log book; its keys are live while it shows."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = list(LOG)

    def __init__(self, book: LogBook, *, id: str) -> None:
        super().__init__(self._rows_of, id=id)
        self._book = book

    def _rows_of(self, view: Frame, width: int, height: int) -> Rows:
        room = max(1, height - 1)
        rows = [row for line in self._book.window(room) for row in _line(line, self._book.search, width)]
        return [titled("server log", self._legend(view), width), *rows[-room:]]

    def _legend(self, view: Frame) -> Row:
        """How many lines of which, and whether it follows."""
        words: list[Word] = [("without answered requests  ", "dim")]
        if view.log_filter:
            words.append((f"/{fmt.plain(view.log_filter)}  ", "key"))
        if self._book.search:
            words.append((f"< {fmt.plain(self._book.search)} >  ", "found"))
        words.append((f"{fmt.counted(len(self._book), 'line')}  ", "dim"))
        standing: Word = ("STANDS, f follows", "warn")
        return (*words, ("follows", "good") if self._book.end is None else standing)

    @property
    def _room(self) -> int:
        return max(1, self.size.height - 1)

    def action_scroll(self, lines: int) -> None:
        self._book.scroll(lines, self._room)
        self._draw()

    def action_page(self, direction: int) -> None:
        self.action_scroll(direction * max(1, self._room - 1))

    def action_follow(self) -> None:
        """To the end, and stay there."""
        self._book.end = None
        self._draw()

    def action_search(self) -> None:
        self.app.push_screen(AskText("Look in the log for (< above, > below)", self._book.search), self._search)

    def _search(self, text: str | None) -> None:
        if text is not None:
            self._book.search = text
            self.action_find(-1)

    def action_find(self, step: int) -> None:
        """The next one above or below."""
        if self._book.search and not self._book.find(self._book.search, step, self._room):
            where = "above" if step < 0 else "below"
            self.notify(f"Not found {where}: {fmt.plain(self._book.search)}", timeout=2, markup=False)
        self._draw()

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.action_scroll(-_WHEEL)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.action_scroll(_WHEEL)

    def on_click(self, event: Click) -> None:
        event.stop()


def _line(line: str, search: str, width: int) -> Rows:
    """A line on as many rows as it needs, with what was looked for standing out."""
    room = max(8, width - 1 - _INDENT)
    first = (chop_cells(line, room + _INDENT) or [""])[0]
    pieces = [first, *chop_cells(line[len(first) :], room)]
    return [
        ((" " if number == 0 else " " * (1 + _INDENT), "text"), *_marked(piece, search.casefold()))
        for number, piece in enumerate(pieces)
    ]


def _marked(text: str, wanted: str) -> Row:
    place = text.casefold().find(wanted) if wanted else -1
    if place < 0 or not text.isascii():
        return ((text, "found" if place >= 0 else "dim"),)
    end = place + len(wanted)
    return ((text[:place], "dim"), (text[place:end], "found"), (text[end:], "dim"))
