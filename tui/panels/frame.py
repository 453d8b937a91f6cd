"""The frame that panels draw (the latest snapshot and what the operator wants), and the panel widget."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import msgspec
from textual.events import Click
from textual.message import Message

from loadgen.schema.result import StageResult
from loadgen.schema.snapshot import Snapshot
from tui.charts.chart import chart_rows
from tui.charts.definitions import Chart
from tui.charts.timeline import Timeline
from tui.keys import Operator, key_of
from tui.widgets.rows import Rows, Word, in_role
from tui.widgets.rows_widgets import RowsWidget

if TYPE_CHECKING:
    from loadgen.run.operations import Operation

STALE_AFTER_S = 0.75  # three intervals of 250 ms without a snapshot
METRICS = ("ttft", "tpot", "itl", "e2e")  # the latencies that a view can show
CURVE_METRICS = (*METRICS, "frontier")  # what the curve view can show first


class RunControl(Protocol):
    """The part of `loadgen.run.Run` that the cockpit needs; no method blocks."""

    def snapshots(self) -> AsyncIterator[Snapshot]:
        """Yield the states of the run, four a second, up to one whose phase is `done`."""

    def apply(self, operation: Operation, /) -> None:
        """Apply an operation, or report in an event why it is refused."""


@runtime_checkable
class Player(Protocol):
    """What a replay can do in addition."""

    def set_speed(self, speed: float, /) -> None: ...


class Wanted(msgspec.Struct, frozen=True):
    """The load that the operator wants, before and after the run confirms it."""

    value: float | None = None
    open_loop: bool = False
    paused: bool = False
    shape: tuple[int, int] = (0, 0)  # input and output tokens of a request
    unconfirmed: bool = False


class Frame(msgspec.Struct, frozen=True):
    """The latest snapshot, the history before it, and what the operator wants to see."""

    snapshot: Snapshot
    wanted: Wanted
    age_s: float = 0.0  # since the snapshot arrived
    ending: Literal["", "stop", "abort"] = ""  # asked for by the operator, not yet done by the run
    ended: bool = False  # no more snapshots will come
    log_filter: str = ""  # only log lines with this text are shown
    event_filter: str = ""  # in the events view, only events with this in kind or text are shown
    timeline: Timeline = msgspec.field(default_factory=Timeline)  # the history
    chosen: str = ""  # the item whose details are shown: `stage 4`, `gpu 5`, `straggler of gpu 5`
    metric: str = "ttft"  # the latency that the curve and latency views show; in the curve view, also the frontier

    operator: Operator = "owner"
    keymap: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The keys that the operator has rebound, by binding id."""

    def key(self, id: str) -> Word:
        return (key_of(f"cockpit.{id}", self.keymap), "key")

    @property
    def steers(self) -> bool:
        return self.operator in ("owner", "guest")

    @property
    def no_load(self) -> bool:
        """Whether no load is sent or asked for, so that only other clients' traffic is shown."""
        return self.snapshot.load.no_load and not self.wanted.value

    @property
    def load_unit(self) -> str:
        """The unit of the load: `streams`, `sessions` or `req/s`."""
        if self.wanted.open_loop:
            return "req/s"
        return "sessions" if self.snapshot.load.in_sessions else "streams"

    @property
    def stale(self) -> bool:
        """Whether the numbers are old although the run is not over."""
        return not self.done and self.age_s > STALE_AFTER_S

    @property
    def stage(self) -> StageResult | None:
        """The running stage, or the last one that ran."""
        return self.snapshot.stages[-1] if self.snapshot.stages else None

    @property
    def done(self) -> bool:
        return self.ended or self.snapshot.phase == "done"


Paint = Callable[[Frame, int, int], Rows]  # frame, width and height to rows; more rows than the height are cut


def _paint_chart(chart: Chart, frame: Frame, width: int, height: int) -> Rows:
    timeline = frame.timeline
    return chart_rows(chart, timeline.history, timeline.span(), timeline.marks.all, width, height)


class Panel(RowsWidget):
    """Draws the rows that its function makes of the latest frame."""

    @dataclass
    class Chosen(Message):
        """A click on the panel."""

        panel: Panel
        target: str  # the item of the clicked row, such as `stage 4` or `gpu 5`; empty if it has none

    def __init__(self, paint: Paint, *, id: str) -> None:
        super().__init__(id=id)
        self._paint = paint
        self._frame: Frame | None = None

    def show(self, frame: Frame) -> None:
        self._frame = frame
        self.draw()

    def on_click(self, event: Click) -> None:
        event.stop()
        self.post_message(self.Chosen(self, self.target_at(event.x, event.y)))

    def rows(self, width: int, height: int) -> Rows:
        if self._frame is None:
            return []
        rows = self._paint(self._frame, width, height)
        is_old = self._frame.stale and self.id != "header"
        return [in_role(row, "dim") for row in rows] if is_old else rows


def panels(paints: Mapping[str, Paint]) -> list[Panel]:
    return [Panel(paint, id=id) for id, paint in paints.items()]


def chart_panels(charts: Mapping[str, Chart]) -> list[Panel]:
    return [Panel(partial(_paint_chart, chart), id=id) for id, chart in charts.items()]
