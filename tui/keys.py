"""Every key and every view, declared once: for the screens, the help, the palette, the key bars and the config file.

Each binding has an id, by which the operator can rebind it, and a tooltip that says what it does in a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, key_to_character

Operator = Literal["owner", "guest", "watcher", "player"]
"""The operator's role: runs it, steers the run of another process, only watches that, or replays a run."""


class Page(NamedTuple):
    """A view of the cockpit."""

    key: str
    name: str
    what: str  # for help and palette


OVERVIEW = "overview"
PAGES = (
    Page("1", OVERVIEW, "Charts, percentiles, stages and verdicts on one screen"),
    Page("2", "curve", "The load curve: TTFT, time per token and tok/s against the streams held"),
    Page("3", "latency", "Every percentile of this stage over the one before it"),
    Page("4", "gpus", "Each GPU with its history"),
    Page("5", "engine", "Queue, KV cache, tokens, prefix hits and preemptions over time"),
    Page("6", "log", "The server's log: scroll, / filter, ctrl+f search, f follow"),
    Page("7", "errors", "Failures with their messages and what to do"),
    Page("8", "events", "All that happened, and your notes"),
    Page("9", "verdicts", "The limit, what is wrong, and the preflight's findings"),
    Page("i", "details", "All about one verdict, stage or GPU; a click on one shows it too"),
    Page("d", "results", "The results of the run, once it is done"),
    Page("a", "sessions", "Live sessions: pauses, contexts, and prefix hits next to what a cache could hold"),
)
_NUMBERED = 9
"""How many of them have a digit as their key."""


def _bindings(group: str, *rows: tuple[str, str, str, str, str]) -> tuple[Binding, ...]:
    return tuple(Binding(key, action, name, tooltip=what, id=f"{group}.{id}") for id, key, action, name, what in rows)


COCKPIT = _bindings(
    "cockpit",
    ("more", "+", "step(1)", "one more", "Hold one more stream; in open loop, 10 % more req/s"),
    ("more_too", "=,up", "step(1)", "one more", "The same as +"),
    ("less", "-", "step(-1)", "one less", "Hold one stream less; in open loop, 10 % less req/s"),
    ("less_too", "down", "step(-1)", "one less", "The same as -"),
    ("double", "]", "scale(2.0)", "double", "Double the load"),
    ("half", "[", "scale(0.5)", "half", "Halve the load"),
    ("number", "n", "steer('number')", "number", "Type the load as a number"),
    ("no_load", "0", "no_load", "no load", "Stop sending; other clients' traffic is still watched"),
    ("pause", "space", "pause", "pause", "Pause or resume the load"),
    ("next", ".", "next_stage", "next", "End this stage and begin the plan's next"),
    ("extend", "e", "apply('Extend')", "extend", "Extend this stage until E2E is known, or else by its own length"),
    ("redo", "u", "apply('Redo')", "redo", "Repeat this stage of the plan, or the last one that is done"),
    ("loop", "o", "steer('loop')", "open, closed", "Switch between streams held and requests a second"),
    ("shape", "s", "steer('shape')", "shape", "Type the input and output tokens of a request: 4096/1024"),
    ("plan", "r", "steer('plan')", "ladder, ramp", "Begin a ladder (8, 16, 32) or a ramp (64 in 60s, 4 to 24 in 15s)"),
    ("search", "k", "steer('search')", "search", "Search from here for the knee, or the most within the limits"),
    ("hold", "h", "apply('Hold')", "hold", "Hold this stage open; . or e ends that"),
    ("restart", "R", "steer('restart')", "restart", "Restart the server, or a variant of it; asks"),
    ("evidence", "E", "apply('TakeEvidence')", "evidence", "Write down all that can be seen of the server now"),
    ("note", "m", "note", "note", "Put a note on the time axis and into the result"),
    ("window", "w", "window", "window", "Charts: whole run, last minute, 5 minutes, 30 minutes"),
    ("start_anyway", "x", "start_anyway", "start anyway", "Start even if the preflight says that it will fail"),
    ("filter", "/", "filter", "filter", "Show only log lines with a text; in view events, only events"),
    *((page.name, page.key, f"show('{page.name}')", page.name, page.what) for page in PAGES),
    ("full", "z", "full", "full screen", "Show the view full screen, and back; so does its own key"),
    ("back", "escape", "back", "back", "Close a dialog, a large panel or a view; never quits"),
    ("other", "tab", "other(1)", "next item", "View details: the next verdict, stage or GPU"),
    ("other_back", "shift+tab", "other(-1)", "item before", "View details: the one before"),
    ("metric", "t", "metric", "metric", "Views curve and latency: TTFT, TPOT, ITL, E2E; curve: the frontier"),
    ("copy", "y", "copy", "copy", "Copy the table of the view as Markdown, over ssh too (OSC 52)"),
    ("to_picker", "b", "app.to_picker", "list", "Back to the list it was chosen from, once the run is over"),
    ("leave", "q", "leave", "quit", "Leave; asks while a run is live"),
    ("help", "?", "help", "help", "This list"),
)
STEERING = frozenset({"step", "scale", "no_load", "pause", "next_stage", "apply", "steer", "note", "start_anyway"})
"""Actions that change the run, which a read-only watcher may not use."""

