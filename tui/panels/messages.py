"""Texts: errors by kind, what happened, and the tail of the server's log."""

from __future__ import annotations

import re

from loadgen import format as fmt
from loadgen.metrics.result import RunEvent
from loadgen.metrics.snapshot import ErrorView
from tui.charts.marks import KINDS
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, cropped, titled

_MOST_EVENTS = 2_000
_HEAD = re.compile(
    r"(?:\([^()]*pid=\d+\) )?(?:(?P<level>[A-Z]+) (?:\d\d-\d\d )?(?P<time>\d\d:\d\d:\d\d) (?:\[[^\]]+\] )?)?"
)


def errors(frame: Frame, width: int, height: int) -> Rows:
    """The kinds of failure, the most frequent first."""
    kinds = sorted(frame.snapshot.errors, key=lambda error: -error.count)
    total = sum(error.count for error in kinds)
    legend: Row = ((fmt.count(total), "bad"),) if total else (("none", "dim"),)
    return [titled("errors", legend, width), *[_error(error, width) for error in kinds]]


def events(frame: Frame, width: int, height: int) -> Rows:
    """The last things that happened, on the clock of the charts."""
    room = max(1, height - 1)
    return [titled("events", (), width), *[_event(event, width) for event in frame.snapshot.events[-room:]]]


def chronicle(frame: Frame, width: int, height: int) -> Rows:
    """All that happened and passes the filter, what shows in the numbers alone too; the newest at the bottom."""
    found = happened(frame)
    room = max(1, height - 1)
    notes = sum(event.kind == "note" for event in found)
    wanted: Row = ((f"/{fmt.plain(frame.event_filter)}  ", "key"),) if frame.event_filter else ()
    legend: Row = (*wanted, (f"{fmt.count(len(found))}, notes {fmt.count(notes)}", "dim"))
    return [titled("events and notes", legend, width), *[_event(event, width) for event in found[-room:]]]


def happened(frame: Frame) -> list[RunEvent]:
    """The run's events and the marks that only the numbers tell, in their order, as far as they pass the filter."""
    marks = [RunEvent(mark.t_s, mark.kind, mark.text) for mark in frame.timeline.marks.all if mark.text]
    wanted = frame.event_filter.casefold()
    found = [event for event in (*frame.snapshot.events[-_MOST_EVENTS:], *marks) if _passes(event, wanted)]
    return sorted(found, key=lambda event: event.t_s)


def _passes(event: RunEvent, wanted: str) -> bool:
    return wanted in event.kind.casefold() or wanted in event.text.casefold()


def log(frame: Frame, width: int, height: int) -> Rows:
    """The last lines that fit, of those that pass the filter."""
    room, wanted = max(1, height - 1), frame.log_filter.casefold()
    lines = [line for line in frame.snapshot.server.log_tail if wanted in line.casefold()]
    rows = [cropped(((" " + _without_head(fmt.plain(line)), "dim"),), width) for line in lines[-room:]]
    legend: Row = ((f"/{fmt.plain(frame.log_filter)}: {fmt.counted(len(lines), 'line')}", "key"),) if wanted else ()
    return [titled("server log", legend, width), *rows]


def _without_head(line: str) -> str:
    """Without what repeats in each line of vLLM's and leaves no room for what it says: process, INFO, date, module."""
    head = _HEAD.match(line)
    if head is None or not head.end():
        return line
    level = "" if head["level"] in (None, "INFO") else f"{head['level']} "
    return f"{level}{head['time'] or ''} {line[head.end() :]}".strip()


def _error(error: ErrorView, width: int) -> Row:
    kind = f" {fmt.count(error.count):>5}  {fmt.plain(error.kind)}"
    return cropped(((kind, "bad"), (f"  {fmt.plain(error.message)}", "dim")), width)


def _event(event: RunEvent, width: int) -> Row:
    how = KINDS.get(event.kind, KINDS["server"])
    role = {"error": "bad", "note": "strong"}.get(event.kind, "text")
    time = f" {fmt.clock(event.t_s):>7} "
    return cropped(((time, "dim"), (f"{how.sign} ", how.role), (fmt.plain(event.text), role)), width)
