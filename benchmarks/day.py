"""`python -m benchmarks.day`: a simulated day of a run through everything that keeps state, with its memory and CPU.

Synthetic lines go where a run's lines go (journal, histograms, record), as fast as they can be folded; every so often a
snapshot is made of them and given to what the cockpit keeps: time axis, marks, log. What grows with the run shows in
the resident memory after each quarter. Not part of `make bench`: a day takes half an hour; `--hours 2` shows most of
it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
from numpy.typing import NDArray

from loadgen.metrics.histogram import Histogram
from loadgen.profile.document import load_profile
from loadgen.record.record import Record
from loadgen.run.stage_views import StageViews
from loadgen.run.view import snapshot_of
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
from loadgen.schema.samples import GpuSample, HostSample
from loadgen.schema.snapshot import LoadView, ServerView, Snapshot
from loadgen.telemetry.sim import SimGpu, SimLoad, SimState, observed, open_sim, step
from tui.charts.timeline import Timeline
from tui.screens.log import LogBook

PROFILE = Path(__file__).parents[1] / "profiles/simulator.toml"
TICK_S = 0.25
STAGES_A_DAY = 96
STAGE_S = 86_400 / STAGES_A_DAY
STREAMS = 1024
GPUS = 8
_KINDS = 64
"""How many different ticks there are, which are used in turn."""
_SENSORS = (
    *("power_w", "temperature_hotspot_c", "temperature_memory_c", "gfx_clock_mhz", "sm_percent", "dram_percent"),
    *("gfx_percent", "memory_percent", "pcie_bytes_per_s"),
)
_NOTE_EVERY_S, _ERROR_EVERY_S = 60.0, 30.0
_ENGINE = EngineView(running=900.0, waiting=124.0, kv_usage=0.93, preemptions=0.0, generation_tokens_per_s=40_000.0)
_MEDIANS_MS = {"ttft": 800.0, "ttft_from_intended": 850.0, "tpot": 25.0, "e2e": 26_000.0, "normalized": 5.0}
_STEPS, _STEP_MS, _STEP_SPREAD_MS, _READ_SPREAD_MS = 10, 25.0, 1.5, 0.2
"""The engine's steps in a tick; the streams of a batch get their tokens together and are read one after the other."""


