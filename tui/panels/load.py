"""The load: what is wanted, what is held, and the keys that change it; in a narrow terminal, server and client too."""

from __future__ import annotations

import textwrap

from loadgen import format as fmt
from tui.panels.frame import Frame
from tui.panels.health import client_strip, server_strip
from tui.widgets.paint import Row, Rows, Word, bar, cropped, spread, titled, width_of

_HINT_CELLS = 18
_ROOMY = 8  # with so many rows there is one for more than the load
_STRIP_FROM = 60  # from this width on the panel is a strip across a narrow terminal


def load(view: Frame, width: int, height: int) -> Rows:
    """As many rows as the height allows, the keys last."""
    if width >= _STRIP_FROM:
        state = _state(view)
        needs = cropped(_beside(_needs(view)), width - width_of(state) - len("load "))
        return [titled("load", (*needs, *state), width), _strip(view, width), server_strip(view), client_strip(view)]
    roomy, told = height >= _ROOMY, _needs(view)
    rows = [
        titled("load", _state(view) if roomy or not told else told[0][:1], width),
        spread(((f" {view.wanted.unit}", "text"),), _value(view), width - 1),
        spread((), _held(view), width - 1),
        ((" ", "text"), *bar(_share(view), width - 2, "held")),
        _stage_row(view, width),
    ]
    lines = [line for need in told for line in _wrapped(need, width)] if roomy else []
    return [*rows[: max(3, height)], *lines[: height - len(rows)], *_hints(view)[len(lines) :]]


def _needs(view: Frame) -> list[Row]:
    """What the running stage still waits for or takes to be known, and the streams that it has from before."""
    stage = view.stage
    if stage is None or not stage.running:
        return []
    if stage.waits_for:
        return [((stage.waits_for, "warn"),)]
    found: list[Row] = []
    if stage.e2e_needs_s:
        row: Row = ((f"E2E needs {stage.e2e_needs_s:.0f} s more", "warn"),)
        asks = view.steers and view.snapshot.load.stage_progress is not None
        found.append((*row, (": ", "text"), view.key("extend")) if asks else row)
    if stage.slo_needs:
        found.append(((fmt.plain(stage.slo_needs), "dim"),))
    if stage.carried_in:
        found.append(((f"{fmt.count(stage.carried_in)} carried in", "dim"),))
    return found


def _beside(needs: list[Row]) -> Row:
    """All of them in one row, with a gap before what comes next."""
    return tuple(word for need in needs for word in (*need, ("  ", "text")))


def _wrapped(need: Row, width: int) -> Rows:
    """One in rows of its own; what does not fit into one row is all of one role."""
    if sum(len(text) for text, _ in need) < width:
        return [((" ", "text"), *need)]
    text, role = "".join(text for text, _ in need), need[0][1]
    return [((f" {line}", role),) for line in textwrap.wrap(text, max(10, width - 2))]


def _hints(view: Frame) -> Rows:
    """The keys of who may use them, two in a row."""
    double, half, pause, forward = (view.key(id) for id in ("double", "half", "pause", "next"))
    match view.operator:
        case "watcher":
            return []
        case "player":
            return [_hint((double, half), "speed") + _hint((pause,), "pause"), _hint((forward,), "step")]
        case _:
            return [
                _hint((view.key("more"), view.key("less")), "one") + _hint((double, half), "double, half"),
                _hint((view.key("number"),), "number") + _hint((pause,), "pause"),
                _hint((forward,), "next") + _hint((view.key("note"),), "note"),
            ]


def _hint(keys: Row, what: str) -> Row:
    names = " ".join(name for name, _ in keys)
    return ((f" {names:<4}", "key"), (f"{f' {what}':<{_HINT_CELLS - 5}}", "dim"))


def notice(view: Frame, width: int, height: int) -> Rows:
    """The line above the keys when the operator should know something; no row otherwise."""
    row = _notice(view)
    return [((" ", "text"), *cropped(row, width - 2))] if row else []


