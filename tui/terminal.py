"""Text to a terminal or a pipe that may read nothing for hours, or be gone: neither may hold up a run.

A laptop that sleeps behind ssh, Ctrl+S, a job that never reads its child's stderr: the kernel then blocks whoever
writes. Invariants: `write` never waits; what waits for the reader is bounded; what finds no room is dropped in whole
writes, so that no control sequence is torn apart; each loss is told once the reader has caught up.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

MOST_WAITING = 128 * 1024  # characters: a few full screens of a large terminal
_LEAST_COLUMNS, _LEAST_ROWS = 60, 16  # below this the cockpit would show less than the progress lines do
_LAST_WORDS_S = 1.0  # A reader that has not taken the rest by then does not get it


def _braille_as_blocks() -> dict[int, str]:
    """A cell of eight dots as the half of a cell that has some of them."""
    upper, lower = 0b00011011, 0b11100100
    return {
        0x2800 + dots: " █▀▄"[0 if not dots else 2 if not dots & lower else 3 if not dots & upper else 1]
        for dots in range(256)
    }


CONSOLE_GLYPHS = _braille_as_blocks() | str.maketrans(
    "━╌┄┊╭╮╰╯▴▾▸▲▼△▽✦✓✎↯↺→…◆◇●○▁▂▃▅▆▇▔▕▏▎▍▋▊▉╸╺╴╶▪",
    "=-.:┌┐└┘^v>^v^v*+*%@>~xx@o▄▄▄▄▄▄▀|||▌▌██====■",
)
"""What the font of the Linux console lacks (256 or 512 glyphs), by what comes nearest to it."""


def shows_all_glyphs() -> bool:
    """Whether the terminal has a font beyond that of the Linux console."""
    return os.environ.get("TERM") != "linux"


def plain_reason() -> str | None:
    """Why the cockpit cannot be shown here, in words; None where it can."""
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        return "there is no terminal"
    if not sys.stderr.isatty():
        return "stderr is not the terminal, and the cockpit is drawn there"
    if os.environ.get("TERM") == "dumb":
        return "TERM=dumb: this terminal cannot place text"
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    # A terminal that does not tell its size has none of 0.
    if 0 < columns < _LEAST_COLUMNS or 0 < rows < _LEAST_ROWS:
        return f"the terminal has {columns}x{rows} cells, and the cockpit takes {_LEAST_COLUMNS}x{_LEAST_ROWS}"
    return None


class NonBlockingWriter:
    """A thread that writes to a stream, past its buffer, so that nobody else has to wait for it."""

    def __init__(self, stream: TextIO, *, caught_up: Callable[[], None], gone: Callable[[], object]) -> None:
        """Until it is closed, the thread calls `caught_up` after a loss, and `gone` once nobody can read any more."""
        self._fd = stream.fileno()
        self._encoding = stream.encoding
        self._caught_up = caught_up
        self._gone = gone
        self._waiting: deque[str] = deque()
        self._size = 0
        self._lost = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="vramp-writer", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """Hand over some text, all of which is written or none."""
        with self._changed:
            if self._size > MOST_WAITING:
                self._waiting.clear()
                self._size = 0
                self._lost = True
            self._waiting.append(text)
            self._size += len(text)
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, if the reader takes it soon."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_LAST_WORDS_S)

    def _run(self) -> None:
        try:
            while (text := self._next()) is not None:
                data = text.encode(self._encoding, "backslashreplace")
                while data:
                    data = data[os.write(self._fd, data) :]
                self._tell_of_a_loss()
        except OSError:  # the terminal is closed, or the pipe
            if not self._closed:
                self._gone()

    def _next(self) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            text = self._waiting.popleft()
            self._size -= len(text)
            return text

    def _tell_of_a_loss(self) -> None:
        with self._changed:
            told = self._lost and not self._waiting and not self._closed
            if told:
                self._lost = False
        if told:
            self._caught_up()
