"""Every key of the cockpit: one list for the screen, the help and the palette.

Each has an id, by which a keymap can move it, and a tooltip that says what it does in a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.binding import Binding, BindingType

from tui.panels.frame import Operator, key_written
from tui.screens.log import LOG
from tui.screens.pages import BY_NAME, PAGES
from tui.widgets.painted import Hint


def _key(key: str, action: str, name: str, what: str, *, id: str) -> Binding:
    return Binding(key, action, name, tooltip=what, id=f"cockpit.{id}")


ACTIONS = (
    _key(
        "+",
        "step(1)",
        "one more",
        "Hold one more stream; in open loop 10 % more a second",
        id="more",
    ),
    _key("=,up", "step(1)", "one more", "The same as +", id="more_too"),
    _key(
        "-",
        "step(-1)",
        "one less",
        "Hold one stream less; in open loop 10 % less a second",
        id="less",
    ),
    _key("down", "step(-1)", "one less", "The same as -", id="less_too"),
    _key("]", "scale(2.0)", "double", "Double the load", id="double"),
    _key("[", "scale(0.5)", "half", "Halve the load", id="half"),
    _key("n", "number", "number", "Type the load as a number", id="number"),
    _key("space", "pause", "pause", "Pause the load, or go on", id="pause"),
    _key(".", "next_stage", "next", "End this stage and begin the plan's next", id="next"),
    _key(
        "e",
        "extend",
        "extend",
        "Let this stage go on until it knows E2E, or else for its length once more",
        id="extend",
    ),
    _key("u", "redo", "redo", "Measure this stage of the plan again, or the last one that is done", id="redo"),
    _key("o", "steer('loop')", "open, closed", "From streams held to requests a second, or back", id="loop"),
    _key("s", "steer('shape')", "shape", "Type the input and output tokens of a request: 4096/1024", id="shape"),
    _key("r", "steer('plan')", "ladder, ramp", "Begin a ladder (8, 16, 32) or a ramp (64 in 60s) from here", id="plan"),
    _key("k", "steer('search')", "search", "Search from here for the knee, or for what meets the limits", id="search"),
    _key("h", "steer('hold')", "hold", "Let this stage go on without an end; . or e ends that", id="hold"),
    _key("R", "steer('restart')", "restart", "Start the server again, as a variant too; asks", id="restart"),
    _key("m", "note", "note", "Put a remark on the time axis and in the result", id="note"),
    _key("w", "window", "window", "Charts: whole run, last minute, 5 minutes, 30 minutes", id="window"),
    _key("x", "start_anyway", "start anyway", "Start although the preflight says that it will fail", id="start_anyway"),
    _key("/", "filter", "filter", "Show only lines of the log with a text; in their view, events", id="filter"),
    *(_key(page.key, f"show('{page.name}')", page.name, page.what, id=page.name) for page in PAGES),
    _key("z", "full", "full screen", "The view over the whole screen, and back; its own key does it too", id="full"),
    _key("escape", "back", "back", "Close a dialog, a large panel or a view; never quits", id="back"),
    _key("t", "metric", "metric", "Views curve and latency: TTFT, TPOT, ITL, E2E", id="metric"),
    _key("y", "copy", "copy", "Copy the table of the view as Markdown, through the terminal too", id="copy"),
    _key("b", "app.to_picker", "list", "Back to the list that it was chosen from, once it is over", id="to_picker"),
    _key("q", "leave", "quit", "Leave; asks while a run is live", id="leave"),
    _key("?", "help", "help", "This list", id="help"),
)
"""In the order of the help."""

COCKPIT: list[BindingType] = list(ACTIONS)

STEERING = frozenset(
    {"step", "scale", "number", "pause", "next_stage", "extend", "redo", "steer", "note", "start_anyway"},
)
"""Names of the actions that change the run: not for a watcher who may only look."""

PALETTE = Binding("ctrl+p", "app.command_palette", "palette", tooltip="The same actions by name, and themes")
_INTERRUPT = Binding("ctrl+c", "app.interrupt", "finish", tooltip="End the run and keep the result; twice: abort now")

_LOAD = (
    (("more", "less"), "one"),
    (("double", "half"), "x2, /2"),
    (("number",), "number"),
    (("pause",), "pause"),
    (("next",), "next"),
)
_REPLAY = ((("double", "half"), "faster, slower"), (("pause",), "pause"), (("next",), "step"))
_LEAVE = ((("leave",), "quit"), (("help",), "help"))
_REST = (
    (("window",), "window"),
    (("full",), "full screen"),
    (("metric",), "metric"),
    (("copy",), "copy"),
    (("filter",), "filter"),
)
"""What the last row shows by their ids, the most needed first."""


def hints(operator: Operator, page: str, keymap: Mapping[str, str], height: int) -> list[list[Hint]]:
    """The rows of the key bar: the views where they have one of their own, and the keys that do something here."""

    def hint(ids: Sequence[str], label: str, role: str = "dim") -> Hint:
        bindings = [_BY_ID[f"cockpit.{id}"] for id in ids]
        return Hint(tuple((written(binding, keymap), binding.action) for binding in bindings), label, role)

    own = {"player": _REPLAY, "watcher": ()}.get(operator, _LOAD)
    note = [hint(["note"], "note")] if operator in ("owner", "guest") else []
    views = [hint([name], name, "strong" if name == page else "dim") for name in BY_NAME]
    first, last = views[0].keys[0][0], views[-1].keys[0][0]
    below = [hint(*item) for item in own]
    leave = [hint(*item) for item in _LEAVE]
    rest = [Hint(((PALETTE.key, PALETTE.action),), PALETTE.description), *[hint(*item) for item in _REST]]
    if height < 2:
        return [[*below, Hint(((f"{first}-{last}", ""),), "views"), *leave, *note, *rest]]
    return [views, [*below, *note, *leave, *rest]]


_BY_ID = {binding.id: binding for binding in ACTIONS}


def table(keymap: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Key, name and meaning of everything; `keymap` has the keys that the operator has moved, by id."""
    return [described(binding, keymap) for binding in (*ACTIONS, *LOG, PALETTE, _INTERRUPT)]


def described(binding: Binding, keymap: Mapping[str, str]) -> tuple[str, str, str]:
    return " ".join(_all_written(binding, keymap)), binding.description, binding.tooltip


def key_of(id: str, keymap: Mapping[str, str]) -> str:
    """The key of an action of the cockpit, for a sentence."""
    return written(_BY_ID[f"cockpit.{id}"], keymap)


def written(binding: Binding, keymap: Mapping[str, str]) -> str:
    """The first key of an action, as it is written on the keyboard."""
    return _all_written(binding, keymap)[0]


def _all_written(binding: Binding, keymap: Mapping[str, str]) -> list[str]:
    names = keymap.get(binding.id or "", binding.key).split(",")
    return [key_written(name.strip()) for name in names]