class Day:
    """Makes the lines of a day."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(1)
        self._deltas = [self._delta() for _ in range(_KINDS)]
        self._client = ClientDelta(cpu_ns=90_000_000, reads=2500, read_lag=self._latency(0.1, 2500))
        self._boxes = [(SimGpu(index, throttled=index == 5), SimState()) for index in range(GPUS)]

    def _latency(self, median_ms: float, count: int) -> EncodedHistogram:
        return _encoded(self._random.lognormal(np.log(median_ms), 0.4, count))

    def _gaps(self) -> EncodedHistogram:
        steps_ms = self._random.normal(_STEP_MS, _STEP_SPREAD_MS, _STEPS)
        reads_ms = self._random.normal(0.0, _READ_SPREAD_MS, (STREAMS, _STEPS))
        return _encoded((steps_ms + reads_ms).ravel())

    def _delta(self) -> StageDelta:
        """Return a quarter of a second of 1,024 streams that last twenty seconds each."""
        latency = {name: self._latency(median_ms, 13) for name, median_ms in _MEDIANS_MS.items()}
        return StageDelta(
            sent=13,
            completed=13,
            good=12,
            input_tokens=13 * 4096,
            output_tokens=13 * 1024,
            window_requests=13,
            window_input_tokens=13 * 4096,
            window_output_tokens=13 * 1024,
            held_area_ns=int(STREAMS * TICK_S * 1e9),
            peak=STREAMS,
            latency=latency | {"itl": self._gaps()},
        )

    def lines(self, hours: float) -> Iterator[Line]:
        """Yield the lines of so many hours; the GPUs are sampled once a second."""
        yield TelemetryChanged(0.0, open_sim(gpus=GPUS).opened.gpus, {})
        stage = -1
        for tick in range(round(hours * 3600 / TICK_S)):
            t_s = tick * TICK_S
            if t_s // STAGE_S > stage:
                yield from self._next_stage(stage, t_s)
                stage += 1
            if tick % 4 == 0:
                yield self._look(t_s)
                yield HostSampled(t_s, HostSample(t_s, 96, 10**11, 10**12, 20.0, 30.0 + tick % 7, 80.0))
            if t_s % _NOTE_EVERY_S == 0:
                yield Happened(t_s, "note" if t_s % 600 == 0 else "server", f"a remark after {t_s:.0f} s")
            yield self._tick(tick, stage, t_s)

    def _next_stage(self, stage: int, t_s: float) -> Iterator[Line]:
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
            duration_s=STAGE_S,
        )

    def _look(self, t_s: float) -> GpusSampled:
        load = SimLoad(True, 900.0, 50_000.0, 40_000.0)
        self._boxes = [(gpu, step(gpu, state, load, 1.0)) for gpu, state in self._boxes]
        return GpusSampled(t_s, tuple(self._noisy(observed(gpu, state, load, t_s)) for gpu, state in self._boxes))

    def _noisy(self, sample: GpuSample) -> GpuSample:
        """Add noise as of real sensors, which is what makes their lines large in a compressed file."""
        values = {name: getattr(sample, name) for name in _SENSORS}
        return msgspec.structs.replace(
            sample,
            **{
                name: round(value * self._random.normal(1.0, 0.01), 1)
                for name, value in values.items()
                if value is not None
            },
        )

    def _tick(self, tick: int, stage: int, t_s: float) -> Ticked:
        delta = self._deltas[tick % _KINDS]
        window: dict[str, Any] = {
            "window_start_ns": int(stage * STAGE_S * 1e9),
            "window_end_ns": int((t_s + TICK_S) * 1e9),
        }
        if t_s % _ERROR_EVERY_S == 0:
            said = [f"503: request {tick} was turned away"]
            window |= {"failed": 1, "errors": {"http_5xx": 1}, "messages": {"http_5xx": said}}
        return Ticked(
            t_s=t_s,
            span_s=TICK_S,
            stages={stage: msgspec.structs.replace(delta, **window)},
            client=self._client,
            held=STREAMS,
            open_stages={stage: STREAMS},
            workers=2,
            rss_bytes=200_000_000,
            engine=_ENGINE,
        )


def _encoded(values_ms: NDArray[np.float64]) -> EncodedHistogram:
    latency = Histogram()
    latency.record_ns((values_ms * 1e6).astype(np.int64).tolist())
    return latency.encode()


@dataclass
class Onlooker:
    """Makes snapshots of a record, and keeps what the cockpit keeps of them."""

    views: StageViews = field(default_factory=StageViews)
    timeline: Timeline = field(default_factory=Timeline)
    book: LogBook = field(default_factory=LogBook)
    seen: int = 0

    def look(self, record: Record, t_s: float) -> Snapshot:
        self.seen += 1
        tail = tuple(
            f"INFO engine.py:{n} Running: 900 reqs, Waiting: 124 reqs" for n in range(self.seen, self.seen + 40)
        )
        server = ServerView("simulator", "http://127.0.0.1", "ready", log_tail=tail, log_total=self.seen + 40)
        started = record.current.started if record.current is not None else None
        load = LoadView(
            stage=started.index + 1 if started else 0,
            stages_planned=STAGES_A_DAY,
            concurrency=STREAMS,
            rate=None,
            held=STREAMS,
            queued=0,
            isl=4096,
            osl=1024,
            stage_elapsed_s=t_s - started.t_s if started else 0.0,
        )
        snapshot = snapshot_of(
            record,
            self.views,
            t_s=t_s,
            unix_s=t_s,
            phase="running",
            profile="soak",
            server=server,
            load=load,
            workers=2,
            telemetry="",
        )
        self.timeline.add(snapshot)
        self.book.see(server)
        return snapshot


def soak(hours: float, every: int, *, trace: bool) -> None:
    """Run through the hours, and report after each quarter."""
    profile = load_profile(PROFILE)
    writer = RunWriter("soak", json_path=None, records=None, baseline=None)
    writer.began_s = 0.0
    writer.begin(profile, seed=1, workers=2, stages_planned=STAGES_A_DAY)
    onlooker, day = Onlooker(), Day()
    fold_s = beat_s = slowest_s = 0.0
    folded = beats = 0
    marks = [hours * 3600 * quarter / 4 for quarter in range(5)]
    if trace:
        tracemalloc.start()
    for line in day.lines(hours):
        t_s = getattr(line, "t_s", 0.0)
        while marks and t_s >= marks[0]:
            _tell(marks.pop(0), writer, fold_s / max(1, folded), beat_s / max(1, beats), slowest_s)
            fold_s = beat_s = slowest_s = 0.0
            folded = beats = 0
        began_s = time.thread_time()
        writer.log(line)
        fold_s += time.thread_time() - began_s
        if not isinstance(line, Ticked):
            continue
        folded += 1
        if folded % every == 0:
            began_s = time.thread_time()
            onlooker.look(writer.record, t_s)
            took_s = time.thread_time() - began_s
            beat_s, slowest_s, beats = beat_s + took_s, max(slowest_s, took_s), beats + 1
    _tell(hours * 3600, writer, fold_s / max(1, folded), beat_s / max(1, beats), slowest_s)
    if trace:
        print(*tracemalloc.take_snapshot().statistics("lineno")[:20], sep="\n")
    began_s = time.thread_time()
    asyncio.run(writer.finish("complete", "the day is over"))
    took_s = time.thread_time() - began_s
    print(f"the result takes {took_s:.2f} s; " + ", ".join(_sizes(writer.folder)))


def _tell(t_s: float, writer: RunWriter, fold_s: float, beat_s: float, slowest_s: float) -> None:
    rss_mb = psutil.Process().memory_info().rss / 1e6
    print(
        f"{t_s / 3600:>5.1f} h  {rss_mb:>6.0f} MB resident  {len(writer.record.stages):>3} stages  "
        f"a quarter of a second's lines {fold_s * 1000:.2f} ms  a snapshot {beat_s * 1000:.1f} ms, "
        f"the slowest {slowest_s * 1000:.1f} ms",
        flush=True,
    )


def _sizes(folder: Path) -> list[str]:
    return [f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in sorted(folder.iterdir())]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--every", type=int, default=20, help="ticks between two snapshots")
    parser.add_argument("--trace", action="store_true", help="report where memory went, which is slow")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        soak(options.hours, options.every, trace=options.trace)
