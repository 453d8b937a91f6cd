"""Modal dialogs: a load, a line of text, a choice, whether to leave, the help.

Esc closes each of them without changing anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, Literal, TypeVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from loadgen import format as fmt
from loadgen.errors import ProfileError, VrampError
from loadgen.masking import masked_text
from loadgen.profile.document import build_profile
from loadgen.schema.snapshot import ServerView
from loadgen.server.vllm.client import ServerClient, api_key, pick_model
from tui import keys
from tui.config import keymap_of
from tui.screens.pending_load import MAX_CONCURRENCY, MAX_RATE
from tui.widgets.rows import ROLE_CLASSES, Row, Rows, hanging
from tui.widgets.rows_widgets import Pane

_MAX_LENGTH = 10_000_000
Leave = Literal["stop", "abort"]
Answer = TypeVar("Answer")


def ask(screen: Screen[Any], dialog: Screen[Answer | None], then: Callable[[Answer], object]) -> None:
    """Show a dialog, and call `then` with its answer, if there is one."""

    def answered(answer: Answer | None) -> None:
        if answer is not None:
            then(answer)

    screen.app.push_screen(dialog, answered)


def drop_outdated(app: App[Any], event: Resize) -> None:
    """Run before Textual's handler, which answers each size with an event of that size: two would never end."""
    if event.size != app.size:
        event.prevent_default()


class Dialog(ModalScreen[Answer]):
    """A modal screen with the keys of a dialog."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.DIALOG)

    def on_resize(self, event: Resize) -> None:
        drop_outdated(self.app, event)


class AskText(Dialog[Answer | None], Generic[Answer]):
    """Asks for a line of text, and accepts it once it can be parsed."""

    HINT: ClassVar[str] = "Enter sets it"

    def __init__(self, question: str, parse: Callable[[str], Answer], text: str = "", **field: object) -> None:
        """Take a `parse` that raises `VrampError` with a short message; `field` is passed to the `Input`."""
        super().__init__()
        self._question, self._parse = question, parse
        self._field: dict[str, Any] = {"value": text, "max_length": 200} | field

    def compose(self) -> ComposeResult:
        """Compose the question, the field and, unless every text is accepted, room for a complaint."""
        with Vertical(classes="dialog"):
            yield Static(fmt.harmless(self._question), markup=False, classes="question")
            yield Input(**self._field)
            if self._parse is not str:
                hint = f"{self.HINT}, {keys.key_of('dialog.back', keymap_of(self.app))} cancels"
                yield Static(hint, markup=False, id="complaint")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.submit(event.value.strip())

    def submit(self, text: str) -> None:
        """Accept the text if it can be parsed, else show what is wrong with it."""
        try:
            self.dismiss(self._parse(text))
        except VrampError as error:
            self.complain(f"! {error}")

    def complain(self, words: str) -> None:
        self.query_one("#complaint", Static).update(Text(fmt.plain(masked_text(words))))


def ask_load(what: str, *, open_loop: bool) -> AskText[float]:
    """Return the dialog for a load's `number`, or for the other kind of `loop`."""
    names = ("Rate", "Concurrency") if what == "number" else ("Open loop", "Closed loop")
    question = f"{names[0]}: requests a second" if open_loop else f"{names[1]}: streams held open"
    return AskText(question, partial(_parse_load, open_loop=open_loop), max_length=12)


def _parse_load(text: str, *, open_loop: bool) -> float:
    expected, most = ("a number above 0", MAX_RATE) if open_loop else ("a whole number from 0", MAX_CONCURRENCY)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most or (not value if open_loop else not value.is_integer()):
        raise ProfileError(f"{expected} up to {most:,.0f}")
    return value


def parse_shape(text: str) -> tuple[int, int]:
    """Parse `4096/1024`, the tokens of a prompt and of its answer; raises `ProfileError`."""
    isl, _, osl = text.partition("/")
    if not (isl.strip().isdecimal() and osl.strip().isdecimal()):
        raise ProfileError("two whole numbers, such as 4096/1024")
    shape = int(isl), int(osl)
    if not all(0 < length <= _MAX_LENGTH for length in shape):
        raise ProfileError(f"from 1 up to {_MAX_LENGTH:,} tokens each")
    return shape


