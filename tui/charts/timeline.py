"""The time axis: the bounded histories that charts draw, the marks on it, and the span in sight."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from loadgen import format as fmt
from loadgen.metrics.series import Floats, Ints, TimeSeries, changes
from loadgen.schema.comparison import Comparison
from loadgen.schema.engine import EngineView
from loadgen.schema.snapshot import WINDOW_S, SeriesPoint, Snapshot
from tui.charts.definitions import COLUMNS, GPU_STRIPS
from tui.charts.marks import Marks
from tui.charts.scale import Span, span

CAPACITY = 6_000
_KEPT_RAW = 2_400  # ten minutes at four points a second
_GPU_CAPACITY, _GPU_RAW = 2_000, 600  # at one sample a second, ten minutes are kept as they came
_MAX_PUBLISHED = 1_000
_WINDOWS: tuple[tuple[float | None, str], ...] = (
    (None, "the whole run"),
    (60.0, "the last minute"),
    (300.0, "the last 5 minutes"),
    (1800.0, "the last 30 minutes"),
)


class Folded(NamedTuple):
    """A time span as columns of dots: each at most once, in order."""

    columns: Ints
    bands: Mapping[str, tuple[Floats, Floats]]  # by series, the lowest and highest values; NaN where it is unknown


class History(TimeSeries):
    """A time series that can be folded onto columns of dots."""

    def __init__(self, columns: Sequence[str], capacity: int = CAPACITY, kept_raw: int = _KEPT_RAW) -> None:
        super().__init__(columns, capacity=capacity, kept_raw=kept_raw)
        self._folded: tuple[tuple[Span, int, float], Folded] | None = None

    def knows(self, column: str) -> bool:
        """Whether a column has ever had a value."""
        return bool(np.isfinite(self.lows[self.rows[column]]).any())

    def folded(self, span: Span, columns: int) -> Folded:
        """Fold a time span onto columns of dots; cached, because charts of one width ask for the same."""
        key = (span, columns, float(self.times[-1]) if len(self) else span.start_s)
        if self._folded is not None and self._folded[0] == key:
            return self._folded[1]
        first, last = np.searchsorted(self.times, (span.start_s, span.end_s + 1e-9)).tolist()
        shares = (self.times[first:last] - span.start_s) / (span.end_s - span.start_s)
        column = (np.clip(shares, 0.0, 1.0) * (columns - 1) + 0.5).astype(np.int64)
        starts, lows, highs = changes(column), self.lows[:, first:last], self.highs[:, first:last]
        if len(starts):
            lows, highs = np.fmin.reduceat(lows, starts, axis=1), np.fmax.reduceat(highs, starts, axis=1)
        folded = Folded(column[starts], {name: (lows[row], highs[row]) for name, row in self.rows.items()})
        self._folded = (key, folded)
        return folded


class Timeline:
    """Collects points, GPU samples and marks; no points before the load, as a slow start would take all the room."""

    def __init__(self) -> None:
        self.history = History(COLUMNS)
        self.gpus = History(())
        self.marks = Marks()
        self.published: dict[tuple[int, str, str], Comparison] = {}
        """The published figures for each stage so far; a snapshot has only those of its own stage."""
        self.baseline: dict[int, dict[str, float]] = {}  # by stage number, the baseline's figures for its load
        self.error_times_s: dict[str, tuple[float, float]] = {}
        """By kind, when the first and the last failure were seen."""
        self._errors: dict[str, int] = {}
        self._gpu_indices: tuple[int, ...] = ()
        self._sampled_s = -1.0
        self._preempted: deque[tuple[float, float]] = deque()
        """Times within the last `WINDOW_S` seconds, with the number of preemptions until then."""
        self._window = 0

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot's points and its new events; must be called for every snapshot, drawn or not."""
        if snapshot.phase not in ("checking", "starting", "probing"):
            for point in snapshot.past:
                self.history.add(point.t_s, _known(point))
            point, start = snapshot.point, snapshot.server.start
            values = _known(point) | self._engine_values(snapshot.engine, point.t_s) | _watched_values(snapshot)
            if start is not None and snapshot.sessions is not None:
                values["kv_tokens"] = start.kv_cache_tokens  # next to the contexts of sessions
            if not snapshot.has_server:
                values |= _box_values(snapshot)
            self.history.add(point.t_s, values)
            self._add_samples(snapshot)
        self.marks.add(snapshot)
        for kind, count in snapshot.errors.items():
            if count > self._errors.get(kind, 0):
                self._errors[kind] = count
                first_s, _ = self.error_times_s.get(kind, (snapshot.t_s, 0.0))
                self.error_times_s[kind] = (first_s, snapshot.t_s)
        if snapshot.reference and len(self.published) < _MAX_PUBLISHED:
            self.published |= {(one.stage, one.of, one.figure): one for one in snapshot.reference}
        if snapshot.baseline is not None and snapshot.stages and len(self.baseline) < _MAX_PUBLISHED:
            known = {one.figure: one.a for one in snapshot.baseline.figures if one.a is not None}
            self.baseline[snapshot.stages[-1].number] = known

    def _engine_values(self, engine: EngineView | None, t_s: float) -> dict[str, float | None]:
        if engine is None:
            return {}
        return _known(engine) | {
            "preemptions_per_s": self._preemptions_per_s(engine.preemptions, t_s),
            "prefix_hit_percent": _percent(engine.prefix_hit_rate),
            "waiting_capacity": engine.waiting_by_reason.get("capacity"),
            "waiting_deferred": engine.waiting_by_reason.get("deferred"),
        }

    def _preemptions_per_s(self, now: float | None, t_s: float) -> float | None:
        """Return the rate over the last `WINDOW_S` seconds, as for the engine's other rates; resets on a restart."""
        seen = self._preempted
        if now is None or (seen and now < seen[-1][1]):
            seen.clear()
        if now is None:
            return None
        seen.append((t_s, now))
        while seen[-1][0] - seen[0][0] > WINDOW_S:
            seen.popleft()
        (first_s, first), (last_s, last) = seen[0], seen[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None

    def _add_samples(self, snapshot: Snapshot) -> None:
        """Add a point for each GPU sample, which are fewer than the snapshots."""
        indices = tuple(gpu.static.index for gpu in snapshot.gpus)
        if indices != self._gpu_indices:
            self._gpu_indices = indices
            columns = [strip.column(index) for index in indices for strip in GPU_STRIPS]
            self.gpus = History(columns, _GPU_CAPACITY, _GPU_RAW)
        sampled = [(gpu.static, gpu.sample) for gpu in snapshot.gpus if gpu.sample is not None]
        sampled_s = max((sample.t_s for _, sample in sampled), default=self._sampled_s)
        if sampled_s > self._sampled_s:
            self._sampled_s = sampled_s
            values = {strip.column(gpu.index): strip.value(gpu, now) for gpu, now in sampled for strip in GPU_STRIPS}
            self.gpus.add(snapshot.t_s, values)

    def next_window(self) -> str:
        """Switch to the next window, and return its name."""
        self._window = (self._window + 1) % len(_WINDOWS)
        return _WINDOWS[self._window][1]

    def span(self) -> Span:
        times = self.history.times
        if not len(times):
            return span(0.0, 0.0, None)
        first_s = float(times[0])
        began_s = self.marks.first_load_s
        return span(first_s if began_s is None else min(first_s, began_s), float(times[-1]), _WINDOWS[self._window][0])


def _watched_values(snapshot: Snapshot) -> dict[str, float | tuple[float, float] | None]:
    """Return the bounds of the engine's latencies, to be shown while we send nothing."""
    engine, point = snapshot.engine, snapshot.point
    if not snapshot.load.no_load or snapshot.load.held:
        return {}
    found: dict[str, float | tuple[float, float] | None] = {}
    if not point.output_tokens_per_s:
        found["output_tokens_per_s"] = None
    latencies = engine.latency_ms if engine is not None else {}
    for name in {"ttft", "tpot"} & latencies.keys():
        for percentile, (low, high) in latencies[name].within.items():
            column = f"{name}_{percentile}_ms"
            if column in COLUMNS and getattr(point, column) is None:
                found[column] = (low, math.inf if high is None else high)
    return found


def _box_values(snapshot: Snapshot) -> dict[str, float | None]:
    """Return GPUs and host now, for a box without a server."""
    samples = [gpu.sample for gpu in snapshot.gpus if gpu.sample is not None]
    busy, power, heat = (
        [value for sample in samples if (value := getattr(sample, name)) is not None]
        for name in ("gfx_percent", "power_w", "temperature_hotspot_c")
    )
    found: dict[str, float | None] = {
        "gpu_busy_least": min(busy, default=None),
        "gpu_busy_most": max(busy, default=None),
        "gpu_power_w": sum(power) if power else None,
        "gpu_coolest_c": min(heat, default=None),
        "gpu_hottest_c": max(heat, default=None),
    }
    host = snapshot.host
    if host is None:
        return found
    return found | {
        "cpu_percent": host.cpu_percent,
        "cpu_busiest_percent": host.cpu_busiest_percent,
        "memory_used_gib": fmt.gib(host.memory_used_bytes),
        "network_in_mb_per_s": fmt.mb(host.network_in_bytes_per_s),
        "network_out_mb_per_s": fmt.mb(host.network_out_bytes_per_s),
        "disk_read_mb_per_s": fmt.mb(host.disk_read_bytes_per_s),
        "disk_write_mb_per_s": fmt.mb(host.disk_write_bytes_per_s),
    }


def _known(one: SeriesPoint | EngineView) -> dict[str, float | None]:
    """Return its fields that are columns."""
    found = {column: getattr(one, column) for column in COLUMNS if column in one.__struct_fields__}
    return found | {"kv_percent": _percent(one.kv_usage)}


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
