"""The load: target, streams held, live sessions, and the keys that change it.

In a narrow terminal, server and client too.
"""

from __future__ import annotations

import math
import textwrap

from loadgen import format as fmt
from loadgen.record.slo import needed_words
from loadgen.report.tabular import Column
from loadgen.schema.deltas import SessionRow
from loadgen.schema.engine import OthersTraffic
from tui.panels.frame import Frame
from tui.panels.health import client_strip, server_strip
from tui.panels.stages import cell_words, head_words
from tui.widgets.rows import Row, Rows, Word, bar, cropped, facts, spread, titled, width_of

_HINT_CELLS = 18
_ROOMY = 8  # rows from which on there is room for more than the load
_WORDY = 36  # cells from which on labels are not shortened
_STRIP_FROM = 60  # from this width on the panel is a strip across a narrow terminal
_UNITS = {
    "streams": ("concurrency", "conc"),
    "sessions": ("live sessions", "sessions"),
    "req/s": ("rate, req/s", "rate/s"),
}
"""The load's units, in full and short."""
_CHOICES: dict[str, tuple[Word, tuple[str, ...], str]] = {
    "blocked": (("the start would fail", "bad"), ("start_anyway",), " starts anyway, "),
    "failed": (("there is no server", "bad"), ("restart",), " restarts it, "),
    "holding": (
        ("the plan is done, the server is up", "warn"),
        ("more", "less", "double", "half", "number"),
        " set a new load, ",
    ),
}
"""For the phases in which the run waits for the operator: the reason, the keys that decide, and what they do."""


def load(frame: Frame, width: int, height: int) -> Rows:
    if frame.no_load:
        return _watching(frame, width, height)
    state, reported = _state(frame), _needs(frame)
    if width >= _STRIP_FROM:
        in_a_row = tuple(word for need in reported for word in (*need, ("  ", "text")))
        needs = cropped(in_a_row, width - width_of((state,)) - len("load "))
        left = ((f" {_UNITS[frame.load_unit][1]} ", "dim"), *_value(frame), *_held(frame))
        stage = ((f"stage {fmt.duration(frame.snapshot.load.stage_elapsed_s):>6} ", "dim"),)
        room = max(0, width - sum(len(text) for text, _ in (*left, *stage)) - 4)
        strip = spread((*left, *bar(_share(frame), room, "held")), stage, width - 1)
        return [titled("load", (*needs, state), width), strip, server_strip(frame), client_strip(frame)]
    roomy, unit = height >= _ROOMY, _UNITS[frame.load_unit][0]
    rows = [
        titled("load", (state,) if roomy or not reported or state[1] == "warn" else reported[0][:1], width),
        spread(((f" {unit}", "text"),), _value(frame), width - 1),
        spread((), _held(frame), width - 1),
        ((" ", "text"), *bar(_share(frame), width - 2, "held")),
        _stage_row(frame, width),
    ]
    lines: Rows = []
    for need in reported if roomy else ():
        text = "".join(text for text, _ in need)
        if len(text) < width:
            lines.append(((" ", "text"), *need))
        else:  # all of it in its first role
            lines += [((f" {line}", need[0][1]),) for line in textwrap.wrap(text, max(10, width - 2))]
    return [*rows[: max(3, height)], *lines[: height - len(rows)], *_hints(frame)[len(lines) :]]


def _watching(frame: Frame, width: int, height: int) -> Rows:
    """Draw other clients' traffic, as we send no load, and the keys that begin one."""
    title = titled("load", ((fmt.NO_LOAD, "strong"),), width)
    if not frame.snapshot.has_server:
        return [title, ((" no server: GPUs and host only", "dim"),), _stage_row(frame, width)]
    others = frame.snapshot.others or OthersTraffic()
    label = "others running" if width >= _WORDY else "others"
    running = (label, f"{fmt.count(others.running):>5}", "running")
    ended = ("req/s", f"{fmt.number(others.requests_per_s):>5}", "text")
    read = ("tok/s in", f"{fmt.number(others.prompt_tokens_per_s):>5}", "text")
    made = ("out", f"{fmt.number(others.generation_tokens_per_s):>5}", "throughput")
    if width >= _STRIP_FROM:
        stage: Row = ((f"stage {fmt.duration(frame.snapshot.load.stage_elapsed_s):>6} ", "dim"),)
        strip = spread(facts("  ", running, ended, read, made), stage, width - 1)
        return [title, strip, server_strip(frame), client_strip(frame)]
    rows: Rows = [title, *(spread((), facts(" ", *pair), width - 1) for pair in ((running, ended), (read, made)))]
    rows.append(_stage_row(frame, width))
    return [*rows, *(_hints(frame) if height >= _ROOMY else [])]


