"""Every key of the picker, the list of past runs and the editor; those of the cockpit are in `tui.keys`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.binding import Binding

from tui.keys import PALETTE, described, written
from tui.widgets.painted import Hint


def _key(key: str, action: str, name: str, what: str, *, id: str) -> Binding:
    return Binding(key, action, name, tooltip=what, id=id)


PICKER = (
    _key("enter", "start", "start", "Start the profile under the cursor, like a double click", id="picker.start"),
    _key("v", "variant", "variant", "Choose as which of its variants it starts", id="picker.variant"),
    _key("u", "attach", "attach", "Its load on a server that is already running: asks for the URL", id="picker.attach"),
    _key("e", "edit", "edit", "Edit a copy of it, checked as you type", id="picker.edit"),
    _key("p", "past", "past runs", "Runs that were: see one again, recover one that was killed", id="picker.past"),
    _key("/", "filter", "filter", "Show only profiles with a text in their name or model", id="picker.filter"),
    _key("r", "look_again", "look again", "Read the profiles and check this box anew", id="picker.look_again"),
    _key("escape", "clear", "clear", "Take the filter away; never quits", id="picker.clear"),
    _key("q", "leave", "quit", "Leave vramp", id="picker.leave"),
    _key("?", "help", "help", "This list", id="picker.help"),
)
PAST = (
    _key(
        "enter",
        "open",
        "replay",
        "See the run again; watch one that goes on",
        id="past.open",
    ),
    _key("c", "recover", "recover", "Make the result of a run that was killed from its journal", id="past.recover"),
    _key("y", "copy", "copy commands", "Copy the commands that go on from this run", id="past.copy"),
    _key("escape,b", "back", "back", "Back to the profiles", id="past.back"),
    _key("q", "leave", "quit", "Leave vramp", id="past.leave"),
    _key("?", "help", "help", "This list", id="past.help"),
)
EDITOR = (
    _key("ctrl+s", "save", "save as", "Save under a name; a shipped profile is never overwritten", id="editor.save"),
    _key("ctrl+r", "start", "start", "Start it as it stands here, saved or not", id="editor.start"),
    _key("escape", "back", "back", "Back to the profiles; asks where something is not saved", id="editor.back"),
    _key("f1", "help", "help", "This list", id="editor.help"),
)

_UNTOLD = ("picker.clear", "picker.look_again")


def table(bindings: Sequence[Binding], keymap: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Key, name and meaning, for the help."""
    return [described(binding, keymap) for binding in (*bindings, PALETTE)]


def hints(bindings: Sequence[Binding], keymap: Mapping[str, str]) -> list[Hint]:
    """The last row: what can be guessed is left to the help."""
    told = [binding for binding in (*bindings, PALETTE) if binding.id not in _UNTOLD]
    return [Hint(((written(binding, keymap), binding.action),), binding.description) for binding in told]
