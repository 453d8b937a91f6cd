"""`python -m benchmarks.screen`: what each view of the cockpit costs while a thousand streams run beside it.

The cockpit runs in a pseudo-terminal of 240 x 60, because without one Textual leaves out what costs most: writing. Its
own process also merges what the workers tell, four times a second, as it does for every user.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from dataclasses import dataclass

import psutil

from tui.keys import PAGES

_MOST_S = 120.0
_SILENT_S = 30.0
"""A live cockpit writes four times a second."""
_VIEW_S = 8.0
_SETTLE_S = 2.0
_STREAMS = 1024


@dataclass(frozen=True, slots=True)
class ScreenCost:
    """What the cockpit's own process used while load was flowing."""

    cpu_share: float
    bytes_per_s: float


class _Cockpit:
    """A cockpit in a terminal, from the outside."""

    def __init__(self, arguments: list[str], columns: int, rows: int) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(sys.executable, [sys.executable, "-m", "tui.cli", *arguments])
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = psutil.Process(self.pid)
        self.last = b""
        """The end of what it wrote."""

    def read(self) -> int:
        """Wait for output and take it; how much, 0 when the cockpit is gone."""
        if not select.select([self._terminal], [], [], _SILENT_S)[0]:
            os.kill(self.pid, signal.SIGTERM)
            sys.exit(f"bench: the cockpit has nothing more to say: {self.last[-400:].decode(errors='replace')}")
        try:
            data = os.read(self._terminal, 65536)
        except OSError:
            return 0
        self.last = (self.last + data)[-200_000:]
        return len(data)

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def cpu_s(self) -> float:
        """What its process has used so far; the children count for themselves."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def cost_of(self, span_s: float) -> ScreenCost:
        """What it uses for so long."""
        began_s, cpu_s, count = time.monotonic(), self.cpu_s(), 0
        while time.monotonic() - began_s < span_s:
            count += self.read()
        took_s = time.monotonic() - began_s
        return ScreenCost((self.cpu_s() - cpu_s) / took_s, count / took_s)

    def close(self) -> None:
        while self.read():
            pass
        os.waitpid(self.pid, 0)
        os.close(self._terminal)


def run_in_terminal(arguments: list[str], *, columns: int, rows: int) -> ScreenCost:
    """Open the cockpit on a plan, wait until the plan is done, quit with `q`."""
    cockpit = _Cockpit(arguments, columns, rows)
    began_s = time.monotonic()
    count, cpu_s, flowing_s = 0, 0.0, 0.0
    before = (began_s, 0.0)
    while time.monotonic() - began_s < _MOST_S:
        read = cockpit.read()
        if not read:
            break
        count += read
        now = (time.monotonic(), cockpit.cpu_s())
        if before[1] == 0.0 and now[0] - began_s > 3:
            before = now
        elif before[1]:
            cpu_s, flowing_s = now[1] - before[1], now[0] - before[0]
        if any(words in cockpit.last for words in (b"plan is done", b" leaves")):
            cockpit.press("qf")
            cockpit.last = b""
    cockpit.close()
    return ScreenCost(cpu_s / max(flowing_s, 1e-9), count / (time.monotonic() - began_s))


def every_view() -> list[tuple[str, ScreenCost]]:
    """Each view for some seconds, on one run with GPUs."""
    words = ["simulator", "--concurrency", str(_STREAMS), "--duration", "10m", "--osl", "64"]
    words += ["--telemetry", "sim"]
    cockpit = _Cockpit(words, columns=240, rows=60)
    found = []
    while b"kernel" not in cockpit.last:
        if not cockpit.read():
            sys.exit(f"the cockpit ended: {cockpit.last.decode(errors='replace')[-400:]}")
    for page in PAGES[:-1]:
        cockpit.press(page.key)
        cockpit.cost_of(_SETTLE_S)
        found.append((page.name, cockpit.cost_of(_VIEW_S)))
    cockpit.press("qf")
    cockpit.close()
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(f"240 x 60, 8 GPUs, {_STREAMS} streams: the cockpit's own process")
        for name, cost in every_view():
            print(f"  {name:<10}{cost.cpu_share:>8.1%} of a core{cost.bytes_per_s / 1000:>8.0f} kB/s")
