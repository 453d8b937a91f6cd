"""What a panel draws of a snapshot, without a screen: the same rows as its widget shows."""

from __future__ import annotations

from typing import Any

from loadgen.schema.snapshot import Snapshot
from tui.charts.timeline import Timeline
from tui.panels.frame import Frame, Paint, Wanted
from tui.widgets.rows import Row, Rows, cropped


def frame_of(*snapshots: Snapshot, **changes: Any) -> Frame:
    """The frame of the last snapshot, with the history of all."""
    timeline = Timeline()
    for snapshot in snapshots:
        timeline.add(snapshot)
    return Frame(snapshots[-1], Wanted(), timeline=timeline, **changes)


def painted(paint: Paint, shown: Snapshot | Frame, width: int = 80, height: int = 10) -> Rows:
    """The rows of a panel, cut to its size as the widget does."""
    frame = shown if isinstance(shown, Frame) else frame_of(shown)
    return [cropped(row, width) for row in paint(frame, width, height)[:height]]


def lines(paint: Paint, shown: Snapshot | Frame, width: int = 80, height: int = 10) -> list[str]:
    return texts(painted(paint, shown, width, height))


def texts(rows: Rows) -> list[str]:
    return [text_of(row) for row in rows]


def text_of(row: Row) -> str:
    return "".join(text for text, _ in row)
