"""Texts: errors by kind, what happened, and the tail of the server's log."""

from __future__ import annotations

from loadgen.metrics.snapshot import ErrorView, RunEvent
from tui import format as fmt
from tui.paint import Row, Rows, cropped, titled
from tui.view import View

_SIGNS = {"load": "▴", "pause": "=", "resume": "▸", "error": "!", "note": "✎", "server": "·", "clock": "!"}


def errors(view: View, width: int, height: int) -> Rows:
    """The kinds of failure, the most frequent first."""
    kinds = sorted(view.snapshot.errors, key=lambda error: -error.count)
    total = sum(error.count for error in kinds)
    legend: Row = ((fmt.count(total), "bad"),) if total else (("none", "dim"),)
    return [titled("errors", legend, width), *[_error(error, width) for error in kinds]]


def events(view: View, width: int, height: int) -> Rows:
    """The last things that happened, on the clock of the charts."""
    room = max(1, height - 1)
    return [titled("events", (), width), *[_event(event, width) for event in view.snapshot.events[-room:]]]


def log(view: View, width: int, height: int) -> Rows:
    """The last lines that fit, of those that pass the filter."""
    room, wanted = max(1, height - 1), view.log_filter.casefold()
    lines = [line for line in view.snapshot.server.log_tail if wanted in line.casefold()]
    rows = [cropped(((" " + fmt.plain(line), "dim"),), width) for line in lines[-room:]]
    legend: Row = ((f"/{fmt.plain(view.log_filter)}: {fmt.count(len(lines))} lines", "key"),) if wanted else ()
    return [titled("server log", legend, width), *rows]


def _error(error: ErrorView, width: int) -> Row:
    kind = f" {fmt.count(error.count):>5}  {fmt.plain(error.kind)}"
    return cropped(((kind, "bad"), (f"  {fmt.plain(error.message)}", "dim")), width)


def _event(event: RunEvent, width: int) -> Row:
    role = "bad" if event.kind == "error" else "text"
    time, sign = f" {fmt.clock(event.t_s):>7} ", _SIGNS.get(event.kind, "·")
    return cropped(((time, "dim"), (f"{sign} ", "mark"), (fmt.plain(event.text), role)), width)
