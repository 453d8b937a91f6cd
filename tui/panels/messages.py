"""Texts: failures by kind with their remedies, events, and the tail of the server's log."""

from __future__ import annotations

import re
from collections.abc import Sequence

from loadgen import format as fmt
from loadgen.report.notes import account_words
from loadgen.schema.result import RunEvent
from tui.charts.timeline import KINDS
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, hanging, titled, whole_groups, wrapped

# `{where}` is the key of the server's log, or nothing if vramp has no log of the server.
_REMEDIES = {
    "connect": "is the server up, on the port in the profile? `ss -ltn` shows what listens",
    "timeout": "load.timeout_s was too short for this load, or the engine is stuck: look at its log{where}",
    "stall": "a stream stalled midway: look at the engine's log{where} for preemptions or a hanging step",
    "reset": "the server closed the connection: did it restart, or reach its connection limit? look at its log{where}",
    "http_4xx": "the server refuses the request: model name, max_model_len, API key; the message says which",
    "http_429": "the server limits the rate: reduce the load or raise its limit",
    "http_5xx": "the server failed: its log{where} has the reason at that time",
    "protocol": "not an OpenAI-compatible stream: is the URL that of the API, not of a page or a proxy?",
    "bad_event": "an event of the stream was not JSON: a proxy in between, or a server bug",
    "truncated": "the answer stopped without an end: did the server or a proxy give up? look at its log{where}",
    "aborted": "the engine gave the request up: a shutdown, sleep, scale-down or time limit; its log{where} says why",
    "finish_reason": "the answer ended for a reason that means no success; the message has the server's word for it",
    "engine_error": "the engine reported an error inside a stream: its log{where} has the reason",
    "empty": "streams ended without a token: max_tokens, stop words, chat template, or an unknown form",
}
_INDENT = 10
_MAX_EVENTS = 2_000
_HEAD = re.compile(
    r"(?:\([^()]*pid=\d+\) )?(?:(?P<level>[A-Z]+) (?:\d\d-\d\d )?(?P<time>\d\d:\d\d:\d\d) (?:\[[^\]]+\] )?)?"
)


def errors(frame: Frame, width: int, height: int) -> Rows:
    kinds = frame.snapshot.errors
    total = sum(kinds.values())
    rows = [titled("errors", ((fmt.count(total), "bad") if total else ("none", "dim"),), width)]
    for kind, count in kinds.items():
        words = f" {fmt.count(count):>5}  {fmt.plain(kind)}"
        message = next(iter(frame.snapshot.messages(kind)), "")
        rows.append(((words, "bad"), (f"  {fmt.plain(message)}", "dim")))
    return rows


def failures(frame: Frame, width: int, height: int) -> Rows:
    """Draw as many kinds as fit, each with its share, when it was seen, its distinct messages, and what to do."""
    kinds, requests = frame.snapshot.errors, frame.snapshot.requests
    total = sum(kinds.values())
    sent = fmt.count(requests.sent if requests is not None else None)
    legend = (f"{fmt.count(total)} of {sent} requests", "bad") if total else ("none", "dim")
    above: Rows = [titled("errors", (legend,), width)]
    stage = frame.stage
    accounts = [("run", requests)] if requests is not None and requests.sent else []
    if stage is not None and len(frame.snapshot.stages) > 1:
        accounts.append((f"stage {stage.number}", stage.requests))
    for name, account in accounts:
        above += hanging(((f" {name:<{_INDENT - 1}}", "dim"),), account_words(account), width, "text")
    above += [()] if accounts else []

    groups = []
    where = "" if no_log(frame) else f" ({frame.key('log')[0]})"
    for kind, count in kinds.items():
        words = f" {fmt.count(count):>7}  {fmt.plain(kind):<14}"
        rows: Rows = [((words, "bad"), (f"{fmt.percent(count / total):>6}  ", "text"), (seen(frame, kind), "dim"))]
        for message in frame.snapshot.messages(kind):
            rows += wrapped(message, width, "text", _INDENT)
        if kind in _REMEDIES:
            rows += wrapped(f"→ {_REMEDIES[kind].format(where=where)}", width, "key", _INDENT)
        groups.append([*rows, ()])
    return [*above, *whole_groups(groups, height - 1 - len(above), "more kinds")]


