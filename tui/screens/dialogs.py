"""Modal questions: a number, a line of text, a choice, whether to leave, and the help.

Esc leaves each of them with nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, Literal, TypeVar

from rich.table import Table
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from loadgen import format as fmt
from loadgen.errors import VrampError
from loadgen.profile.document import build_profile
from loadgen.server.vllm.client import ServerClient, api_key, pick_model
from tui import keys

Leave = Literal["stop", "abort"]


class AskNumber(ModalScreen[float | None]):
    """A load setting, checked before it is accepted."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.DIALOG)

    def __init__(self, question: str, *, most: float, whole: bool) -> None:
        super().__init__()
        self._question, self._most, self._whole = question, most, whole

    def compose(self) -> ComposeResult:
        """The question, the field and room for a complaint."""
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False, classes="question")
            yield Input(type="integer" if self._whole else "number", max_length=9)
            yield Static("Enter sets it, Esc leaves it", markup=False, id="complaint")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Accept a number in range, else say what would be."""
        value = _number(event.value)
        if value is not None and 0 < value <= self._most:
            self.dismiss(value)
            return
        least = "from 1" if self._whole else "above 0"
        self.query_one("#complaint", Static).update(f"! a number {least} up to {self._most:.0f}")


class AskText(ModalScreen[str | None]):
    """A line of text; nothing typed is an empty one."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.DIALOG)

    def __init__(self, question: str, text: str = "") -> None:
        super().__init__()
        self._question, self._text = question, text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False, classes="question")
            yield Input(self._text, max_length=200)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


Parsed = TypeVar("Parsed")


class AskParsed(ModalScreen[Parsed | None], Generic[Parsed]):
    """A line of text with a meaning, taken once it has one."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.DIALOG)

    def __init__(self, question: str, parse: Callable[[str], Parsed], text: str = "") -> None:
        """`parse` raises `VrampError` with what is wrong, in a few words."""
        super().__init__()
        self._question, self._parse, self._text = question, parse, text

    def compose(self) -> ComposeResult:
        """The question, the field and room for a complaint."""
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False, classes="question")
            yield Input(self._text, max_length=200)
            yield Static("Enter sets it, Esc leaves it", markup=False, id="complaint")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Accept what has a meaning, else say what is wrong with it."""
        try:
            parsed = self._parse(event.value.strip())
        except VrampError as error:
            self.query_one("#complaint", Static).update(f"! {fmt.plain(str(error))}")
            return
        self.dismiss(parsed)


class AskChoice(ModalScreen[str | None]):
    """One of a few things; the first is the harmless one, or all are."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.DIALOG)

    def __init__(self, question: str, choices: Sequence[tuple[str, str]]) -> None:
        """`choices` are values with the words for them."""
        super().__init__()
        self._question, self._choices = question, choices

    def compose(self) -> ComposeResult:
        """The question and a line for each."""
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False, classes="question")
            yield OptionList(*[Option(Text(fmt.plain(words))) for _, words in self._choices])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._choices[event.option_index][0])


class AskUrl(ModalScreen[str | None]):
    """Where a server runs; it is asked what it serves before it is accepted."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.DIALOG)

    def __init__(self, profile: str, *, api_key_env: str | None) -> None:
        """`profile` names whose load will be sent."""
        super().__init__()
        self._profile = profile
        self._api_key_env = api_key_env

    def compose(self) -> ComposeResult:
        """The question, the field and room for what is the matter."""
        with Vertical(classes="dialog"):
            question = f"Attach to a running server, with the load of {self._profile}"
            yield Static(question, markup=False, classes="question")
            yield Input(placeholder="http://127.0.0.1:8000", max_length=400)
            yield Static("Enter asks it for its model, Esc leaves", markup=False, id="complaint")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Look at it, and then at the server."""
        self._say("asking for its model …")
        self._ask(event.value.strip())

    @work(exclusive=True)
    async def _ask(self, text: str) -> None:
        url = text if "://" in text or not text else f"http://{text}"
        try:
            await self._model(url)
        except VrampError as error:
            self._say(f"! {error}")
        else:
            self.dismiss(url)

    async def _model(self, url: str) -> None:
        """Raises `ProfileError` for what is no URL, `ServerError` for what is no server."""
        settings = {"engine": "attach", "url": url, "api_key_env": self._api_key_env}
        server = build_profile({"server": settings}, where="URL").server
        async with ServerClient(server.url or url, api_key(server), api_key_env=server.api_key_env) as client:
            model = pick_model(await client.models(), None)
        self.app.notify(f"{url} serves {fmt.plain(model.id)}", timeout=5, markup=False)

    def _say(self, words: str) -> None:
        self.query_one("#complaint", Static).update(Text(fmt.plain(words)))


class AskLeave(ModalScreen[Leave | None]):
    """Asked once before a live run is ended."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.LEAVE)
    _CHOICES: ClassVar[tuple[tuple[str, Leave | None], ...]] = (
        ("f  finish and keep: end the load, stop the server, write the result", "stop"),
        ("a  abort now: cut streams, kill the server, write what there is", "abort"),
        ("g  go on", None),
    )

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("A run is live", markup=False, classes="question")
            yield OptionList(*[Option(Text(text)) for text, _ in self._CHOICES])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._CHOICES[event.option_index][1])


class Help(ModalScreen[None]):
    """Every key and what it does."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.HELP)

    def __init__(self, rows: Sequence[tuple[str, str, str]]) -> None:
        super().__init__()
        self._rows = rows

    def compose(self) -> ComposeResult:
        """A table that scrolls where it must."""
        with VerticalScroll(classes="dialog help"):
            yield Static("Keys", markup=False, classes="question")
            yield Static(self._table())

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", style="bold", no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column()
        for row in self._rows:
            table.add_row(*[Text(cell) for cell in row])
        return table


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
