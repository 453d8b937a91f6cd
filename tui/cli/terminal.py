"""Textual's driver, on a terminal that may read nothing for a while or be gone.

Textual's own writes go through a queue of 30 places: once a terminal takes nothing, or its closing has ended the thread
that empties the queue, the next write stops the whole program for good, its run and its signal handlers with it
(https://github.com/Textualize/textual/issues/6692 is one way into that). And each SIGCONT starts another thread that
reads keys, of which only the last is ended: the program then never ends.
"""

from __future__ import annotations

import signal
import sys

from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from tui.cli.non_blocking_writer import NonBlockingWriter


class ReadsAgain(Message):
    """The terminal has caught up after writes were dropped: what it shows is not what was drawn."""


class TerminalDriver(LinuxDriver):
    """Drawing never waits for the terminal."""

    _outlet: NonBlockingWriter | None = None

    def start_application_mode(self) -> None:
        """Take the terminal; one that is taken is drawn anew."""
        if self._outlet is not None:  # a SIGCONT although nothing stopped us: tmux sends one of its own
            self._caught_up()
            return
        # Where Textual writes; its own thread starts too, and gets nothing to write.
        assert sys.__stderr__ is not None
        self._outlet = NonBlockingWriter(sys.__stderr__, caught_up=self._caught_up, gone=_hang_up)
        super().start_application_mode()  # type: ignore[no-untyped-call]  # Textual gave it no types

    def write(self, data: str) -> None:
        if self._outlet is not None:
            self._outlet.write(data)

    def close(self) -> None:
        """Leave the terminal once it has got the last words, if it takes them."""
        super().close()
        if self._outlet is not None:
            self._outlet.close()
            self._outlet = None

    def _caught_up(self) -> None:
        self.send_message(ReadsAgain())


def _hang_up() -> None:
    """What the kernel says to the leader of a session whose terminal closes; whoever started us may have kept it."""
    signal.raise_signal(signal.SIGHUP)
