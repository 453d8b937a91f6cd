"""Writes to a terminal or pipe whose reader may pause for hours or vanish, without holding up a run.

Behind a sleeping ssh client, after Ctrl+S, or if a job never reads its child's stderr, the kernel blocks the writer.
Invariants: `write` never waits; the backlog is bounded; what does not fit is dropped in whole writes, so that no
control sequence is torn apart; each loss is reported once the reader has caught up.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

MAX_WAITING = 128 * 1024  # characters: a few full screens of a large terminal
MAX_COLUMNS, MAX_ROWS = 1000, 400  # a larger screen stays blank beyond: three 4K displays in a small font show no more
_MIN_COLUMNS, _MIN_ROWS = 60, 16  # below this the cockpit would show less than the progress lines do
_DEFAULT_COLUMNS, _DEFAULT_ROWS = 80, 24
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSE_TIMEOUT_S = 1.0  # how long `close` waits for the reader to take the rest


def _braille_as_blocks() -> dict[int, str]:
    """Return the half block that stands for each braille cell, by code point."""
    upper, lower = 0b00011011, 0b11100100
    return {
        0x2800 + dots: " █▀▄"[0 if not dots else 2 if not dots & lower else 3 if not dots & upper else 1]
        for dots in range(256)
    }


CONSOLE_GLYPHS = _braille_as_blocks() | str.maketrans(
    "━╌┄┊╭╮╰╯▴▾▸▲▼△▽✦✓✎↯↺→…◆◇●○▁▂▃▅▆▇▔▕▏▎▍▋▊▉╸╺╴╶▪",
    "=-.:┌┐└┘^v>^v^v*+*%@>~xx@o▄▄▄▄▄▄▀|||▌▌██====■",
)
"""Glyphs that the font of the Linux console (256 or 512 glyphs) lacks, with the nearest ones that it has."""


def shows_all_glyphs() -> bool:
    """Whether the terminal is another than the Linux console, whose font lacks some glyphs."""
    return os.environ.get("TERM") != "linux"


def plain_reason() -> str | None:
    """Return why the cockpit cannot be shown here, or None if it can."""
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        return "there is no terminal"
    if not sys.stderr.isatty():
        return "stderr is not the terminal, and the cockpit is drawn there"
    if os.environ.get("TERM") == "dumb":
        return "TERM=dumb: this terminal cannot position text"
    columns, rows = usable_size(*shutil.get_terminal_size())
    if columns < _MIN_COLUMNS or rows < _MIN_ROWS:
        return f"the terminal has {columns}x{rows} cells, and the cockpit needs {_MIN_COLUMNS}x{_MIN_ROWS}"
    return None


def usable_size(columns: int, rows: int) -> tuple[int, int]:
    """Return the columns and rows to draw on a terminal that reports these: 0 is unknown, as on a serial console."""
    return min(columns or _DEFAULT_COLUMNS, MAX_COLUMNS), min(rows or _DEFAULT_ROWS, MAX_ROWS)


class NonBlockingWriter:
    """Writes to a stream's descriptor from a thread, so that no caller has to wait."""

    def __init__(self, stream: TextIO, *, caught_up: Callable[[], None], gone: Callable[[], object]) -> None:
        """Start the thread; until `close`, it calls `caught_up` after a loss, and `gone` once the reader is gone."""
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
        """Queue a text, which is written as a whole or not at all."""
        with self._changed:
            if self._size > MAX_WAITING:
                self._waiting.clear()
                self._size = 0
                self._lost = True
            self._waiting.append(text)
            self._size += len(text)
            self._changed.notify()

    def close(self) -> None:
        """Write the backlog, if the reader takes it soon."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while (text := self._next()) is not None:
                if self._write_all(text.encode(self._encoding, "backslashreplace")):
                    self._report_loss()
        except OSError:  # the terminal is closed, or the pipe
            if not self._closed:
                self._gone()

    def _write_all(self, data: bytes) -> bool:
        """Write it all; False if it is lost because the disk is full, as a log's may be for a while."""
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            with self._changed:
                self._lost = True
            return False
        return True

    def _next(self) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            text = self._waiting.popleft()
            self._size -= len(text)
            return text

    def _report_loss(self) -> None:
        with self._changed:
            reported = self._lost and not self._waiting and not self._closed
            if reported:
                self._lost = False
        if reported:
            self._caught_up()
