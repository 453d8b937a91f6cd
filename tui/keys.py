"""Every key and every view, declared once: for the screens, the help, the palette, the key bars and the config file.

Each binding has an id, by which the operator can move it, and a tooltip that says what it does in a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, key_to_character

Operator = Literal["owner", "guest", "watcher", "player"]
"""Who looks at a run: whose it is; who may steer somebody else's; who may only look at it; who plays it again."""


class Page(NamedTuple):
    """A view of the cockpit."""

    key: str
    name: str
    what: str  # for help and palette


OVERVIEW = "overview"
PAGES = (
    Page("1", OVERVIEW, "Charts, percentiles, stages and what is the matter, on one screen"),
    Page("2", "curve", "The load curve: TTFT, time per token and tok/s against the streams held"),
    Page("3", "latency", "Every percentile of this stage over the one before it"),
    Page("4", "gpus", "Each GPU with its history"),
    Page("5", "engine", "Queue, KV cache, tokens, prefix hits and preemptions over time"),
    Page("6", "log", "The server's log: scroll, / filter, ctrl+f search, f follow"),
    Page("7", "errors", "Failures with their messages and what to do"),
    Page("8", "events", "All that happened, and your notes"),
    Page("9", "verdicts", "What is the limit, what is wrong, and what the preflight found"),
    Page("i", "details", "All about one verdict, stage or GPU; a click on one shows it too"),
    Page("d", "results", "The results of the run, once it is done"),
)
_NUMBERED = 9
"""So many of them have a digit as their key."""


def _bindings(group: str, *rows: tuple[str, str, str, str, str]) -> tuple[Binding, ...]:
    return tuple(Binding(key, action, name, tooltip=what, id=f"{group}.{id}") for id, key, action, name, what in rows)


COCKPIT = _bindings(
    "cockpit",
    ("more", "+", "step(1)", "one more", "Hold one more stream; in open loop 10 % more a second"),
    ("more_too", "=,up", "step(1)", "one more", "The same as +"),
    ("less", "-", "step(-1)", "one less", "Hold one stream less; in open loop 10 % less a second"),
    ("less_too", "down", "step(-1)", "one less", "The same as -"),
    ("double", "]", "scale(2.0)", "double", "Double the load"),
    ("half", "[", "scale(0.5)", "half", "Halve the load"),
    ("number", "n", "number", "number", "Type the load as a number"),
    ("no_load", "0", "no_load", "no load", "Send nothing more; what others send is watched as before"),
    ("pause", "space", "pause", "pause", "Pause the load, or go on"),
    ("next", ".", "next_stage", "next", "End this stage and begin the plan's next"),
    (
        "extend",
        "e",
        "ask('Extend')",
        "extend",
        "Let this stage go on until it knows E2E, or else for its length once more",
    ),
    ("redo", "u", "ask('Redo')", "redo", "Measure this stage of the plan again, or the last one that is done"),
    ("loop", "o", "steer('loop')", "open, closed", "From streams held to requests a second, or back"),
    ("shape", "s", "steer('shape')", "shape", "Type the input and output tokens of a request: 4096/1024"),
    ("plan", "r", "steer('plan')", "ladder, ramp", "Begin a ladder (8, 16, 32) or a ramp (64 in 60s) from here"),
    ("search", "k", "steer('search')", "search", "Search from here for the knee, or for what meets the limits"),
    ("hold", "h", "ask('Hold')", "hold", "Let this stage go on without an end; . or e ends that"),
    ("restart", "R", "steer('restart')", "restart", "Start the server again, as a variant too; asks"),
    ("note", "m", "note", "note", "Put a remark on the time axis and in the result"),
    ("window", "w", "window", "window", "Charts: whole run, last minute, 5 minutes, 30 minutes"),
    ("start_anyway", "x", "start_anyway", "start anyway", "Start although the preflight says that it will fail"),
    ("filter", "/", "filter", "filter", "Show only lines of the log with a text; in their view, events"),
    *((page.name, page.key, f"show('{page.name}')", page.name, page.what) for page in PAGES),
    ("full", "z", "full", "full screen", "The view over the whole screen, and back; its own key does it too"),
    ("back", "escape", "back", "back", "Close a dialog, a large panel or a view; never quits"),
    ("other", "tab", "other(1)", "next item", "View details: the next verdict, stage or GPU"),
    ("other_back", "shift+tab", "other(-1)", "item before", "View details: the one before"),
    ("metric", "t", "metric", "metric", "Views curve and latency: TTFT, TPOT, ITL, E2E; curve: the frontier"),
    ("copy", "y", "copy", "copy", "Copy the table of the view as Markdown, through the terminal too"),
    ("to_picker", "b", "app.to_picker", "list", "Back to the list that it was chosen from, once it is over"),
    ("leave", "q", "leave", "quit", "Leave; asks while a run is live"),
    ("help", "?", "help", "help", "This list"),
)
STEERING = frozenset(
    {"step", "scale", "number", "no_load", "pause", "next_stage", "ask", "steer", "note", "start_anyway"}
)
"""Actions that change the run: not for a watcher who may only look."""