def _needs(frame: Frame) -> list[Row]:
    """Return what the running stage still waits for or needs, and the streams carried in from the one before."""
    stage = frame.stage
    if stage is None or not stage.running:
        return []
    if frame.snapshot.load.waits_for:
        return [((frame.snapshot.load.waits_for, "warn"),)]
    found: list[Row] = []
    if stage.e2e_needs_s:
        row: Row = ((f"E2E needs {math.ceil(stage.e2e_needs_s)} s more", "warn"),)
        can_extend = frame.steers and frame.snapshot.load.stage_progress is not None
        found.append((*row, (": ", "text"), frame.key("extend")) if can_extend else row)
    needed = needed_words(stage)
    if needed:
        found.append(((fmt.plain(needed), "dim"),))
    if stage.requests.carried_in:
        found.append(((f"{fmt.count(stage.requests.carried_in)} carried in", "dim"),))
    return found


def _hints(frame: Frame) -> Rows:
    """Return the keys that this operator may use, two in a row."""
    rows: list[tuple[tuple[str, ...], ...]]
    if frame.operator == "player":
        rows = [(("speed", "double", "half"), ("pause", "pause")), (("step", "next"),)]
    elif not frame.steers:
        rows = []
    elif frame.no_load:
        rows = [(("send load", "more"), ("number", "number")), (("mark", "note"),)]
    else:
        rows = [
            (("one", "more", "less"), ("double, half", "double", "half")),
            (("number", "number"), ("pause", "pause")),
            (("next", "next"), ("note", "note")),
        ]
    hints: Rows = []
    for row in rows:
        words: list[Word] = []
        for what, *ids in row:
            names = " ".join(frame.key(id)[0] for id in ids)
            words += [(f" {names:<4}", "key"), (f"{f' {what}':<{_HINT_CELLS - 5}}", "dim")]
        hints.append(tuple(words))
    return hints


def notice(frame: Frame, width: int, height: int) -> Rows:
    """Return the notice above the key bar, or no row if there is nothing to say."""
    row = _notice(frame)
    return [((" ", "text"), *cropped(row, width - 2))] if row else []


def _notice(frame: Frame) -> Row:
    leave = frame.key("leave")
    if frame.done:
        path = frame.snapshot.result_path
        result = ("no result was written", "bad") if path is None else (fmt.plain(path), "text")
        return (("run done  ", "strong"), result, ("   ", "text"), leave, (" leaves", "text"))
    if frame.operator == "player":
        return ()
    if frame.ending == "abort":
        return (("aborting: ", "warn"), ("streams are cut, what was measured is kept", "text"))
    if frame.ending == "stop" or frame.snapshot.phase == "stopping":
        again: Row = (("  ctrl+c", "key"), (" again aborts", "text")) if frame.operator == "owner" else ()
        return (("finishing: the result is being kept", "warn"), *again)
    if frame.snapshot.phase not in _CHOICES:
        return ()
    waits, ids, what = _CHOICES[frame.snapshot.phase]
    if not frame.steers:
        return (waits,)
    keys = " ".join(frame.key(id)[0] for id in ids)
    leaves = " finishes" if frame.snapshot.phase == "holding" and frame.operator == "owner" else " leaves"
    return (waits, (": ", "text"), (keys, "key"), (what, "text"), leave, (leaves, "text"))


