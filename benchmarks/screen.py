"""Runs the cockpit in a pseudo-terminal and measures what it costs."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
import time
from dataclasses import dataclass

import psutil

_MOST_S = 120.0


@dataclass(frozen=True, slots=True)
class ScreenCost:
    """What the cockpit's own process used while load was flowing."""

    cpu_share: float
    bytes_per_s: float


def run_in_terminal(arguments: list[str], *, columns: int, rows: int) -> ScreenCost:
    """Open the cockpit on a plan, wait until the plan is done, quit with `q`."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-m", "tui.cli", *arguments])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = psutil.Process(pid)
    began, count, cpu_s, flowing_s = time.monotonic(), 0, 0.0, 0.0
    seen = b""
    before = (began, 0.0)
    while time.monotonic() - began < _MOST_S:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the cockpit has closed its terminal
            break
        count += len(data)
        seen = (seen + data)[-20_000:]
        now = (time.monotonic(), sum(process.cpu_times()[:2]) if process.is_running() else before[1])
        if before[1] == 0.0 and now[0] - began > 3:
            before = now
        elif before[1]:
            cpu_s, flowing_s = now[1] - before[1], now[0] - before[0]
        if b"plan is done" in seen or b"q finishes" in seen:
            os.write(terminal, b"q")
            os.write(terminal, b"f")
            seen = b""
    os.waitpid(pid, 0)
    os.close(terminal)
    return ScreenCost(cpu_s / max(flowing_s, 1e-9), count / (time.monotonic() - began))