LOG = _bindings(
    "log",
    ("up", "up", "scroll(-1)", "up", "In the log: a line up"),
    ("down", "down", "scroll(1)", "down", "In the log: a line down"),
    ("page_up", "pageup", "page(-1)", "page up", "In the log: a screenful up"),
    ("page_down", "pagedown", "page(1)", "page down", "In the log: a screenful down"),
    ("begin", "home", "scroll(-1000000)", "begin", "In the log: to its first line"),
    ("follow", "end,f", "follow", "follow", "In the log: to its last line, and stay there"),
    ("search", "ctrl+f", "search", "search", "In the log: find a text"),
    ("above", "<", "find(-1)", "above", "In the log: the text once more, above"),
    ("below", ">", "find(1)", "below", "In the log: the text once more, below"),
)
PICKER = _bindings(
    "picker",
    ("start", "enter", "start", "start", "Start the profile under the cursor, like a double click"),
    ("variant", "v", "variant", "variant", "Choose as which of its variants it starts"),
    ("attach", "u", "attach", "attach", "Its load on a server that is already running: asks for the URL"),
    ("edit", "e", "edit", "edit", "Edit a copy of it, checked as you type"),
    ("past", "p", "past", "past runs", "Earlier runs: replay one, recover one that was killed"),
    ("filter", "/", "filter", "filter", "Show only profiles with a text in their name or model"),
    ("look_again", "r", "look_again", "look again", "Read the profiles and check this box anew"),
    ("clear", "escape", "clear", "clear", "Take the filter away; never quits"),
    ("leave", "q", "leave", "quit", "Leave vramp"),
    ("help", "?", "help", "help", "This list"),
)
PAST = _bindings(
    "past",
    ("open", "enter", "open", "replay", "Replay the run; watch one that goes on"),
    ("recover", "c", "recover", "recover", "Make the result of a run that was killed from its journal"),
    ("copy", "y", "copy", "copy commands", "Copy the commands that go on from this run"),
    ("back", "escape,b", "back", "back", "Back to the profiles"),
    ("leave", "q", "leave", "quit", "Leave vramp"),
    ("help", "?", "help", "help", "This list"),
)
EDITOR = _bindings(
    "editor",
    ("save", "ctrl+s", "save", "save as", "Save under a name; a shipped profile is never overwritten"),
    ("start", "ctrl+r", "start", "start", "Start it as it stands here, saved or not"),
    ("back", "escape", "back", "back", "Back to the profiles; asks where something is not saved"),
    ("help", "f1", "help", "help", "This list"),
)
DIALOG = _bindings("dialog", ("back", "escape", "dismiss(None)", "back", "Close without changing anything"))
LEAVE = DIALOG + _bindings(
    "leave",
    ("stop", "f", "dismiss('stop')", "finish and keep", "End the load, keep the result"),
    ("abort", "a", "dismiss('abort')", "abort now", "Cut streams, kill the server"),
    ("go_on", "g", "dismiss(None)", "go on", "Back to the run"),
)
ORPHANS = DIALOG + _bindings(
    "orphans",
    ("end", "e", "dismiss('end')", "end them", "End what an earlier run has left behind"),
    ("go_on", "g", "dismiss(None)", "go on", "Leave it running, and go on"),
)
HELP = DIALOG + _bindings("help", ("back", "question_mark,q", "dismiss(None)", "back", "Close the help"))

GROUPS = (LOG + COCKPIT, PICKER, PAST, EDITOR, DIALOG, LEAVE, ORPHANS, HELP)
"""The bindings that are live together, and can be moved; those in `FIXED` stay."""