class AskUrl(AskText[str]):
    """Asks for the URL of a server, and accepts it once the server has named its model."""

    HINT = "Enter asks for its model"

    def __init__(self, profile: str, *, api_key_env: str | None) -> None:
        question = f"Attach to a running server, with the load of {profile}"
        super().__init__(question, str.strip, placeholder="http://127.0.0.1:8000", max_length=400)
        self._api_key_env = api_key_env

    def submit(self, text: str) -> None:
        self.complain("asking for its model …")
        self._ask(text if "://" in text or not text else f"http://{text}")

    @work(exclusive=True)
    async def _ask(self, url: str) -> None:
        settings = {"engine": "attach", "url": url, "api_key_env": self._api_key_env}
        try:
            server = build_profile({"server": settings}, where="URL").server
            async with ServerClient(server.url or url, api_key(server), api_key_env=server.api_key_env) as client:
                model = pick_model(await client.models())
        except VrampError as error:
            self.complain(f"! {error}")
        else:
            self.app.notify(f"{url} serves {fmt.plain(model.id)}", timeout=5)
            self.dismiss(url)


class AskChoice(Dialog[Answer | None], Generic[Answer]):
    """Asks for one of a few choices, each after its key if it has one; None stands for the harmless one."""

    def __init__(self, question: str, choices: Sequence[tuple[Answer | None, str]]) -> None:
        super().__init__()
        self._question, self._choices = question, choices

    def compose(self) -> ComposeResult:
        own = [binding for binding in self.BINDINGS if isinstance(binding, Binding) and binding not in keys.DIALOG]
        pressed = {binding.action: f"{keys.written(binding, keymap_of(self.app))}  " for binding in own}
        choices = [pressed.get(f"dismiss({answer!r})", "") + words for answer, words in self._choices]
        with Vertical(classes="dialog"):
            yield Static(fmt.harmless(self._question), markup=False, classes="question")
            yield OptionList(*[Option(Text(fmt.plain(words))) for words in choices])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._choices[event.option_index][0])


def _listed(parts: Iterable[str | Literal[False]]) -> str:
    return ", ".join(part for part in parts if part)


class AskLeave(AskChoice[Leave]):
    """Asks how to end what goes on."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.LEAVE)


def ask_leave(server: ServerView, *, open_streams: int) -> AskLeave:
    """Return the dialog for a live run: only a server that vramp started is ended, and only a load that there is."""
    sends = open_streams > 0
    ends_server = server.is_own and not server.stays
    finish = (sends and "end the load", ends_server and "stop the server", "write the result")
    abort = (sends and "cut streams", server.is_own and "kill the server", "write what there is")
    choices: list[tuple[Leave | None, str]] = [("stop", f"finish and keep: {_listed(finish)}")]
    if sends or server.is_own:
        choices.append(("abort", f"abort now: {_listed(abort)}"))
    question = "A run is live"
    if server.state == "ready" and not ends_server:
        question += f"; the server at {server.url} goes on when vramp has left"
    return AskLeave(question, [*choices, (None, "go on")])


class AskOrphans(AskChoice[Literal["end"]]):
    """Asks what to do about servers whose vramp and guard were both killed."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.ORPHANS)

    def __init__(self, left: Sequence[str]) -> None:
        lines = ["A vramp that was killed together with its guard has left this behind:", *left]
        choices: tuple[tuple[Literal["end"] | None, str], ...] = (
            ("end", "end it: kill its processes, remove its container"),
            (None, "go on: it keeps running, and takes memory and time from the server to be measured"),
        )
        super().__init__("\n".join(lines), choices)


class Help(Dialog[None]):
    """Every key and what it does."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.HELP)
    COMPONENT_CLASSES: ClassVar[set[str]] = set(ROLE_CLASSES)

    def __init__(self, rows: Sequence[tuple[str, str, str]]) -> None:
        super().__init__()
        self._rows = rows

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog help"):
            yield Static("Keys", markup=False, classes="question")
            yield Pane(id="help-keys")

    def on_mount(self) -> None:
        self.query_one(Pane).show(self._table)

    def _table(self, width: int) -> Rows:
        pressed, name = (max(len(row[column]) for row in self._rows) for column in (0, 1))
        rows: Rows = []
        for keys_of, description, what in self._rows:
            head: Row = ((f"{keys_of:>{pressed}}", "key"), (f"  {description:<{name}}  ", "strong"))
            rows += hanging(head, what, width, "text")
        return rows
