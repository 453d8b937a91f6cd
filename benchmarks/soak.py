"""`python -m benchmarks.soak`: hours of a run, what they cost in memory, disk and CPU, and what grew.

The cockpit runs in a pseudo-terminal on the simulator with eight simulated GPUs at 64 streams. Every half minute a key
changes the load, and every minute another view is opened. Every ten seconds the memory, the descriptors and the CPU of
each of its processes are read from /proc, and the size of its journal. The ticks themselves are read from the journal
as it is written: their intervals show whether the schedule drifts. The samples go to `--out` as they are taken, so that
a soak that was cut short can still be evaluated: `--tell FILE`.

`--simulated` puts the lines of such a run with 1,024 streams, a new stage every `--stage-s`, through everything that
keeps state, as fast as they can be folded: journal, histograms, record, and what the cockpit keeps of each snapshot. A
day takes half an hour.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.running import ROOT, Table, cpu_s, read_options, scratch
from loadgen.metrics.histogram import Histogram
from loadgen.profile.document import load_profile
from loadgen.record.record import Record
from loadgen.report.tabular import Column
from loadgen.run.settings import RunSettings
from loadgen.run.view import ShownStages, snapshot_of
from loadgen.run.writer import RunWriter
from loadgen.schema.deltas import ClientDelta, EncodedHistogram, StageDelta
from loadgen.schema.engine import EngineView
from loadgen.schema.journal import (
    GpusSampled,
    Happened,
    HostSampled,
    Line,
    StageEnded,
    StageStarted,
    TelemetryChanged,
    Ticked,
)
from loadgen.schema.samples import HostSample
from loadgen.schema.snapshot import LoadView, ServerView
from loadgen.telemetry.sim import SimLoad, SimState, observed, open_sim, step
from tests.tui.pseudo_terminal import Terminal, in_a_terminal
from tui.charts.timeline import Timeline
from tui.keys import PAGES
from tui.screens.log import LogBook

TICK_S = 0.25

# Live.

BUSY = ["simulator", "--concurrency", "64", "--duration", "1000h", "--isl", "512", "--osl", "128", "--telemetry", "sim"]
LOOK_S, CHANGE_S, VIEW_S = 10.0, 30.0, 60.0
SETTLED_S = 1200.0
"""Every view has been shown by then, and nothing may grow any more."""
GROWTH = 0.05
_LOADS = ("-", "+", "[", "]")
"""The keys that change the load, in turn; after them it is back at 64 streams."""
_ROLES = {"loadgen.worker": "worker", "loadgen.telemetry": "telemetry", "loadgen.simulator": "server", "guard": "guard"}


class Look(msgspec.Struct, frozen=True):
    """A sample; processes are named by their role, and numbered if there are several."""

    t_s: float
    rss_mb: dict[str, float]
    descriptors: dict[str, int]
    cpu_s: dict[str, float]
    journal_mb: float
    written_bytes: int  # to the terminal so far
    tick_intervals_s: list[float]  # since the previous look
    changes: int  # of the load so far


class Ticks:
    """Reads the times of the ticks from a journal that is being written, each time from where it stopped."""

    def __init__(self, folder: Path) -> None:
        self._journal = folder / "journal.jsonl"
        self._file = self._journal.open("rb")
        self._rest = b""
        self._times_s: list[float] = []

    def intervals_s(self) -> list[float]:
        """Return the intervals between the ticks since the last call."""
        has_new_part = self._journal.stat().st_ino != os.fstat(self._file.fileno()).st_ino
        reported = self._file.read()
        if has_new_part:  # what was left in the old one has just been read
            self._file.close()
            self._file = self._journal.open("rb")
            reported += self._file.read()
        whole, _, self._rest = (self._rest + reported).rpartition(b"\n")
        ticks = (line for line in whole.splitlines() if b'"type":"Ticked"' in line)
        self._times_s = [*self._times_s[-1:], *(msgspec.json.decode(line)["t_s"] for line in ticks)]
        return [round(later - earlier, 4) for earlier, later in itertools.pairwise(self._times_s)]


def processes(pid: int) -> Iterator[tuple[str, psutil.Process]]:
    """Yield the cockpit and all processes that it started, each with a name that stays the same."""
    seen: dict[str, int] = {}
    leader = psutil.Process(pid)
    for process in (leader, *sorted(leader.children(recursive=True), key=lambda one: one.create_time())):
        with suppress(psutil.NoSuchProcess):
            words = " ".join(process.cmdline())
            role = "cockpit" if process == leader else next((_ROLES[part] for part in _ROLES if part in words), "other")
            seen[role] = seen.get(role, 0) + 1
            yield role if seen[role] == 1 else f"{role} {seen[role]}", process


def look(terminal: Terminal, folder: Path, ticks: Ticks, t_s: float, written_bytes: int, changes: int) -> Look:
    rss_mb, descriptors, used_s = {}, {}, {}
    for name, process in processes(terminal.pid):
        with suppress(psutil.NoSuchProcess):
            used_s[name] = cpu_s(process)
            rss_mb[name] = process.memory_info().rss / 1e6
            descriptors[name] = process.num_fds()
    journal_mb = sum(path.stat().st_size for path in folder.glob("journal*")) / 1e6
    return Look(t_s, rss_mb, descriptors, used_s, journal_mb, written_bytes, ticks.intervals_s(), changes)


def live(hours: float, out: Path) -> None:
    """Run and watch the cockpit for some hours, and leave it with `q` `f`."""
    folder, keys, pages = Path.cwd(), itertools.cycle(_LOADS), itertools.cycle(page.key for page in PAGES[:-1])
    command = [sys.executable, "-m", "tui.cli", *BUSY]
    with in_a_terminal(command, folder, {}, columns=240, rows=60) as terminal, out.open("wb") as file:
        terminal.read_until(b"kernel")
        (run,) = (folder / "runs").iterdir()
        ticks, began_s, changes, written = Ticks(run), time.monotonic(), 0, 0
        due_s = {"look": 0.0, "change": CHANGE_S, "view": VIEW_S}
        while (now_s := time.monotonic() - began_s) < hours * 3600:
            terminal.seen = b""
            terminal.read_for(min(due_s.values()) - now_s)
            written += len(terminal.seen)
            now_s = time.monotonic() - began_s
            if now_s >= due_s["change"]:
                terminal.press(next(keys).encode())
                changes += 1
                due_s["change"] += CHANGE_S
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
        print(f"the cockpit left with {terminal.wait()}; {sizes(run)}")


def sizes(folder: Path) -> str:
    return ", ".join(f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in sorted(folder.iterdir()))


class Part(NamedTuple):
    """What happened between two looks."""

    looks: Sequence[Look]

    def rate(self, before: float, after: float) -> float:
        return (after - before) / (self.looks[-1].t_s - self.looks[0].t_s)

    @property
    def cockpit_cpu(self) -> float:
        return self.rate(self.looks[0].cpu_s["cockpit"], self.looks[-1].cpu_s["cockpit"])

    @property
    def intervals_s(self) -> list[float]:
        return [each for one in self.looks[1:] for each in one.tick_intervals_s]


PARTS = (
    Column[Part]("until, min", lambda part: part.looks[-1].t_s / 60, decimals=0),
    Column[Part]("cockpit CPU", lambda part: f"{part.cockpit_cpu:.1%}"),
    Column[Part]("ms a tick", lambda part: part.cockpit_cpu * TICK_S * 1000, decimals=1),
    Column[Part](
        "kB/s shown", lambda part: part.rate(part.looks[0].written_bytes, part.looks[-1].written_bytes) / 1000
    ),
    Column[Part]("journal, MB", lambda part: part.looks[-1].journal_mb, decimals=1),
    Column[Part]("ticks", lambda part: len(part.intervals_s)),
    Column[Part]("median interval, s", lambda part: median(part.intervals_s), decimals=4),
    Column[Part]("longest", lambda part: max(part.intervals_s)),
)


class Grown(NamedTuple):
    """A process over the looks at which it lived, once everything had been shown."""

    name: str
    looks: Sequence[Look]

    def rss_mb(self, looks: slice) -> float:
        return median(each.rss_mb[self.name] for each in self.looks[looks])

    @property
    def share(self) -> float:
        return self.rss_mb(slice(-12, None)) / self.rss_mb(slice(12)) - 1

    @property
    def descriptors(self) -> str:
        counts = [each.descriptors[self.name] for each in self.looks]
        return f"{min(counts)} to {max(counts)}"


GROWN = (
    Column[Grown]("process", lambda grown: grown.name, words=True, width=12),
    Column[Grown]("first, MB", lambda grown: grown.rss_mb(slice(12)), decimals=1),
    Column[Grown]("last, MB", lambda grown: grown.rss_mb(slice(-12, None)), decimals=1),
    Column[Grown]("growth", lambda grown: f"{grown.share:+.1%}"),
    Column[Grown]("verdict", lambda grown: "flat" if grown.share <= GROWTH else "GROWS"),
    Column[Grown]("descriptors", lambda grown: grown.descriptors),
)


def tell(looks: Sequence[Look]) -> None:
    """Print a row for every twenty minutes, then what grew after the first of them."""
    table, grown = Table(PARTS), Table(GROWN)
    bounds = [*range(0, len(looks) - 1, round(SETTLED_S / LOOK_S)), len(looks) - 1]
    for first, last in itertools.pairwise(bounds):
        table.add(Part(looks[first : last + 1]))
    settled = [each for each in looks if each.t_s >= SETTLED_S]
    for name in settled[0].rss_mb if settled else ():
        grown.add(Grown(name, [each for each in settled if name in each.rss_mb]))
    whole, span_s = Part(looks), looks[-1].t_s - looks[0].t_s
    drift_s = span_s - len(whole.intervals_s) * TICK_S
    print(f"{drift_s:+.2f} s from a tick each {TICK_S} s in {span_s:.0f} s; {looks[-1].changes} changes of the load")


# Simulated.

STREAMS, GPUS, STAGE_S = 1024, 8, 900.0
_KINDS = 64
"""How many different ticks there are, which are used in turn."""
_NOTE_EVERY_S, _ERROR_EVERY_S, _SNAPSHOT_TICKS = 60.0, 30.0, 20
_ENGINE = EngineView(running=900.0, waiting=124.0, kv_usage=0.93, preemptions=0.0, generation_tokens_per_s=40_000.0)
_LOAD = SimLoad(True, 900.0, 50_000.0, 40_000.0)
_MEDIANS_MS = {"ttft": 800.0, "ttft_from_intended": 850.0, "tpot": 25.0, "e2e": 26_000.0, "normalized": 5.0}


def _encoded(values_ms: NDArray[np.float64]) -> EncodedHistogram:
    latency = Histogram()
    latency.record_ns((values_ms * 1e6).astype(np.int64).tolist())
    return latency.encode()


def _delta(random: np.random.Generator) -> StageDelta:
    """Return a quarter of a second of 1,024 streams that last twenty seconds each."""
    latency = {name: _encoded(random.lognormal(np.log(ms), 0.4, 13)) for name, ms in _MEDIANS_MS.items()}
    # The engine makes ten steps in a tick; the streams get their tokens together and are read one after the other.
    gaps_ms = random.normal(25.0, 1.5, 10) + random.normal(0.0, 0.2, (STREAMS, 10))
    tokens: dict[str, Any] = dict.fromkeys(("input_tokens", "window_input_tokens"), 13 * 4096)
    tokens |= dict.fromkeys(("output_tokens", "window_output_tokens"), 13 * 1024)
    counts: dict[str, Any] = dict.fromkeys(("sent", "completed", "window_requests"), 13) | {"good": 12, "peak": STREAMS}
    area_ns = int(STREAMS * TICK_S * 1e9)
    return StageDelta(held_area_ns=area_ns, latency=latency | {"itl": _encoded(gaps_ms.ravel())}, **counts, **tokens)


def lines(hours: float, stage_s: float = STAGE_S) -> Iterator[Line]:
    """Yield the lines of so many hours; the GPUs are sampled once a second."""
    random = np.random.default_rng(1)
    deltas = [_delta(random) for _ in range(_KINDS)]
    lag = _encoded(random.lognormal(np.log(0.1), 0.4, 2500))
    boxes = [(index, SimState()) for index in range(GPUS)]
    yield TelemetryChanged(0.0, open_sim(gpus=GPUS).opened.gpus, {})
    stage = -1
    for tick in range(round(hours * 3600 / TICK_S)):
        t_s = tick * TICK_S
        if t_s // stage_s > stage:
            yield from _next_stage(stage, t_s, stage_s)
            stage += 1
        if tick % 4 == 0:
            boxes = [(gpu, step(gpu, state, _LOAD, 1.0)) for gpu, state in boxes]
            yield GpusSampled(t_s, tuple(observed(gpu, state, _LOAD, t_s) for gpu, state in boxes))
            yield HostSampled(t_s, HostSample(t_s, 96, 10**11, 10**12, 20.0, 30.0 + tick % 7, 80.0))
        if t_s % _NOTE_EVERY_S == 0:
            yield Happened(t_s, "note" if t_s % 600 == 0 else "server", f"a remark after {t_s:.0f} s")
        yield _tick(deltas[tick % _KINDS], lag, tick, stage, int(stage * stage_s * 1e9))


def _next_stage(stage: int, t_s: float, stage_s: float) -> Iterator[Line]:
    if stage >= 0:
        yield StageEnded(t_s, stage, "its time was up")
    yield StageStarted(
        t_s=t_s,
        index=stage + 1,
        label=f"stage {stage + 2}",
        concurrency=STREAMS,
        rate=None,
        arrival="closed",
        isl=4096,
        osl=1024,
        duration_s=stage_s,
    )


def _tick(delta: StageDelta, lag: EncodedHistogram, tick: int, stage: int, window_start_ns: int) -> Ticked:
    t_s = tick * TICK_S
    window: dict[str, Any] = {"window_start_ns": window_start_ns, "window_end_ns": int((t_s + TICK_S) * 1e9)}
    if t_s % _ERROR_EVERY_S == 0:
        said = [f"503: request {tick} was turned away"]
        window |= {"failed": 1, "errors": {"http_5xx": 1}, "messages": {"http_5xx": said}}
    return Ticked(
        t_s=t_s,
        span_s=TICK_S,
        stages={stage: msgspec.structs.replace(delta, **window)},
        client=ClientDelta(cpu_ns=90_000_000, reads=2500, read_lag=lag),
        held=STREAMS,
        open_stages={stage: STREAMS},
        workers=2,
        rss_bytes=200_000_000,
        engine=_ENGINE,
    )


@dataclass
class Onlooker:
    """Makes snapshots of a record, and keeps what the cockpit keeps of them."""

    views: ShownStages = field(default_factory=ShownStages)
    timeline: Timeline = field(default_factory=Timeline)
    book: LogBook = field(default_factory=LogBook)
    seen: int = 0

    def look(self, record: Record, t_s: float) -> None:
        self.seen += 1
        numbers = range(self.seen, self.seen + 40)
        tail = tuple(f"INFO engine.py:{n} Running: 900 reqs, Waiting: 124 reqs" for n in numbers)
        server = ServerView("simulator", "http://127.0.0.1", "ready", log_tail=tail, log_total=self.seen + 40)
        started = record.current.started if record.current is not None else None
        load = LoadView(
            stage=started.index + 1 if started else 0,
            stages_planned=96,
            concurrency=STREAMS,
            rate=None,
            held=STREAMS,
            queued=0,
            isl=4096,
            osl=1024,
            stage_elapsed_s=t_s - started.t_s if started else 0.0,
        )
        words: dict[str, Any] = {"phase": "running", "profile": "soak", "workers": 2, "telemetry": ""}
        self.timeline.add(snapshot_of(record, self.views, t_s=t_s, unix_s=t_s, server=server, load=load, **words))
        self.book.add(server)


class Cost(NamedTuple):
    """What a part of the simulated run cost."""

    t_s: float
    rss_mb: float
    stages: int
    tick_ms: float
    snapshots_ms: Sequence[float]


COSTS = (
    Column[Cost]("until, min", lambda cost: cost.t_s / 60, decimals=0),
    Column[Cost]("resident, MB", lambda cost: cost.rss_mb, decimals=0),
    Column[Cost]("stages", lambda cost: cost.stages),
    Column[Cost]("lines of a tick, ms", lambda cost: cost.tick_ms),
    Column[Cost]("snapshot, ms", lambda cost: median(cost.snapshots_ms), decimals=1),
    Column[Cost]("slowest", lambda cost: max(cost.snapshots_ms), decimals=1),
)


def simulated(hours: float, stage_s: float) -> None:
    """Fold the lines of some hours, and print what each sixth of them cost."""
    profile = load_profile(ROOT / "profiles/simulator.toml")
    writer, onlooker, table = RunWriter(RunSettings(profile, where="soak")), Onlooker(), Table(COSTS)
    writer.began_s = 0.0
    writer.begin(seed=1, workers=2, stages_planned=96)
    part = round(hours * 3600 / TICK_S / 6)
    ticks, folded_s, snapshots_ms = 0, 0.0, list[float]()
    for line in lines(hours, stage_s):
        began_s = time.thread_time()
        writer.log(line)
        folded_s += time.thread_time() - began_s
        if not isinstance(line, Ticked):
            continue
        ticks += 1
        if ticks % _SNAPSHOT_TICKS == 0:
            began_s = time.thread_time()
            onlooker.look(writer.record, line.t_s)
            snapshots_ms.append(1000 * (time.thread_time() - began_s))
        if ticks % part == 0:
            rss_mb = psutil.Process().memory_info().rss / 1e6
            table.add(Cost(line.t_s, rss_mb, len(writer.record.stages), 1000 * folded_s / part, snapshots_ms))
            folded_s, snapshots_ms = 0.0, []
    began_s = time.thread_time()
    asyncio.run(writer.finish("complete", "the day is over"))
    print(f"the result takes {time.thread_time() - began_s:.2f} s; {sizes(writer.folder)}")


def main() -> None:
    options = read_options(__doc__, hours=2.0, out="soak.jsonl", tell="", simulated=False, stage_s=STAGE_S)
    out = Path(options.tell or options.out).absolute()
    with scratch():
        if options.simulated:
            simulated(options.hours, options.stage_s)
            return
        if not options.tell:
            live(options.hours, out)
    tell([msgspec.json.decode(line, type=Look) for line in out.read_bytes().splitlines()])


if __name__ == "__main__":
    main()