INTERRUPT = Binding(
    "ctrl+c",
    "interrupt",
    "finish",
    show=False,
    priority=True,
    id="app.interrupt",
    tooltip="End the run and keep the result; twice: abort now",
)
PALETTE = Binding("ctrl+p", "app.command_palette", "palette", tooltip="The same actions by name, and themes")
FIXED: Mapping[str, str] = {each.key: each.description for each in (INTERRUPT, PALETTE)} | {"ctrl+q": "quit"}
"""Keys that no other action gets, whatever has the focus, and what they do."""


class Hint(NamedTuple):
    """Keys with the words for them, for a key bar."""

    keys: tuple[tuple[str, str], ...]  # each as it is written on the keyboard, and its action
    label: str
    role: str = "dim"


_OWN_HINTS: Mapping[Operator, Sequence[tuple[str, str]]] = {
    "player": (("double half", "faster, slower"), ("pause", "pause"), ("next", "step")),
    "watcher": (),
}
"""The ids of keys with the words for them, the most needed first."""
_LOAD_HINTS = (("more less", "one"), ("double half", "x2, /2"), *((id, id) for id in ("number", "pause", "next")))
_LEAVE_HINTS = (("leave", "quit"), ("help", "help"))
_OTHER_HINTS = (("window", "window"), ("full", "full screen"), *((id, id) for id in ("metric", "copy", "filter")))
_BY_ID = {str(binding.id): binding for binding in COCKPIT}


def cockpit_hints(operator: Operator, page: str, keymap: Mapping[str, str], height: int) -> list[list[Hint]]:
    """The rows of the key bar: the views where they have one of their own, and the keys that do something here."""

    def hint(ids: str, label: str, role: str = "dim") -> Hint:
        bindings = [_BY_ID[f"cockpit.{id}"] for id in ids.split()]
        return Hint(tuple((written(binding, keymap), binding.action) for binding in bindings), label, role)

    note = [hint("note", "note"), hint("no_load", "no load")] if operator in ("owner", "guest") else []
    views = [hint(each.name, each.name, "strong" if each.name == page else "dim") for each in PAGES]
    own = [hint(*item) for item in _OWN_HINTS.get(operator, _LOAD_HINTS)]
    leave = [hint(*item) for item in _LEAVE_HINTS]
    rest = [Hint(((PALETTE.key, PALETTE.action),), PALETTE.description), *(hint(*item) for item in _OTHER_HINTS)]
    if height < 2:
        (first, *_, last), *others = (each.keys[0][0] for each in views[:_NUMBERED]), *views[_NUMBERED:]
        named = " ".join((f"{first}-{last}", *(each.keys[0][0] for each in others)))
        return [[*own, Hint(((named, ""),), "views"), *leave, *note, *rest]]
    return [views, [*own, *note, *leave, *rest]]


def hints(bindings: Sequence[Binding], keymap: Mapping[str, str]) -> list[Hint]:
    """The key bar of a screen before the run: what can be guessed is left to the help."""
    told = [binding for binding in bindings if binding.id not in ("picker.clear", "picker.look_again")]
    return [Hint(((written(binding, keymap), binding.action),), binding.description) for binding in told]


def table(bindings: Sequence[Binding], keymap: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Key, name and meaning, for the help; `keymap` has the keys that the operator has moved, by id."""
    return [(" ".join(_all_written(binding, keymap)), binding.description, binding.tooltip) for binding in bindings]


def key_of(id: str, keymap: Mapping[str, str]) -> str:
    """The key of an action of the cockpit, for a sentence."""
    return written(_BY_ID[f"cockpit.{id}"], keymap)


def written(binding: Binding, keymap: Mapping[str, str]) -> str:
    """The first key of an action, as it is written on the keyboard."""
    return _all_written(binding, keymap)[0]


def _all_written(binding: Binding, keymap: Mapping[str, str]) -> list[str]:
    return [_key_written(name.strip()) for name in keymap.get(binding.id or "", binding.key).split(",")]


_LONG_NAMES = {short: long for long, short in KEY_NAME_REPLACEMENTS.items()}


def _key_written(name: str) -> str:
    """A key as it is written on the keyboard: `+` for `plus`; one without a character by its name."""
    character = key_to_character(_LONG_NAMES.get(name, name))
    return character if character is not None and character.isprintable() and not character.isspace() else name
