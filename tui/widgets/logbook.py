"""The server's log as far as the cockpit has seen it: thousands of lines, those that pass a filter, and where to look.

A snapshot has the last lines alone; the book keeps what they were before, up to `MOST` lines, and says where some were
lost because they came too fast. Nothing is scanned anew unless the filter changes.
"""

from __future__ import annotations

from collections import deque

from loadgen import format as fmt
from loadgen.metrics.snapshot import ServerView

MOST = 20_000


class LogBook:
    """Lines of a log, and a window on those that pass the filter."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MOST)
        self._passing: deque[str] = deque(maxlen=MOST)
        self._filter = ""
        self._total = 0
        self._last: tuple[str, ...] = ()
        self.search = ""  # what is looked for, without regard to case; empty: nothing
        self.end: int | None = None  # how many lines lie above the window's lower edge; None: it follows the log

    def __len__(self) -> int:
        return len(self._passing)

    def see(self, server: ServerView) -> None:
        """Take the lines that are new."""
        tail = server.log_tail
        if tail == self._last:
            return
        total = server.log_total or len(tail)
        if not server.log_total:  # nothing says what is new
            self._clear()
        elif total < self._total:
            self._append(["… the log of another server"])
            self._total = 0
        new = min(total - self._total, len(tail))
        if self._total and total - self._total > len(tail):
            self._append([f"… {total - self._total - len(tail)} lines came too fast to be kept here"])
        self._append([fmt.plain(line) for line in tail[len(tail) - new :]])
        self._total, self._last = total, tail

    def _clear(self) -> None:
        self._lines.clear()
        self._passing.clear()
        self._total = 0

    def _append(self, lines: list[str]) -> None:
        self._lines.extend(lines)
        passed = self._passed(lines)
        if self.end is not None:  # what drops off at the top must not move the window
            self.end = max(0, self.end - max(0, len(self._passing) + len(passed) - MOST))
        self._passing.extend(passed)

    def _passed(self, lines: list[str] | deque[str]) -> list[str]:
        wanted = self._filter.casefold()
        return [line for line in lines if wanted in line.casefold()] if wanted else list(lines)

    def filter(self, text: str) -> None:
        """Only lines with this text, from now on and of the past; follows again."""
        if text != self._filter:
            self._filter = text
            self._passing = deque(self._passed(self._lines), maxlen=MOST)
            self.end = None

    # The window.

    def window(self, height: int) -> list[str]:
        """The lines in sight, at most `height`."""
        end = len(self._passing) if self.end is None else min(self.end, len(self._passing))
        start = max(0, end - height)
        return [self._passing[place] for place in range(start, end)]

    def scroll(self, lines: int, height: int) -> None:
        """Move the window; at the end of the log it follows again."""
        end = len(self._passing) if self.end is None else self.end
        end = min(max(end + lines, min(height, len(self._passing))), len(self._passing))
        self.end = None if end == len(self._passing) else end

    def find(self, text: str, step: int, height: int) -> bool:
        """Put the nearest line with a text into the middle, above (-1) or below; whether there is one."""
        self.search = text
        lines, wanted = list(self._passing), text.casefold()
        end = len(lines) if self.end is None else self.end
        middle = max(0, end - height // 2 - 1) if self.end is not None else len(lines)
        places = range(middle - 1, -1, -1) if step < 0 else range(middle + 1, len(lines))
        place = next((place for place in places if wanted in lines[place].casefold()), None) if wanted else None
        if place is not None:
            self.end = min(max(place + height // 2 + 1, min(height, len(lines))), len(lines))
        return place is not None