def _state(frame: Frame) -> Word:
    snapshot = frame.snapshot
    states = {
        "REPLAY": snapshot.replay is not None,
        "PAUSED": frame.wanted.paused,
        "plan done": snapshot.phase == "holding",
        "held open": snapshot.load.held_open,
    }
    for words, holds in states.items():
        if holds:
            return (words, "warn")
    return ("by hand" if snapshot.load.manual else "by plan", "dim")


def _value(frame: Frame) -> Row:
    sign: Word = (" ?", "dim") if frame.wanted.unconfirmed else ("  ", "dim")
    return ((f"{fmt.setting(frame.wanted.value):>5}", "strong"), sign)


def _held(frame: Frame) -> Row:
    load = frame.snapshot.load
    sessions = frame.snapshot.sessions
    if sessions is not None:
        counts = (("live ", "dim"), (f"{sessions.live:>5}", "held"))
        return (*counts, ("  requests ", "dim"), (f"{fmt.count(load.held):>5}  ", "running"))
    waiting: Word = (f"{fmt.count(load.queued):>5}  ", "warn" if load.queued else "text")
    return (("held ", "dim"), (f"{fmt.count(load.held):>5}", "held"), ("   waiting ", "dim"), waiting)


def _share(frame: Frame) -> float | None:
    """Return the share of the target that is reached: streams or sessions in closed loop, else requests a second."""
    wanted = frame.wanted.value
    sessions = frame.snapshot.sessions
    held = frame.snapshot.load.held if sessions is None else sessions.live
    got = frame.snapshot.point.requests_per_s if frame.wanted.open_loop else held
    return got / wanted if wanted and got is not None else None


def _stage_row(frame: Frame, width: int) -> Row:
    load = frame.snapshot.load
    elapsed = f"{fmt.duration(load.stage_elapsed_s):>7}  "
    left: Row = ((" stage  ", "text"),)
    if load.stage_progress is None:
        return spread(left, ((elapsed, "text"),), width - 1)
    room = max(0, width - 2 - 8 - len(elapsed))
    return (*left, *bar(load.stage_progress, room, "text"), (elapsed, "text"))


SESSION_COLUMNS: tuple[Column[SessionRow], ...] = (
    Column("session", lambda row: str(row.session), width=11),
    Column("in the file", lambda row: str(row.trace), width=12),
    Column("request", lambda row: str(row.request), width=9),
    Column("of", lambda row: str(row.requests), width=7),
    Column("now", lambda row: f"{row.open} open" if row.open else "waits" if row.waits else "pause", width=12),
    Column("context", lambda row: fmt.number(row.context_tokens), width=10),
    Column("cached", lambda row: "" if row.cached_share is None else f"{row.cached_share:.0%}", width=8),
)


def sessions(frame: Frame, width: int, height: int) -> Rows:
    """Draw how many sessions send, pause or wait, and the ones with the longest contexts."""
    now = frame.snapshot.sessions
    if now is None:
        in_sessions = frame.no_load or frame.snapshot.load.in_sessions
        words = "no session is live" if in_sessions else "the load is not sessions: set load.sessions, or --sessions"
        return [titled("sessions", (), width), ((f" {words}", "dim"),)]
    start = frame.snapshot.server.start
    pool = start.kv_cache_tokens if start is not None else None
    contexts = f"contexts {fmt.number(now.context_tokens)} tokens"
    contexts += f" of {fmt.number(pool)}" if pool is not None else ""
    states = f"{now.live} live, {now.pausing} in a pause, {fmt.counted(frame.snapshot.load.held, 'request')} open"
    due = f", {now.due} due" if now.due else ""
    legend: Word = (f"{states}{due}; {contexts}", "warn" if pool is not None and now.context_tokens > pool else "text")
    rows = [titled("sessions", (legend,), width), tuple(head_words(SESSION_COLUMNS))]
    for row in now.rows[: height - 2]:
        role = "text" if row.open else "waiting" if row.waits else "dim"
        rows.append(tuple(cell_words(SESSION_COLUMNS, [row], role)))
    return rows
