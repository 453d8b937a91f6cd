"""`python -m benchmarks.screen`: what the cockpit costs, and how fast it responds, with a thousand streams.

The cockpit runs in a pseudo-terminal, because without one Textual skips the most expensive part: writing. Its process
also merges the workers' ticks, four times a second, as it does for every user. `views` (default) measures the cost of
each view; `ticks` the slowest stretches of its event loop between two waits, with what happened in them; `hand` the
time to the first line and the first frame, and from a key to the screen and to the load, also through a relay that
delays every byte by 75 ms each way; `bytes` what it writes at three sizes.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tui.keys import PAGES

_MAX_S = 120.0
_SILENT_S = 30.0
"""After so long without output the benchmark fails: a live cockpit writes four times a second."""
_VIEW_S = 8.0
_SETTLE_S = 2.0
_STREAMS = 1024
_BUSY = ["simulator", "--concurrency", f"{_STREAMS},{_STREAMS // 2}", "--duration", "10m", "--osl", "64"]
_BUSY += ["--telemetry", "sim"]


@dataclass(frozen=True, slots=True)
class ScreenCost:
    """What the cockpit's own process used while load was flowing."""

    cpu_share: float
    bytes_per_s: float


class _Cockpit:
    """A cockpit in a terminal, as seen from outside."""

    def __init__(self, arguments: list[str], columns: int, rows: int, module: str = "tui.cli") -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = psutil.Process(self.pid)
        self.last = b""
        """The end of its output."""

    def read(self) -> int:
        """Wait for output and read it; return its size, 0 once the cockpit is gone."""
        if not select.select([self._terminal], [], [], _SILENT_S)[0]:
            os.kill(self.pid, signal.SIGTERM)
            sys.exit(f"bench: the cockpit writes nothing any more: {self.last[-400:].decode(errors='replace')}")
        try:
            data = os.read(self._terminal, 65536)
        except OSError:
            return 0
        self.last = (self.last + data)[-200_000:]
        return len(data)

    def read_now(self, most_s: float) -> bytes:
        """Return what is written within `most_s`, if anything; nothing once the cockpit is gone."""
        if not select.select([self._terminal], [], [], most_s)[0]:
            return b""
        try:
            return os.read(self._terminal, 65536)
        except OSError:
            return b""

    def watch(self, span_s: float) -> None:
        """Read for `span_s`, whether it writes or not: under a dialog it does not."""
        until_s = time.monotonic() + span_s
        while (left_s := until_s - time.monotonic()) > 0:
            self.read_now(left_s)

    def read_until(self, words: bytes) -> None:
        while words not in self.last:
            if not self.read():
                sys.exit(f"bench: the cockpit ended: {self.last[-400:].decode(errors='replace')}")

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def cpu_s(self) -> float:
        """Return the CPU time of its own process so far, without children."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def cost_of(self, span_s: float) -> ScreenCost:
        """Measure what it uses for `span_s`."""
        began_s, cpu_s, count = time.monotonic(), self.cpu_s(), 0
        while time.monotonic() - began_s < span_s:
            count += self.read()
        took_s = time.monotonic() - began_s
        return ScreenCost((self.cpu_s() - cpu_s) / took_s, count / took_s)

    def leave(self) -> None:
        """End the run and wait for it; both keys at once would fall into one tick."""
        for key in "qf":
            self.press(key)
            self.watch(1.0)
        self.close()

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
    while time.monotonic() - began_s < _MAX_S:
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
    """Measure each view for some seconds, on one run with GPUs."""
    cockpit = _Cockpit(_BUSY, columns=240, rows=60)
    found = []
    cockpit.read_until(b"kernel")
    for page in PAGES[:-1]:
        cockpit.press(page.key)
        cockpit.cost_of(_SETTLE_S)
        found.append((page.name, cockpit.cost_of(_VIEW_S)))
    cockpit.leave()
    return found


def slowest_ticks(columns: int = 240, rows: int = 60) -> list[Tick]:
    """Return the stretches of the event loop in a run through views, dialogs, loads and phases; the slowest first."""
    reported = Path("ticks").absolute()
    cockpit = _Cockpit([str(reported), *_BUSY], columns, rows, module="benchmarks.ticking")
    cockpit.read_until(b"stage 1 of")
    pressed: list[tuple[float, str]] = []
    for key in (
        *(page.key for page in PAGES),
        "1",
        "z",
        "z",
        "w",
        "t",
        "]",
        "[",
        " ",
        " ",
        ".",
        "?",
        "\x1b",
        "n",
        "\x1b",
    ):
        pressed.append((time.monotonic(), key))
        cockpit.press(key)
        cockpit.watch(_SETTLE_S)
    for _ in range(3):
        cockpit.press(".")
        cockpit.watch(_SETTLE_S)
    cockpit.leave()
    found = [Tick(*json.loads(line)) for line in reported.read_text().splitlines()]
    keys_of = {tick.began_s: [key for at_s, key in pressed if -0.1 < at_s - tick.began_s < 0.5] for tick in found}
    named = [replace(tick, about=[*tick.about, *map(repr, keys_of[tick.began_s])]) for tick in found]
    return sorted(named, key=lambda tick: -tick.cpu_ms)


@dataclass(frozen=True, slots=True)
class Tick:
    """What the event loop did between two waits."""

    began_s: float
    cpu_ms: float
    longest_turn_ms: float  # in which nothing else is handled, not even a key
    about: list[str]


@dataclass(frozen=True, slots=True)
class Quickness:
    """How long the operator waits."""

    first_line_ms: float
    first_frame_ms: float
    first_frame_cpu_ms: float
    key_to_screen_ms: list[float]
    key_to_load_ms: list[float]


def quickness(delay_s: float = 0.0) -> Quickness:
    """Measure how long keys that halve and double the load take to the screen, and to the streams held open."""
    began_s = time.monotonic()
    cockpit = _Cockpit(_BUSY, 160, 45)
    relay = _Relay(cockpit, delay_s)
    first_line_ms = relay.wait_for(b"opening", began_s)
    # What the header says, and not the alternate screen, which is empty for the first 100 ms.
    first_frame_ms = relay.wait_for(b"stage - of", began_s)
    first_frame_cpu_ms = cockpit.cpu_s() * 1000
    relay.wait_for(b"stage 1 of", began_s)
    (journal,) = Path("runs").glob("*/journal.jsonl")
    to_screen, to_load = [], []
    for n in range(10):
        relay.pump(3.0)
        key, wanted = ("[", _STREAMS // 2) if n % 2 == 0 else ("]", _STREAMS)
        at_s = time.monotonic()
        relay.press(key)
        to_screen.append(relay.wait_for(f"conc {wanted}".encode(), at_s))
        if wanted == _STREAMS:  # when the load is halved, streams end in their own time
            to_load.append(_until_held(journal, _STREAMS, at_s, relay))
    cockpit.leave()
    return Quickness(first_line_ms, first_frame_ms, first_frame_cpu_ms, to_screen, to_load)


def _until_held(journal: Path, streams: int, began_s: float, relay: _Relay) -> float:
    """Return the milliseconds until a tick of the workers, four a second, reports so many open streams."""
    at = journal.stat().st_size
    with journal.open("rb") as lines:
        lines.seek(at)
        reported = b""
        while not any(int(held) >= streams for held in re.findall(rb'"held":(\d+)', reported)):
            relay.pump(0.005)
            reported = (reported + lines.read())[-100_000:]
    return (time.monotonic() - began_s) * 1000


class _Relay:
    """Delays every byte between a cockpit and its reader, both ways, as a slow line does."""

    def __init__(self, cockpit: _Cockpit, delay_s: float) -> None:
        self._cockpit, self._delay_s = cockpit, delay_s
        self._out: deque[tuple[float, bytes]] = deque()
        self._in: deque[tuple[float, str]] = deque()
        self._shown = b""

    def press(self, keys: str) -> None:
        self._shown = b""
        self._in.append((time.monotonic() + self._delay_s, keys))

    def wait_for(self, words: bytes, began_s: float) -> float:
        """Return the milliseconds from `began_s` until the reader has these words."""
        while words not in self._shown:
            if time.monotonic() - began_s > _MAX_S:
                sys.exit(f"bench: never showed {words!r}")
            self.pump(0.001)
        return (time.monotonic() - began_s) * 1000

    def pump(self, span_s: float) -> None:
        until_s = time.monotonic() + span_s
        while True:
            now_s = time.monotonic()
            while self._in and self._in[0][0] <= now_s:
                self._cockpit.press(self._in.popleft()[1])
            while self._out and self._out[0][0] <= now_s:
                self._shown = (self._shown + self._out.popleft()[1])[-500_000:]
            if now_s >= until_s:
                return
            data = self._cockpit.read_now(0.001)
            if data:
                self._out.append((time.monotonic() + self._delay_s, data))


def tell_views() -> None:
    print(f"240 x 60, 8 GPUs, {_STREAMS} streams: the cockpit's own process")
    for name, cost in every_view():
        print(f"  {name:<10}{cost.cpu_share:>8.1%} of a core{cost.bytes_per_s / 1000:>8.0f} kB/s")


def tell_ticks() -> None:
    ticks = slowest_ticks()
    middle = sorted(tick.cpu_ms for tick in ticks if "snapshot" in tick.about)
    print(
        f"240 x 60, 8 GPUs, {_STREAMS} streams: CPU of a tick, median {statistics.median(middle):.1f} ms; the longest"
        f" turn of the loop {max(tick.longest_turn_ms for tick in ticks):.1f} ms; the slowest ticks, with their"
        " longest turns:"
    )
    for tick in ticks[:15]:
        print(f"  {tick.cpu_ms:>7.1f} ms  {tick.longest_turn_ms:>5.1f} ms  {', '.join(tick.about)}")


def tell_hand() -> None:
    for delay_s in (0.0, 0.075):
        found = quickness(delay_s)
        print(f"held back {delay_s * 1000:.0f} ms each way, {_STREAMS} streams")
        print(
            f"  first line after {found.first_line_ms:.0f} ms, first frame after {found.first_frame_ms:.0f} ms,"
            f" {found.first_frame_cpu_ms:.0f} ms of CPU"
        )
        for name, values in (("screen", found.key_to_screen_ms), ("load", found.key_to_load_ms)):
            middle, worst = statistics.median(values), max(values)
            print(f"  key to {name:<7} median {middle:.0f} ms, slowest {worst:.0f} ms of {len(values)}")
        shutil.rmtree("runs")


def tell_bytes() -> None:
    for columns, rows in ((80, 24), (160, 45), (240, 60)):
        cockpit = _Cockpit(_BUSY, columns, rows)
        cockpit.read_until(b"stage 1 of")
        cockpit.cost_of(_SETTLE_S)
        cost = cockpit.cost_of(_VIEW_S)
        print(f"{columns} x {rows}: {cost.bytes_per_s / 1000:.0f} kB/s, {cost.cpu_share:.1%} of a core")
        cockpit.leave()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    reported = {"views": tell_views, "ticks": tell_ticks, "hand": tell_hand, "bytes": tell_bytes}
    parser.add_argument("what", nargs="*", choices=reported, default=["views"])
    options = parser.parse_args()
    for what in options.what:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            reported[what]()
