"""The time axis: the histories that charts draw, the marks on it, and the stretch of it in sight."""

from __future__ import annotations

from collections import deque

from loadgen.metrics.journal import EngineView
from loadgen.metrics.result import Comparison
from loadgen.metrics.samples import GpuSample, GpuStatic
from loadgen.metrics.snapshot import WINDOW_S, Snapshot
from tui.charts.history import History
from tui.charts.marks import Marks
from tui.charts.scale import Span, span

_OF_POINTS = (
    "output_tokens_per_s",
    "requests_per_s",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "tpot_p99_ms",
    "held",
    "engine_running",
    "engine_waiting",
)
_OF_ENGINE = (
    "kv_percent",
    "prompt_tokens_per_s",
    "generation_tokens_per_s",
    "preemptions_per_s",
    "prefix_hit_percent",
    "waiting_capacity",
    "waiting_deferred",
)
GPU_FIGURES = ("busy", "power", "heat", "hbm")  # each GPU has a column `<its index> <figure>`
_GPU_CAPACITY, _GPU_RAW = 2_000, 600  # at one look a second, ten minutes stay as they came
_MOST_PUBLISHED = 1_000
_WINDOWS: tuple[tuple[float | None, str], ...] = (
    (None, "the whole run"),
    (60.0, "the last minute"),
    (300.0, "the last 5 minutes"),
    (1800.0, "the last 30 minutes"),
)


class Timeline:
    """Collects points, looks and marks, but nothing before the first load: a slow start would take all the room."""

    def __init__(self) -> None:
        self.history = History((*_OF_POINTS, *_OF_ENGINE))
        self.gpus = History(())
        self.marks = Marks()
        self.published: dict[tuple[int, str, str], Comparison] = {}
        """What was published beside each stage so far: a snapshot has that of its own stage alone."""
        self.baseline: dict[int, dict[str, float]] = {}  # by the number of a stage, the baseline's figures for its load
        self.error_times_s: dict[str, tuple[float, float]] = {}
        """By kind, when the first and the last failure were seen."""
        self._errors: dict[str, int] = {}
        self._gpu_indices: tuple[int, ...] = ()
        self._looked_s = -1.0
        self._preempted: deque[tuple[float, float]] = deque()
        """Moments of the last `WINDOW_S` seconds, and how many there had been."""
        self._window = 0

    def add(self, snapshot: Snapshot) -> None:
        """Take a beat's points and its new events; every snapshot must come by here, drawn or not."""
        if snapshot.phase not in ("checking", "starting", "probing"):
            self._add_points(snapshot)
            self._add_look(snapshot)
        self.marks.see(snapshot)
        self._see_errors(snapshot)
        if snapshot.reference and len(self.published) < _MOST_PUBLISHED:
            self.published |= {(one.stage, one.of, one.figure): one for one in snapshot.reference}
        if snapshot.baseline is not None and snapshot.stages and len(self.baseline) < _MOST_PUBLISHED:
            known = {one.figure: one.a for one in snapshot.baseline.figures if one.a is not None}
            self.baseline[snapshot.stages[-1].number] = known

    def _add_points(self, snapshot: Snapshot) -> None:
        for point in snapshot.past:
            self.history.add(point.t_s, {column: getattr(point, column) for column in _OF_POINTS} | _kv(point.kv_usage))
        point = snapshot.point
        values = {column: getattr(point, column) for column in _OF_POINTS} | _kv(point.kv_usage)
        self.history.add(point.t_s, values | self._engine_values(snapshot.engine, point.t_s))

    def _engine_values(self, engine: EngineView | None, t_s: float) -> dict[str, float | None]:
        if engine is None:
            return {}
        return {
            "kv_percent": _percent(engine.kv_usage),
            "prompt_tokens_per_s": engine.prompt_tokens_per_s,
            "generation_tokens_per_s": engine.generation_tokens_per_s,
            "preemptions_per_s": self._preemptions_per_s(engine.preemptions, t_s),
            "prefix_hit_percent": _percent(engine.prefix_hit_rate),
            "waiting_capacity": engine.waiting_by_reason.get("capacity"),
            "waiting_deferred": engine.waiting_by_reason.get("deferred"),
        }

    def _preemptions_per_s(self, now: float | None, t_s: float) -> float | None:
        """Over the last `WINDOW_S` seconds, as the engine's other rates; anew when a server begins anew."""
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

    def _add_look(self, snapshot: Snapshot) -> None:
        """A moment for each look at the GPUs, which are fewer than the beats."""
        indices = tuple(gpu.static.index for gpu in snapshot.gpus)
        if indices != self._gpu_indices:
            self._gpu_indices = indices
            columns = [f"{index} {figure}" for index in indices for figure in GPU_FIGURES]
            self.gpus = History(columns, _GPU_CAPACITY, _GPU_RAW)
        looked_s = max((gpu.sample.t_s for gpu in snapshot.gpus if gpu.sample is not None), default=self._looked_s)
        if looked_s > self._looked_s:
            self._looked_s = looked_s
            seen = [(gpu.static, gpu.sample) for gpu in snapshot.gpus if gpu.sample is not None]
            values = {f"{static.index} {figure}": v for static, now in seen for figure, v in gpu_values(static, now)}
            self.gpus.add(snapshot.t_s, values)

    def _see_errors(self, snapshot: Snapshot) -> None:
        for error in snapshot.errors:
            if error.count > self._errors.get(error.kind, 0):
                self._errors[error.kind] = error.count
                first_s, _ = self.error_times_s.get(error.kind, (snapshot.t_s, 0.0))
                self.error_times_s[error.kind] = (first_s, snapshot.t_s)

    def next_window(self) -> str:
        """Show the next span; its name."""
        self._window = (self._window + 1) % len(_WINDOWS)
        return _WINDOWS[self._window][1]

    def span(self) -> Span:
        """The stretch of time in sight."""
        times = self.history.times
        if not len(times):
            return span(0.0, 0.0, None)
        first_s = float(times[0])
        began_s = self.marks.first_load_s
        return span(first_s if began_s is None else min(first_s, began_s), float(times[-1]), _WINDOWS[self._window][0])


def gpu_values(static: GpuStatic, sample: GpuSample) -> list[tuple[str, float | None]]:
    """The figures of a GPU that have a history, in the order of `GPU_FIGURES`: all but the heat as a share of 100."""
    return [
        ("busy", sample.gfx_percent),
        ("power", _share(sample.power_w, sample.power_cap_w or static.power_cap_default_w)),
        ("heat", sample.temperature_hotspot_c),
        ("hbm", _share(sample.hbm_used_bytes, static.hbm_total_bytes)),
    ]


def _share(value: float | None, most: float | None) -> float | None:
    return None if value is None or not most else 100 * value / most


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _kv(usage: float | None) -> dict[str, float | None]:
    return {"kv_percent": _percent(usage)}
