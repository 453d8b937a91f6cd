"""The picker's own question: where a server runs that shall be attached to. Esc leaves it with nothing changed."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from loadgen import format as fmt
from loadgen.errors import VrampError
from loadgen.profile import build_profile
from loadgen.server.vllm.client import ServerClient, api_key, pick_model
from tui.screens.dialogs import BACK


class AskUrl(ModalScreen[str | None]):
    """Where a server runs; it is asked what it serves before it is accepted."""

    BINDINGS: ClassVar[list[BindingType]] = [BACK]

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
