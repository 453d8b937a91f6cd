"""A program in a real pseudo-terminal: what it shows, and keys."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 60.0


class Terminal:
    """The other side of a terminal with vramp in it."""

    def __init__(self, pid: int, master: int) -> None:
        self.pid = pid
        self.master = master
        self.seen = b""

    def read_until(self, words: bytes) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while words not in self.seen:
            readable, _, _ = select.select([self.master], [], [], max(0.0, until_s - time.monotonic()))
            assert readable, f"never showed {words!r}: {self.seen[-2000:]!r}"
            self.seen += os.read(self.master, 65536)

    def read_waiting(self) -> None:
        """Read what was written so far, so that the other side does not wait."""
        while select.select([self.master], [], [], 0.0)[0]:
            self.seen += os.read(self.master, 65536)

    def read_for(self, span_s: float) -> None:
        """Read what is written in so many seconds."""
        until_s = time.monotonic() + span_s
        while (left_s := until_s - time.monotonic()) > 0 and select.select([self.master], [], [], left_s)[0]:
            self.seen += os.read(self.master, 65536)

    def read_rest(self) -> None:
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # the other side is closed
                return
            if not data:
                return
            self.seen += data

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_to_its_end(self) -> int:
        """The exit code, after all that it shows."""
        self.read_rest()
        return self.wait()

    def leave(self) -> int:
        """Finish the run in the cockpit, and leave; the exit code."""
        self.press(b"q")
        self.read_until(b"A run is live")
        self.press(b"f")
        return self.read_to_its_end()

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def in_a_terminal(
    command: Sequence[str], folder: Path, env: Mapping[str, str], columns: int = 120, rows: int = 40
) -> Iterator[Terminal]:
    """Start a program in a terminal of its own; at the end the terminal is closed, on which the kernel hangs up."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update({"TERM": "xterm-256color", **env})
        os.execvp(command[0], list(command))
    terminal = Terminal(pid, master)
    terminal.resize(columns, rows)
    try:
        yield terminal
    finally:
        os.close(master)
