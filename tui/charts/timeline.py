"""The time axis: the bounded histories that charts draw, the marks on it, and the span in sight."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from loadgen import format as fmt
from loadgen.metrics.series import Floats, Ints, TimeSeries, changes
from loadgen.schema.comparison import Comparison
from loadgen.schema.engine import EngineView
from loadgen.schema.result import RunEvent, StageResult
from loadgen.schema.snapshot import WINDOW_S, SeriesPoint, Snapshot
from tui.charts.definitions import COLUMNS, GPU_STRIPS
from tui.charts.scale import Span, span

CAPACITY = 6_000
_KEPT_RAW = 2_400  # ten minutes at four points a second
_GPU_CAPACITY, _GPU_RAW = 2_000, 600  # at one sample a second, ten minutes are kept as they came
_MAX_PUBLISHED = 1_000
MAX_MARKS = 400
BURST_S = 10.0  # after so long without another one, the next begins a new burst
_LABEL_CELLS = 24
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


class Kind(NamedTuple):
    """How a kind of mark is shown; they differ by their sign, so that none needs a colour."""

    sign: str
    role: str
    rank: int  # of two marks in one place, the one with the lower rank is shown
    line: bool = False  # drawn through the charts too


KINDS = {
    "load": Kind("▴", "mark", 0, line=True),
    "note": Kind("✎", "strong", 1, line=True),
    "pause": Kind("=", "mark", 2, line=True),
    "resume": Kind("▸", "mark", 2, line=True),
    "error": Kind("!", "bad", 3),
    "clock": Kind("!", "bad", 3),
    "engine": Kind("↯", "warn", 4),  # restarted, or its metrics went away and came back
    "throttle": Kind("▾", "warn", 4),
    "preemption": Kind("↺", "warn", 5),
    "server": Kind("·", "mark", 6),
}
"""By the kind of an event; an unknown one is shown like `server`."""


class Mark(msgspec.Struct, frozen=True):
    """A moment on the time axis."""

    t_s: float
    kind: str
    label: str = ""  # for the axis, short
    text: str = ""  # a sentence; empty if an event of the run says it

    @property
    def how(self) -> Kind:
        return KINDS.get(self.kind, KINDS["server"])


class Marks:
    """Collects the marks of a run, snapshot by snapshot: its events, and those inferred from its numbers.

    Preemptions, throttling and failures come in bursts, and only the beginning of one is marked. There are never more
    than `MAX_MARKS`: the least important and oldest are dropped first.
    """

    def __init__(self) -> None:
        self.all: list[Mark] = []
        self.first_load_s: float | None = None  # when the first stage began
        self._last_event: RunEvent | None = None
        self._stages_seen = 0
        self._last_point_s = -1.0
        self._preemptions: float | None = None
        self._last_of_burst: dict[str, float] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add what is new in a snapshot; must be called for every one."""
        events = snapshot.events
        # Those after the last one seen, or all if it is no longer there.
        seen = next((place for place in reversed(range(len(events))) if events[place] == self._last_event), -1)
        self._last_event = snapshot.events[-1] if snapshot.events else None
        begun = list(_begun(snapshot, snapshot.stages[self._stages_seen :]))
        self._stages_seen = len(snapshot.stages)
        if begun and self.first_load_s is None:
            self.first_load_s = begun[0].t_s
        found = [*begun]
        for event in events[seen + 1 :]:
            if event.kind != "load" or not begun:  # the stage's own mark replaces the request's
                label = fmt.plain(event.text)[:_LABEL_CELLS].rstrip() if event.kind == "note" else ""
                found.append(Mark(event.t_s, event.kind, label))
        found += self._failures((*snapshot.past, snapshot.point))
        self.all += [*found, *self._preempted(snapshot), *self._throttled(snapshot)]
        while len(self.all) > MAX_MARKS:
            self.all.remove(max(self.all, key=lambda mark: (mark.how.rank, -mark.t_s)))

    def _failures(self, points: Sequence[SeriesPoint]) -> list[Mark]:
        new = [point for point in points if point.t_s > self._last_point_s]
        self._last_point_s = max((point.t_s for point in new), default=self._last_point_s)
        return [
            Mark(point.t_s, "error", text=f"requests fail: {point.errors} at once")
            for point in new
            if point.errors and self._begins("failures", point.t_s)
        ]

    def _preempted(self, snapshot: Snapshot) -> list[Mark]:
        now = snapshot.engine.preemptions if snapshot.engine is not None else None
        before, self._preemptions = self._preemptions, now
        if now is None or before is None or now <= before or not self._begins("preemptions", snapshot.t_s):
            return []
        return [Mark(snapshot.t_s, "preemption", text=f"engine preemptions: {fmt.count(now)} since its start")]

    def _throttled(self, snapshot: Snapshot) -> list[Mark]:
        found = {gpu.static.index: flag for gpu in snapshot.gpus for flag in gpu.flags if flag.startswith("THROTTLED")}
        new = [index for index in found if self._begins(f"gpu {index}", snapshot.t_s)]
        if not new:
            return []
        more = f", and {len(new) - 1} more" if len(new) > 1 else ""
        return [Mark(snapshot.t_s, "throttle", text=f"gpu {new[0]} {found[new[0]]}{more}")]

    def _begins(self, what: str, t_s: float) -> bool:
        """Whether this is the first of a burst."""
        last_s = self._last_of_burst.get(what)
        self._last_of_burst[what] = t_s
        return last_s is None or t_s - last_s > BURST_S


def _begun(snapshot: Snapshot, stages: tuple[StageResult, ...]) -> Iterator[Mark]:
    """Yield a mark with the target for each new stage: it began where the next one did, minus its own length."""
    starts_s = [snapshot.t_s - snapshot.load.stage_elapsed_s]
    for stage in reversed(stages[:-1]):
        starts_s.append(starts_s[-1] - stage.duration_s)
    for start_s, stage in zip(reversed(starts_s), stages, strict=False):
        label = stage.target.words
        if stage.target.concurrency == 0 and stage.label != fmt.NO_LOAD:
            label = fmt.plain(stage.label)[:_LABEL_CELLS].rstrip()  # as named by the operator's mark
        yield Mark(start_s, "load", label)


class Timeline:
    """Collects points, GPU samples and marks; no points before the load, as a slow start would take all the room."""

    def __init__(self) -> None:
        self.history = History(tuple(COLUMNS))
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
    """Return its fields that are columns, scaled."""
    found = {column: getattr(one, column) for column in COLUMNS if column in one.__struct_fields__}
    return {column: None if value is None else COLUMNS[column] * value for column, value in found.items()}