LOG = _bindings(
    "log",
    ("up", "up", "scroll(-1)", "up", "In the log: a line up"),
    ("down", "down", "scroll(1)", "down", "In the log: a line down"),
    ("page_up", "pageup", "page(-1)", "page up", "In the log: a screenful up"),
    ("page_down", "pagedown", "page(1)", "page down", "In the log: a screenful down"),
    ("begin", "home", "scroll(-1000000)", "begin", "In the log: to its first line"),
    ("follow", "end,f", "follow", "follow", "In the log: to its last line, and stay there"),
    ("search", "ctrl+f", "search", "search", "In the log: find a text"),
    ("above", "<", "find(-1)", "above", "In the log: the next match above"),
    ("below", ">", "find(1)", "below", "In the log: the next match below"),
)
PICKER = _bindings(
    "picker",
    ("start", "enter", "choose", "start", "Start the profile under the cursor, like a double click"),
    ("variant", "v", "variant", "variant", "Choose the variant to start"),
    ("attach", "u", "attach", "attach", "Send its load to a running server; asks for the URL"),
    ("edit", "e", "edit", "edit", "Edit a copy of it, checked as you type"),
    ("past", "p", "past", "past runs", "Earlier runs: replay one, recover one that was killed"),
    ("filter", "/", "filter", "filter", "Show only profiles with a text in their name or model"),
    ("look_again", "r", "read", "look again", "Read the profiles and check this box again"),
    ("clear", "escape", "clear", "clear", "Clear the filter; never quits"),
    ("leave", "q", "leave", "quit", "Leave vramp"),
    ("help", "?", "help", "help", "This list"),
)
PAST = _bindings(
    "past",
    ("open", "enter", "choose", "replay", "Replay the run; watch one that is live"),
    ("recover", "c", "recover", "recover", "Recover the result of a killed run from its journal"),
    ("copy", "y", "copy", "copy commands", "Copy the commands for this run"),
    ("trend", "t", "trend", "trend", "Another figure for the trend over the runs of its profile"),
    ("filter", "/", "filter", "filter", "Show only runs with a text in profile, model, box or version"),
    ("back", "escape,b", "back", "back", "Back to the profiles"),
    ("leave", "q", "leave", "quit", "Leave vramp"),
    ("help", "?", "help", "help", "This list"),
)
ACCEPT = _bindings(
    "accept",
    ("watch", "enter", "choose", "watch", "The cockpit of the run that goes on; q comes back"),
    ("leave", "q", "leave", "quit", "Leave; asks while the acceptance is not over"),
    ("help", "?", "help", "help", "This list"),
)
EDITOR = _bindings(
    "editor",
    ("save", "ctrl+s", "save", "save as", "Save under a name; a shipped profile is never overwritten"),
    ("start", "ctrl+r", "start", "start", "Start it as it stands here, saved or not"),
    ("back", "escape", "back", "back", "Back to the profiles; asks if something is not saved"),
    ("help", "f1", "help", "help", "This list"),
)
DIALOG = _bindings("dialog", ("back", "escape", "dismiss(None)", "back", "Close without changing anything"))
LEAVE = DIALOG + _bindings(
    "leave",
    ("stop", "f", "dismiss('stop')", "finish and keep", "End the run, keep the result"),
    ("abort", "a", "dismiss('abort')", "abort now", "End the run at once"),
    ("go_on", "g", "dismiss(None)", "go on", "Back to the run"),
)
ORPHANS = DIALOG + _bindings(
    "orphans",
    ("end", "e", "dismiss('end')", "end them", "End what an earlier run has left behind"),
    ("go_on", "g", "dismiss(None)", "go on", "Leave it running, and go on"),
)
HELP = DIALOG + _bindings("help", ("back", "question_mark,q", "dismiss(None)", "back", "Close the help"))

