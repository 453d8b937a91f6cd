"""`python -m benchmarks.screen`: what the cockpit costs, and how fast it responds, with a thousand streams.

The cockpit runs in a pseudo-terminal, because without one Textual skips the most expensive part: writing. Its process
also merges the workers' ticks, four times a second, as it does for every user. `hand` measures the time to the first
line and the first frame, and from a key to the screen and to the load, also through a relay that delays every byte by
75 ms each way; `bytes` what it writes at three sizes, and its CPU; `load` the TTFT of a load with the cockpit open and
without.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.running import attach, cpu_s, finish, scratch, simulator
from loadgen.store.runs import read_result
from tests.tui.pseudo_terminal import Terminal, in_a_terminal

MAX_S = 120.0
SETTLE_S, WATCH_S = 2.0, 8.0
STREAMS = 1024
BUSY = ["simulator", "--concurrency", f"{STREAMS},{STREAMS // 2}", "--duration", "10m", "--osl", "64"]
BUSY += ["--telemetry", "sim"]


@contextmanager
def cockpit(columns: int, rows: int, arguments: list[str] = BUSY) -> Iterator[Terminal]:
    """Open a cockpit, and at the end leave it; both keys at once would fall into one tick."""
    with in_a_terminal([sys.executable, "-m", "tui.cli", *arguments], Path.cwd(), {}, columns, rows) as terminal:
        yield terminal
        with suppress(OSError):  # once its plan is done, `q` ends it
            for key in (b"q", b"f"):
                terminal.press(key)
                terminal.read_for(1.0)
        terminal.read_rest()
        terminal.wait()


# The hand.


class Relay:
    """Delays every byte between a terminal and its reader, both ways, as a slow line does."""

    def __init__(self, terminal: Terminal, delay_s: float) -> None:
        self._terminal, self._delay_s = terminal, delay_s
        self._due: deque[tuple[float, Callable[[], None]]] = deque()
        self._shown = b""

    def _show(self, data: bytes) -> None:
        self._shown = (self._shown + data)[-500_000:]

    def press(self, key: bytes) -> None:
        self._shown = b""
        self._due.append((time.monotonic() + self._delay_s, partial(self._terminal.press, key)))

    def wait_for(self, words: bytes, began_s: float) -> float:
        """Return the milliseconds from `began_s` until the reader has these words."""
        while words not in self._shown:
            if time.monotonic() - began_s > MAX_S:
                sys.exit(f"bench: never showed {words!r}")
            self.pump(0.001)
        return (time.monotonic() - began_s) * 1000

    def pump(self, span_s: float) -> None:
        until_s = time.monotonic() + span_s
        while (now_s := time.monotonic()) < until_s:
            while self._due and self._due[0][0] <= now_s:
                self._due.popleft()[1]()
            self._terminal.seen = b""
            self._terminal.read_for(0.001)
            if self._terminal.seen:
                self._due.append((time.monotonic() + self._delay_s, partial(self._show, self._terminal.seen)))


def hand() -> None:
    for delay_s in (0.0, 0.075):
        with scratch():
            _hand(delay_s)


def _hand(delay_s: float) -> None:
    """Measure how long keys that halve and double the load take to the screen, and to the streams held open."""
    began_s = time.monotonic()
    with cockpit(160, 45) as terminal:
        relay = Relay(terminal, delay_s)
        line_ms = relay.wait_for(b"opening", began_s)
        # What the header says, and not the alternate screen, which is empty for the first 100 ms.
        frame_ms = relay.wait_for(b"stage - of", began_s)
        cpu_ms = cpu_s(psutil.Process(terminal.pid)) * 1000
        relay.wait_for(b"stage 1 of", began_s)
        (journal,) = Path("runs").glob("*/journal.jsonl")
        to_screen, to_load = [], []
        for n in range(10):
            relay.pump(3.0)
            key, wanted = (b"[", STREAMS // 2) if n % 2 == 0 else (b"]", STREAMS)
            at_s = time.monotonic()
            relay.press(key)
            to_screen.append(relay.wait_for(b"conc %d" % wanted, at_s))
            if wanted == STREAMS:  # when the load is halved, streams end in their own time
                to_load.append(_until_held(journal, at_s, relay))
    print(f"{delay_s * 1000:.0f} ms each way: first line after {line_ms:.0f} ms, first frame after {frame_ms:.0f} ms,")
    print(f"  {cpu_ms:.0f} ms of CPU")
    for name, values in (("screen", to_screen), ("load", to_load)):
        print(f"  key to {name}: median {statistics.median(values):.0f} ms, slowest {max(values):.0f} ms")


def _until_held(journal: Path, began_s: float, relay: Relay) -> float:
    """Return the milliseconds until a tick of the workers, four a second, reports all streams as open."""
    with journal.open("rb") as lines:
        lines.seek(0, 2)
        reported = b""
        while not any(int(held) >= STREAMS for held in re.findall(rb'"held":(\d+)', reported)):
            relay.pump(0.005)
            reported = (reported + lines.read())[-100_000:]
    return (time.monotonic() - began_s) * 1000


# What it writes, and what it does to a load.


class Cost(NamedTuple):
    """What the cockpit's own process used."""

    cpu_share: float
    bytes_per_s: float

    def __str__(self) -> str:
        return f"{self.cpu_share:.1%} of a core, {self.bytes_per_s / 1000:.0f} kB/s to the terminal"


def cost_of(terminal: Terminal, span_s: float) -> Cost:
    process, began_s = psutil.Process(terminal.pid), time.monotonic()
    used_s, terminal.seen = cpu_s(process), b""
    terminal.read_for(span_s)
    took_s = time.monotonic() - began_s
    return Cost((cpu_s(process) - used_s) / took_s, len(terminal.seen) / took_s)


def written() -> None:
    for columns, rows in ((80, 24), (160, 45), (240, 60)):
        with cockpit(columns, rows) as terminal:
            terminal.read_until(b"stage 1 of")
            terminal.read_for(SETTLE_S)
            print(f"{columns} x {rows}: {cost_of(terminal, WATCH_S)}")


def under_load() -> None:
    asyncio.run(_under_load(256))


async def _under_load(streams: int) -> None:
    """Compare a load with the cockpit open with the same load headless."""
    load = {"concurrency": streams, "requests": 8 * streams, "isl": 128, "osl": 128, "workers": 1, "seed": 1}
    async with simulator(10) as url:
        headless = await finish(attach(url, load))
    async with simulator(10) as url:
        words = ["--url", url, *(word for name, value in load.items() for word in (f"--{name}", str(value)))]
        cost = await asyncio.to_thread(_watched, [*words, "--json", "open.json"])
    p99s = [result.stages[0].latency_ms["ttft"].p99 or 0.0 for result in (headless, read_result(Path("open.json")))]
    print(f"{streams} streams: TTFT p99 {p99s[0]:.2f} ms headless, {p99s[1]:.2f} ms with the cockpit open; {cost}")


def _watched(arguments: list[str]) -> Cost:
    with cockpit(240, 60, arguments) as terminal:
        terminal.read_until(b"stage 1 of")
        cost = cost_of(terminal, WATCH_S / 2)
        terminal.read_until(b"plan is done")
        return cost


if __name__ == "__main__":
    parts = {"hand": hand, "bytes": written, "load": under_load}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=parts)
    for what in parser.parse_args().what:
        with scratch():
            parts[what]()
