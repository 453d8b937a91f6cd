"""What the guard waits for: lines on stdin and its end, and signals; in one thread, and no signal is lost."""

from __future__ import annotations

import os
import selectors
import signal


class Inbox:
    """Opened once, by the process that it serves: it sets handlers for that process's signals."""

    def __init__(self) -> None:
        self.closed = False
        self._lines: list[bytes] = []
        self._partial = b""
        self._signals, wakeup = os.pipe()
        os.set_blocking(self._signals, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        # Handlers rather than SIG_IGN: the server would inherit an ignored signal, but not a handler.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._selector.register(self._signals, selectors.EVENT_READ)

    def wait(self, timeout_s: float | None) -> tuple[list[bytes], set[int]]:
        """The lines and signals that came, at the latest after `timeout_s`."""
        signals: set[int] = set()
        for key, _ in self._selector.select(0 if self._lines else timeout_s):
            if key.fd == 0:
                self._read()
            else:
                signals |= set(os.read(self._signals, 4096))
        lines, self._lines = self._lines, []
        return lines, signals

    def first_line(self) -> bytes | None:
        """The order; None if vramp is gone before it gave one. Lines that came with it stay for `wait`."""
        while not self.closed:
            lines, _ = self.wait(None)
            if lines:
                self._lines = lines[1:]
                return lines[0]
        return None

    def _read(self) -> None:
        data = os.read(0, 65536)
        if not data:
            self.closed = True
            self._selector.unregister(0)
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._lines += lines
