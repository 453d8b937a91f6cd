"""The time axis: the history that the charts draw, the marks on it, and the stretch of it in sight."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.metrics.snapshot import Snapshot
from tui import format as fmt
from tui.chart import Chart, Mark, Series
from tui.history import History
from tui.scale import Span, span

_COLUMNS = (
    "output_tokens_per_s",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "tpot_p99_ms",
    "held",
    "engine_running",
    "engine_waiting",
)
_WINDOWS: tuple[tuple[float | None, str], ...] = (
    (None, "the whole run"),
    (60.0, "the last minute"),
    (300.0, "the last 5 minutes"),
    (1800.0, "the last 30 minutes"),
)
_MARKED = {"load": "", "pause": "pause", "resume": "go on"}


def charts(history: History) -> Iterator[Chart]:
    """The four charts; what has one role has one colour on all of them."""
    out = Series("output_tokens_per_s", "out", "throughput")
    yield Chart("throughput tok/s", (out,), history, id="throughput")
    yield Chart("TTFT ms", _percentiles("ttft"), history, id="ttft", log=True)
    yield Chart("TPOT ms", _percentiles("tpot"), history, id="tpot")
    streams = (
        Series("engine_waiting", "waiting", "waiting", "area"),
        Series("engine_running", "running", "running", "dots"),
        Series("held", "held", "held"),
    )
    yield Chart("streams", streams, history, id="engine", number=fmt.setting)


def _percentiles(name: str) -> tuple[Series, Series]:
    return Series(f"{name}_p99_ms", "p99", "p99", "dots"), Series(f"{name}_p50_ms", "p50", "p50")


class Timeline:
    """Collects points and marks; the time before the first load is not kept, so that a slow start takes no room."""

    def __init__(self) -> None:
        self.history = History(_COLUMNS)
        self.marks: list[Mark] = []
        self._events_seen = 0
        self._stages_seen = 0
        self._window = 0

    def add(self, snapshot: Snapshot) -> None:
        """Take a beat's point and its new events."""
        if snapshot.phase not in ("starting", "probing"):
            point = snapshot.point
            self.history.add(point.t_s, {column: getattr(point, column) for column in _COLUMNS})
        self.marks += self._new_marks(snapshot)
        self._events_seen, self._stages_seen = len(snapshot.events), len(snapshot.stages)

    def _new_marks(self, snapshot: Snapshot) -> list[Mark]:
        """A new stage is marked with its target, whoever began it; other changes of load with a word."""
        new = snapshot.events[self._events_seen :]
        if len(snapshot.stages) <= self._stages_seen:
            return [Mark(event.t_s, _MARKED[event.kind]) for event in new if event.kind in _MARKED]
        marks = [Mark(event.t_s, _MARKED[event.kind]) for event in new if event.kind == "pause"]
        stage = snapshot.stages[-1]
        target = fmt.setting(stage.concurrency) if stage.rate is None else f"{fmt.setting(stage.rate)}/s"
        return [*marks, Mark(snapshot.t_s - snapshot.load.stage_elapsed_s, target)]

    def next_window(self) -> str:
        """Show the next span; its name."""
        self._window = (self._window + 1) % len(_WINDOWS)
        return _WINDOWS[self._window][1]

    def span(self) -> Span:
        """The stretch of time in sight."""
        times = self.history.times
        if not len(times):
            return span(0.0, 0.0, None)
        first_s = min([float(times[0]), *(mark.t_s for mark in self.marks[:1])])
        return span(first_s, float(times[-1]), _WINDOWS[self._window][0])
