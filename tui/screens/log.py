"""The log view: thousands of lines of the server's log, with filter, follow, scroll and search.

A snapshot has only the last lines; the book keeps up to `MAX_LINES`, and says where some were lost because
they came too fast. Lines are scanned again only when the filter changes.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import ClassVar

from rich.cells import chop_cells
from textual.binding import BindingType
from textual.events import Click, MouseScrollDown, MouseScrollUp

from loadgen import format as fmt
from loadgen.schema.snapshot import ServerView
from tui import keys
from tui.panels.frame import Frame, Panel
from tui.panels.messages import no_log
from tui.screens.dialogs import AskText, ask
from tui.widgets.rows import Row, Rows, Word, titled

MAX_LINES = 20_000
_WHEEL = 3
_INDENT = 4  # of the continuation of a long line


class LogBook:
    """The lines of a log, and a window on those that pass the filter."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._passing: deque[str] = deque(maxlen=MAX_LINES)
        self._filter = ""
        self._total = 0
        self._last: tuple[str, ...] = ()
        self.search = ""  # the text to look for, ignoring case; empty: none
        self.end: int | None = None  # how many lines lie above the window's lower edge; None: it follows the log
        self._hit: int | None = None  # the last match, until the window is moved

    def __len__(self) -> int:
        return len(self._passing)

    def add(self, server: ServerView) -> None:
        tail = server.log_tail
        if tail == self._last:
            return
        if server.log_total < self._total:
            self._append(["… the log of another server"])
            self._total = 0
        new = server.log_total - self._total
        if self._total and new > len(tail):
            self._append([f"… {new - len(tail)} lines came too fast to be kept here"])
        self._append([fmt.plain(line) for line in tail[max(0, len(tail) - new) :]])
        self._total, self._last = server.log_total, tail

    def _append(self, lines: list[str]) -> None:
        self._lines.extend(lines)
        passed = self._passed(lines)
        dropped = max(0, len(self._passing) + len(passed) - MAX_LINES)  # at the top, which must not move the window
        if self.end is not None:
            self.end = max(0, self.end - dropped)
        if self._hit is not None:
            self._hit = self._hit - dropped if self._hit >= dropped else None
        self._passing.extend(passed)

    def _passed(self, lines: list[str] | deque[str]) -> list[str]:
        wanted = self._filter.casefold()
        return [line for line in lines if wanted in line.casefold()] if wanted else list(lines)

    def filter(self, text: str) -> None:
        """Keep only lines with this text, past and future, and follow again."""
        if text != self._filter:
            self._filter = text
            self._passing = deque(self._passed(self._lines), maxlen=MAX_LINES)
            self.follow()

    # The window.

    def window(self, height: int) -> list[str]:
        """Return the lines above the window's lower edge, at most `height`."""
        end = len(self._passing) if self.end is None else min(self.end, len(self._passing))
        start = max(0, end - height)
        return [self._passing[place] for place in range(start, end)]

    def rows(self, height: int, width: int) -> Rows:
        """Return the rows of the window, at most `height`: it ends with a whole line, or begins with the first."""
        if self.end is None or self.end > (first := self._fitting(0, height, width)):
            return [row for line in self.window(height) for row in _line(line, self.search, width)][-height:]
        return [row for line in islice(self._passing, first + 1) for row in _line(line, self.search, width)][:height]

    def _fitting(self, start: int, height: int, width: int) -> int:
        """Return the end of the lines that fit as a whole from `start` on."""
        for place in range(start, len(self)):
            height -= len(_line(self._passing[place], "", width))
            if height < 0:
                return place
        return len(self)

    def follow(self) -> None:
        self.end = self._hit = None

    def scroll(self, lines: int, height: int, width: int) -> None:
        """Move the window; at the end of the log it follows again."""
        end = len(self._passing) if self.end is None else self.end
        end = min(max(end + lines, self._fitting(0, height, width)), len(self._passing))
        self.end = None if end == len(self._passing) else end
        self._hit = None

    def find(self, text: str, step: int, height: int, width: int) -> bool:
        """Centre the nearest line with a text, above (-1) or below; return whether there is one.

        The search starts at the last match, or else so that the lines in the window are included.
        """
        self.search = text
        lines, wanted = list(self._passing), text.casefold()
        if self._hit is not None:
            above, below = self._hit, self._hit + 1
        else:  # the end of the visible lines, and the first of them; nothing lies below a window that follows
            above = below = min(len(self) if self.end is None else self.end, len(self))
            room = 0 if self.end is None else height
            while room > 0 and below > 0:
                below -= 1
                room -= len(_line(self._passing[below], "", width))
        places = range(above - 1, -1, -1) if step < 0 else range(below, len(lines))
        place = next((place for place in places if wanted in lines[place].casefold()), None) if wanted else None
        if place is not None:
            self._hit = place
            least = max(place + 1, self._fitting(0, height, width))
            self.end = max(least, self._fitting(place, height // 2 + 1, width))
        return place is not None


class LogView(Panel):
    """A window on the log book; its keys are live while it is shown."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = list(keys.LOG)

    def __init__(self, book: LogBook, *, id: str) -> None:
        super().__init__(self._rows_of, id=id)
        self._book = book

    def _rows_of(self, frame: Frame, width: int, height: int) -> Rows:
        room = max(1, height - 1)
        rows = self._book.rows(room, width)
        legend: list[Word] = [("without answered requests  ", "dim")]
        if frame.log_filter:
            legend.append((f"/{fmt.plain(frame.log_filter)}  ", "key"))
        if self._book.search:
            legend.append((f"< {fmt.plain(self._book.search)} >  ", "found"))
        legend.append((f"{fmt.counted(len(self._book), 'line')}  ", "dim"))
        key = frame.keymap.get("log.follow", "f")
        legend.append(("follows", "good") if self._book.end is None else (f"PAUSED, {key} follows", "warn"))
        return [titled("server log", tuple(legend), width), *(rows or no_log(frame))]

    @property
    def _room(self) -> tuple[int, int]:
        """The number of rows for lines, and their width."""
        return max(1, self.size.height - 1), self.size.width

    def action_scroll(self, lines: int) -> None:
        self._book.scroll(lines, *self._room)
        self.draw()

    def action_page(self, direction: int) -> None:
        self.action_scroll(direction * max(1, self._room[0] - 1))

    def action_follow(self) -> None:
        self._book.follow()
        self.draw()

    def action_search(self) -> None:
        dialog = AskText("Search the log for (< above, > below)", str, self._book.search)
        ask(self.screen, dialog, lambda text: self._find(text, -1))

    def action_find(self, step: int) -> None:
        self._find(self._book.search, step)

    def _find(self, text: str, step: int) -> None:
        if not self._book.find(text, step, *self._room) and text:
            where = "above" if step < 0 else "below"
            self.notify(f"Not found {where}: {fmt.plain(text)}", timeout=2)
        self.draw()

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.action_scroll(-_WHEEL)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.action_scroll(_WHEEL)

    def on_click(self, event: Click) -> None:
        event.stop()


def _line(line: str, search: str, width: int) -> Rows:
    """Wrap a line onto as many rows as it needs, with the searched text highlighted."""
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
