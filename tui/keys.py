"""Every key of the cockpit: one list for the screen, the help and the palette.

Each has an id, by which a keymap can move it, and a tooltip that says what it does in a sentence.
"""

from __future__ import annotations

from textual.binding import Binding, BindingType


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
    _key("e", "extend", "extend", "Let this stage go on for its length once more", id="extend"),
    _key("u", "redo", "redo", "Measure this stage of the plan again, or the last one that is done", id="redo"),
    _key("m", "note", "note", "Put a remark on the time axis and in the result", id="note"),
    _key("w", "window", "window", "Charts: whole run, last minute, 5 minutes, 30 minutes", id="window"),
    _key("c", "findings", "preflight", "What the preflight found, in the charts' place, and back", id="findings"),
    _key("x", "start_anyway", "start anyway", "Start although the preflight says that it will fail", id="start_anyway"),
    _key("l", "log", "log", "The server's log in the charts' place, and back", id="log"),
    _key("/", "filter", "filter", "Show only lines of the log with a text", id="filter"),
    _key("1", "zoom(1)", "throughput", "Throughput over the whole screen, and back", id="zoom_throughput"),
    _key("2", "zoom(2)", "TTFT", "Time to first token over the whole screen, and back", id="zoom_ttft"),
    _key("3", "zoom(3)", "TPOT", "Time per output token over the whole screen, and back", id="zoom_tpot"),
    _key(
        "4",
        "zoom(4)",
        "streams",
        "Streams held, running and waiting over the whole screen, and back",
        id="zoom_streams",
    ),
    _key("5", "zoom(5)", "latency", "The percentiles over the whole screen, and back", id="zoom_latency"),
    _key("6", "zoom(6)", "stages", "The load curve over the whole screen, and back", id="zoom_stages"),
    _key("7", "zoom(7)", "server log", "The server's log over the whole screen, and back", id="zoom_log"),
    _key("8", "zoom(8)", "GPUs", "The GPUs over the whole screen, and back", id="zoom_gpus"),
    _key(
        "9",
        "zoom(9)",
        "verdicts",
        "What is wrong and what is the limit over the whole screen, and back",
        id="zoom_verdicts",
    ),
    _key("q", "leave", "quit", "Leave; asks while a run is live", id="leave"),
    _key("?", "help", "help", "This list", id="help"),
)
"""In the order of the help."""

COCKPIT: list[BindingType] = list(ACTIONS)

BAR = (
    (("+", "-"), "one"),
    (("]", "["), "double, half"),
    (("n",), "number"),
    (("space",), "pause"),
    ((".",), "next"),
    (("m",), "note"),
    (("q",), "quit"),
    (("?",), "help"),
    (("ctrl+p",), "palette"),
    (("w",), "window"),
    (("l",), "log"),
    (("c",), "preflight"),
    (("1-9",), "enlarge"),
)
"""What the last row shows, the most needed first."""

ACTION_OF = {binding.key: binding.action for binding in ACTIONS} | {"ctrl+p": "app.command_palette"}

_ELSEWHERE = (
    ("Esc", "back", "Close a dialog or a large panel; never quits"),
    ("ctrl+p", "palette", "The same actions by name, and themes"),
    ("ctrl+c", "finish", "End the run and keep the result; twice: abort now"),
)


def table() -> list[tuple[str, str, str]]:
    """Key, name and meaning of everything."""
    rows = [(binding.key.replace(",", " "), binding.description, binding.tooltip) for binding in ACTIONS]
    return [*rows, *_ELSEWHERE]
