"""`python -m benchmarks.soak`: hours of a live run, watched from outside, and what grew.

The cockpit runs in a pseudo-terminal on the simulator with eight simulated GPUs at 64 streams. Every half minute a key
changes the load, and every minute another view is opened. Every ten seconds the memory, the descriptors and the CPU of
each of its processes are read from /proc, and the size of its folder. The ticks themselves are read from the journal as
it is written: their intervals show whether the schedule drifts. `benchmarks.day` does the same for a simulated day, not
in real time.

The samples go to a file as they are taken (`--out`), so that a soak that was cut short can still be evaluated:
`--tell FILE`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import msgspec
import psutil

from benchmarks.curves import Curve, Panel, draw
from tests.tui.pseudo_terminal import Terminal, in_a_terminal
from tui.keys import PAGES

PROFILE = """
description = "64 streams, for hours"
telemetry = "sim"

[server]
engine = "simulator"
served_model_name = "simulated-70b"

[load]
isl = 512
osl = 128

[[stages]]
concurrency = 64
"""
VRAMP = Path(__file__).parents[1] / ".venv/bin/vramp"
LOOK_S = 10.0
CHANGE_S = 30.0
VIEW_S = 60.0  # so that every view has been shown before `SETTLED_S`
SETTLED_S = 1200.0
"""From this time on nothing may grow."""
GROWTH = 0.05
TICK_S = 0.25
_LOADS = ("-", "+", "[", "]")
"""The keys that change the load, in turn; after them it is back at 64 streams."""
_ROLES = (
    ("loadgen.worker", "worker"),
    ("loadgen.telemetry", "telemetry"),
    ("loadgen.simulator", "server"),
    ("guard", "guard"),
)


class Look(msgspec.Struct, frozen=True):
    """A sample; processes are named by their role, and numbered if there are several."""

    t_s: float
    rss_mb: dict[str, float]
    descriptors: dict[str, int]
    cpu_s: dict[str, float]
    folder_mb: float
    journal_mb: float
    written_bytes: int  # to the terminal so far
    ticks: int  # since the previous look
    tick_s: float  # the median interval between them
    longest_tick_s: float
    changes: int  # of the load so far


class Ticks:
    """Reads the times of the ticks from a journal that is being written, each time from where it stopped."""

    def __init__(self, folder: Path) -> None:
        self._journal = folder / "journal.jsonl"
        self._file = self._journal.open("rb")
        self._rest = b""
        self._last_s: float | None = None

    def distances_s(self) -> list[float]:
        """Return the intervals between the ticks since the last call."""
        has_new_part = self._journal.stat().st_ino != os.fstat(self._file.fileno()).st_ino
        reported = self._file.read()
        if has_new_part:  # what was left in the old one has just been read
            self._file.close()
            self._file = self._journal.open("rb")
            reported += self._file.read()
        whole, _, self._rest = (self._rest + reported).rpartition(b"\n")
        times_s = [msgspec.json.decode(line)["t_s"] for line in whole.splitlines() if b'"type":"Ticked"' in line]
        before_s = times_s[:1] if self._last_s is None else [self._last_s]
        self._last_s = times_s[-1] if times_s else self._last_s
        return [later - earlier for earlier, later in itertools.pairwise([*before_s, *times_s])]


def processes(pid: int) -> Iterator[tuple[str, psutil.Process]]:
    """Yield the cockpit and all processes that it started, each with a name that stays the same."""
    seen: dict[str, int] = {}
    leader = psutil.Process(pid)
    for process in (leader, *sorted(leader.children(recursive=True), key=lambda one: one.create_time())):
        with suppress(psutil.NoSuchProcess):
            words = " ".join(process.cmdline())
            role = "cockpit" if process.pid == pid else next((name for part, name in _ROLES if part in words), "other")
            seen[role] = seen.get(role, 0) + 1
            yield role if seen[role] == 1 else f"{role} {seen[role]}", process


def look(terminal: Terminal, folder: Path, ticks: Ticks, t_s: float, written_bytes: int, changes: int) -> Look:
    rss_mb, descriptors, cpu_s = {}, {}, {}
    for name, process in processes(terminal.pid):
        with suppress(psutil.NoSuchProcess):
            rss_mb[name] = round(process.memory_info().rss / 1e6, 2)
            descriptors[name] = process.num_fds()
            times = process.cpu_times()
            cpu_s[name] = round(times.user + times.system, 2)
    sizes = {path.name: path.stat().st_size / 1e6 for path in folder.iterdir()}
    distances_s = ticks.distances_s()
    return Look(
        t_s=round(t_s, 1),
        rss_mb=rss_mb,
        descriptors=descriptors,
        cpu_s=cpu_s,
        folder_mb=round(sum(sizes.values()), 3),
        journal_mb=round(sum(size for name, size in sizes.items() if name.startswith("journal")), 3),
        written_bytes=written_bytes,
        ticks=len(distances_s),
        tick_s=round(median(distances_s), 4) if distances_s else 0.0,
        longest_tick_s=round(max(distances_s, default=0.0), 3),
        changes=changes,
    )


def soak(hours: float, out: Path, change_s: float = CHANGE_S) -> None:
    """Run and watch the cockpit for some hours, and leave it with `q` `f`."""
    folder = Path.cwd()
    (folder / "soak.toml").write_text(PROFILE, encoding="utf-8")
    keys, pages = itertools.cycle(_LOADS), itertools.cycle(page.key for page in PAGES[:-1])
    with in_a_terminal([str(VRAMP), "soak.toml"], folder, {}, columns=240, rows=60) as terminal, out.open("wb") as file:
        terminal.read_until(b"kernel")
        run = next((folder / "runs").iterdir())
        ticks, began_s, changes, written = Ticks(run), time.monotonic(), 0, 0
        due_s = {"look": 0.0, "change": change_s, "view": VIEW_S}
        while (now_s := time.monotonic() - began_s) < hours * 3600:
            terminal.seen = b""
            terminal.read_for(min(due_s.values()) - now_s)
            written += len(terminal.seen)
            now_s = time.monotonic() - began_s
            if now_s >= due_s["change"]:
                terminal.press(next(keys).encode())
                changes += 1
                due_s["change"] += change_s
            if now_s >= due_s["view"]:
                terminal.press(next(pages).encode())
                due_s["view"] += VIEW_S
            if now_s >= due_s["look"]:
                file.write(msgspec.json.encode(look(terminal, run, ticks, now_s, written, changes)) + b"\n")
                file.flush()
                due_s["look"] += LOOK_S
        terminal.press(b"q")
        terminal.read_until(b"finish and keep")
        terminal.press(b"f")
        terminal.read_rest()
        print(f"the cockpit left with {terminal.wait()}")
        print("left in its folder: " + ", ".join(_sizes(run)))


def _sizes(folder: Path) -> list[str]:
    return [f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in sorted(folder.iterdir())]


def tell(looks: Sequence[Look], picture: Path | None) -> None:
    """Print a row for every twenty minutes, then what grew after the first of them."""
    print("   until  cockpit CPU  ms a tick  kB/s shown  journal MB  ticks: count, interval in s, the longest")
    for before, after in itertools.pairwise(list(_every(looks, SETTLED_S))):
        span_s = after.t_s - before.t_s
        cpu = (after.cpu_s["cockpit"] - before.cpu_s["cockpit"]) / span_s
        part = [each for each in looks if before.t_s < each.t_s <= after.t_s]
        print(
            f"{after.t_s / 60:>4.0f} min  {cpu:>11.1%}  {cpu * TICK_S * 1000:>9.1f}  "
            f"{(after.written_bytes - before.written_bytes) / span_s / 1000:>10.1f}  {after.journal_mb:>10.1f}  "
            f"{sum(each.ticks for each in part)}, {median(each.tick_s for each in part):.4f}, "
            f"{max(each.longest_tick_s for each in part):.2f}"
        )
    settled = [each for each in looks if each.t_s >= SETTLED_S]
    if len(settled) < 2:
        return
    for name in settled[0].rss_mb:
        known = [each for each in settled if name in each.rss_mb]
        first, last = (median(each.rss_mb[name] for each in part) for part in (known[:12], known[-12:]))
        handles = sorted({each.descriptors[name] for each in known})
        verdict = "flat" if last <= first * (1 + GROWTH) else "GROWS"
        print(
            f"{name:<12} {first:>7.1f} -> {last:>7.1f} MB  {last / first - 1:>+7.1%}  {verdict}  "
            f"descriptors {handles[0]} to {handles[-1]}"
        )
    ticked = sum(each.ticks for each in looks[1:])
    drift_s = looks[-1].t_s - looks[0].t_s - ticked * TICK_S
    print(
        f"{ticked} ticks in {looks[-1].t_s - looks[0].t_s:.0f} s: {drift_s:+.2f} s from one each {TICK_S} s; "
        f"{looks[-1].changes} changes of the load"
    )
    if picture is not None:
        picture.write_text(draw(_panels(looks)), encoding="utf-8")


def _every(looks: Iterable[Look], span_s: float) -> Iterator[Look]:
    """Yield the first, and then one per `span_s`."""
    due_s = 0.0
    for each in looks:
        if each.t_s >= due_s:
            yield each
            due_s = (each.t_s // span_s + 1) * span_s


def _panels(looks: Sequence[Look]) -> list[Panel]:
    names = dict.fromkeys(name for each in looks for name in each.rss_mb)
    minutes = [each.t_s / 60 for each in looks]
    steps = list(itertools.pairwise(looks))
    cpu_ms = [(b.cpu_s["cockpit"] - a.cpu_s["cockpit"]) / (b.t_s - a.t_s) * TICK_S * 1000 for a, b in steps]
    return [
        Panel("Resident memory, MB", [Curve(one, minutes, [each.rss_mb.get(one) for each in looks]) for one in names]),
        Panel("Descriptors", [Curve(one, minutes, [each.descriptors.get(one) for each in looks]) for one in names]),
        Panel("Cockpit, ms of CPU a tick", [Curve("cockpit", minutes[1:], list(cpu_ms))]),
        Panel("Interval of ticks, s", [
            Curve("median", minutes, [each.tick_s or None for each in looks]),
            Curve("longest", minutes, [each.longest_tick_s or None for each in looks]),
        ]),
        Panel("Journal, MB", [Curve("journal", minutes, [each.journal_mb for each in looks])]),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--change-s", type=float, default=CHANGE_S, help="between two changes of the load")
    parser.add_argument("--out", type=Path, default=Path("soak.jsonl"), help="where the samples go")
    parser.add_argument("--picture", type=Path, help="draw them, as SVG")
    parser.add_argument("--tell", type=Path, metavar="FILE", help="evaluate samples taken earlier; runs nothing")
    options = parser.parse_args()
    out, picture = options.out.absolute(), options.picture.absolute() if options.picture else None
    if options.tell is None:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            soak(options.hours, out, options.change_s)
    looks = [msgspec.json.decode(line, type=Look) for line in (options.tell or out).read_bytes().splitlines()]
    tell(looks, picture)


if __name__ == "__main__":
    main()