def _notice(view: Frame) -> Row:
    leave = view.key("leave")
    if view.done:
        return (("run done  ", "strong"), *_result(view), ("   ", "text"), leave, (" leaves", "text"))
    if view.operator == "player":
        return ()
    if view.ending == "abort":
        return (("aborting: ", "warn"), ("streams are cut, what was measured is kept", "text"))
    if view.ending == "stop" or view.snapshot.phase == "stopping":
        again: Row = (("  ctrl+c", "key"), (" again aborts", "text")) if view.operator == "owner" else ()
        return (("finishing: the result is being kept", "warn"), *again)
    choice = _choice(view)
    if not choice or not view.steers:
        return choice[:1]
    leaves = " finishes" if view.snapshot.phase == "holding" and view.operator == "owner" else " leaves"
    return (*choice, leave, (leaves, "text"))


def _choice(view: Frame) -> Row:
    """What the run waits for, then the keys that decide; empty where it waits for nobody."""
    match view.snapshot.phase:
        case "blocked":
            anyway = view.key("start_anyway")
            return (("the start would fail", "bad"), (": ", "text"), anyway, (" starts all the same, ", "text"))
        case "failed":
            restart = view.key("restart")
            return (("there is no server", "bad"), (": ", "text"), restart, (" starts it again, ", "text"))
        case "holding":
            keys = " ".join(view.key(id)[0] for id in ("more", "less", "double", "half", "number"))
            held: Word = ("the plan is done, the server is up", "warn")
            return (held, (": ", "text"), (keys, "key"), (" go on with load, ", "text"))
        case _:
            return ()


def _result(view: Frame) -> Row:
    path = view.snapshot.result_path
    return (("no result was written", "bad"),) if path is None else ((fmt.plain(path), "text"),)


def _state(view: Frame) -> Row:
    if view.snapshot.replay is not None:
        return (("REPLAY", "warn"),)
    if view.wanted.paused:
        return (("PAUSED", "warn"),)
    if view.snapshot.phase == "holding":
        return (("plan done", "warn"),)
    if view.snapshot.load.held_open:
        return (("held open", "warn"),)
    return (("by hand", "dim"),) if view.snapshot.load.manual else (("by plan", "dim"),)


def _value(view: Frame) -> Row:
    sign: Word = (" ?", "dim") if view.wanted.unconfirmed else ("  ", "dim")
    return ((f"{fmt.setting(view.wanted.value):>5}", "strong"), sign)


def _held(view: Frame) -> Row:
    load = view.snapshot.load
    waiting: Word = (f"{fmt.count(load.queued):>5}  ", "warn" if load.queued else "text")
    return (("held ", "dim"), (f"{fmt.count(load.held):>5}", "held"), ("   waiting ", "dim"), waiting)


def _share(view: Frame) -> float | None:
    """How much of what is wanted is there: streams in closed loop, requests a second in open loop."""
    wanted = view.wanted.value
    got = view.snapshot.point.requests_per_s if view.wanted.open_loop else view.snapshot.load.held
    return got / wanted if wanted and got is not None else None


def _stage_row(view: Frame, width: int) -> Row:
    load = view.snapshot.load
    elapsed = f"{fmt.duration(load.stage_elapsed_s):>7}  "
    left: Row = ((" stage  ", "text"),)
    if load.stage_progress is None:
        return spread(left, ((elapsed, "text"),), width - 1)
    room = max(0, width - 2 - 8 - len(elapsed))
    return (*left, *bar(load.stage_progress, room, "text"), (elapsed, "text"))


def _strip(view: Frame, width: int) -> Row:
    unit = "rate/s" if view.wanted.open_loop else "conc"
    left = ((f" {unit} ", "dim"), *_value(view), *_held(view))
    stage = ((f"stage {fmt.duration(view.snapshot.load.stage_elapsed_s):>6} ", "dim"),)
    room = max(0, width - sum(len(text) for text, _ in (*left, *stage)) - 4)
    return spread((*left, *bar(_share(view), room, "held")), stage, width - 1)