def seen(frame: Frame, kind: str) -> str:
    times_s = frame.timeline.error_times_s.get(kind)
    return f"first {fmt.clock(times_s[0])}, last {fmt.clock(times_s[1])}" if times_s is not None else ""


def events(frame: Frame, width: int, height: int) -> Rows:
    """Draw the latest events, on the clock of the charts."""
    room = max(1, height - 1)
    latest = frame.snapshot.events[-room:]
    return [titled("events", (), width), *((*_when(event), (fmt.plain(event.text), _role(event))) for event in latest)]


def all_events(frame: Frame, width: int, height: int) -> Rows:
    """Draw all events that pass the filter, including those inferred from the numbers; the newest at the bottom."""
    found = happened(frame)
    notes = sum(event.kind == "note" for event in found)
    wanted: Row = ((f"/{fmt.plain(frame.event_filter)}  ", "key"),) if frame.event_filter else ()
    legend: Row = (*wanted, (f"{fmt.count(len(found))}, notes {fmt.count(notes)}", "dim"))
    return [titled("events and notes", legend, width), *_newest(found, frame, width, max(2, height - 1))]


def _newest(found: Sequence[RunEvent], frame: Frame, width: int, room: int) -> Rows:
    """As many of the newest as fit, each whole; above them, how many came before."""
    rows: Rows = []
    for place in range(len(found) - 1, -1, -1):
        when, text, most = _when(found[place]), found[place].text, room - (place > 0)
        event = hanging(when, text, width, _role(found[place]), most)
        if rows and len(event) + len(rows) + (place > 0) > room:
            words = f" … {fmt.counted(place + 1, 'earlier event')}: "
            return [((words, "dim"), frame.key("filter"), (" filters", "dim")), *rows]
        rows = [*event, *rows]
    return rows


def happened(frame: Frame) -> list[RunEvent]:
    """Return the run's events and those inferred from the numbers, by time, if they pass the filter."""
    marks = [RunEvent(mark.t_s, mark.kind, mark.text) for mark in frame.timeline.marks.all if mark.text]
    wanted = frame.event_filter.casefold()
    events = (*frame.snapshot.events[-_MAX_EVENTS:], *marks)
    found = [event for event in events if wanted in event.kind.casefold() or wanted in event.text.casefold()]
    return sorted(found, key=lambda event: event.t_s)


def _when(event: RunEvent) -> Row:
    """The time of an event, and the sign of its kind."""
    how = KINDS.get(event.kind, KINDS["server"])
    return ((f" {fmt.clock(event.t_s):>7} ", "dim"), (f"{how.sign} ", how.role))


def _role(event: RunEvent) -> str:
    return {"error": "bad", "note": "strong"}.get(event.kind, "text")


def log(frame: Frame, width: int, height: int) -> Rows:
    room, wanted = max(1, height - 1), frame.log_filter.casefold()
    lines = [line for line in frame.snapshot.server.log_tail if wanted in line.casefold()]
    rows: Rows = [((" " + _without_head(fmt.plain(line)), "dim"),) for line in lines[-room:]]
    legend: Row = ((f"/{fmt.plain(frame.log_filter)}: {fmt.counted(len(lines), 'line')}", "key"),) if wanted else ()
    return [titled("server log", legend, width), *(rows or no_log(frame))]


def no_log(frame: Frame) -> Rows:
    """Say why there is no log, if there can never be one."""
    if frame.snapshot.server.engine not in ("attach", "none"):
        return []
    return [((" no log: vramp did not start this server", "dim"),)]


def _without_head(line: str) -> str:
    """Strip what vLLM repeats in each line, which leaves no room for the message: process, INFO, date, module."""
    head = _HEAD.match(line)
    if head is None or not head.end():
        return line
    level = "" if head["level"] in (None, "INFO") else f"{head['level']} "
    return f"{level}{head['time'] or ''} {line[head.end() :]}".strip()