GROUPS = (LOG + COCKPIT, PICKER, PAST, ACCEPT, EDITOR, DIALOG, LEAVE, ORPHANS, HELP)
"""The bindings that are live together and can be rebound; those in `FIXED` cannot."""

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
"""Keys that cannot be given to another action, whatever has the focus, and what they do."""


class Hint(NamedTuple):
    """Keys with their label, for a key bar."""

    keys: tuple[tuple[str, str], ...]  # each as it is written on the keyboard, and its action
    label: str
    role: str = "dim"


_OWN_HINTS: Mapping[Operator, Sequence[tuple[str, str]]] = {
    "player": (("double half", "faster, slower"), ("pause", "pause"), ("next", "step")),
    "watcher": (),
}
"""The ids of keys with their labels, the most needed first."""
_LOAD_HINTS = (("more less", "one"), ("double half", "x2, /2"), *((id, id) for id in ("number", "pause", "next")))
_LEAVE_HINTS = (("leave", "quit"), ("help", "help"))
_OTHER_HINTS = (("window", "window"), ("full", "full screen"), *((id, id) for id in ("metric", "copy", "filter")))
_BY_ID = {str(binding.id): binding for group in GROUPS for binding in group}


def cockpit_hints(
    operator: Operator, page: str, keymap: Mapping[str, str], height: int, *, has_server: bool = True
) -> list[list[Hint]]:
    """Return the rows of the key bar: the views, on their own row if there are two, and the keys that apply here."""

    def hint(ids: str, label: str, role: str = "dim") -> Hint:
        bindings = [_BY_ID[f"cockpit.{id}"] for id in ids.split()]
        return Hint(tuple((written(binding, keymap), binding.action) for binding in bindings), label, role)

    note = [hint("note", "note"), *([hint("no_load", "no load")] if has_server else [])]
    note = note if operator in ("owner", "guest") else []
    views = [hint(each.name, each.name, "strong" if each.name == page else "dim") for each in PAGES]
    own = [hint(*item) for item in _OWN_HINTS.get(operator, _LOAD_HINTS if has_server else ())]
    leave = [hint(*item) for item in _LEAVE_HINTS]
    rest = [Hint(((PALETTE.key, PALETTE.action),), PALETTE.description), *(hint(*item) for item in _OTHER_HINTS)]
    if height < 2:
        (first, *_, last), *others = (each.keys[0][0] for each in views[:_NUMBERED]), *views[_NUMBERED:]
        named = f"{first}-{last} {''.join(each.keys[0][0] for each in others)}"
        return [[*own, Hint(((named, ""),), "views"), *leave, *note, *rest]]
    return [views, [*own, *note, *leave, *rest]]


def hints(bindings: Sequence[Binding], keymap: Mapping[str, str]) -> list[Hint]:
    """Return the key bar of a screen outside a run, without the keys that are listed in the help alone."""
    reported = [binding for binding in bindings if binding.id not in ("picker.clear", "picker.look_again")]
    return [Hint(((written(binding, keymap), binding.action),), binding.description) for binding in reported]


def table(bindings: Sequence[Binding], keymap: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return key, name and meaning of each binding, for the help; `keymap` has the rebound keys by id."""
    return [(" ".join(_all_written(binding, keymap)), binding.description, binding.tooltip) for binding in bindings]


def key_of(id: str, keymap: Mapping[str, str]) -> str:
    """Return the key of an action, such as `cockpit.leave`, for use in a sentence."""
    return written(_BY_ID[id], keymap)


def written(binding: Binding, keymap: Mapping[str, str]) -> str:
    """Return the first key of a binding, as it is written on the keyboard."""
    return _all_written(binding, keymap)[0]


def _all_written(binding: Binding, keymap: Mapping[str, str]) -> list[str]:
    """Return a binding's keys as they are written: `+` for `plus`, or the name of one that has no character."""
    found = []
    for name in map(str.strip, keymap.get(binding.id or "", binding.key).split(",")):
        character = key_to_character(_LONG_NAMES.get(name, name)) or ""
        found.append(character if character.isprintable() and character.strip() else name)
    return found


_LONG_NAMES = {short: long for long, short in KEY_NAME_REPLACEMENTS.items()}
