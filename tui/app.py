"""Cockpit: the Textual app over a run. It holds the theme, the palette and Ctrl+C; the rest is the screen's.

The app never ends a run by leaving: it calls `stop` or `abort`, keeps drawing until the run is over, and whoever opened
it closes the run. Nothing is written to the terminal after it was restored.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from tui import keys
from tui.screen import CockpitScreen
from tui.theme import COCKPIT, SERIES
from tui.view import RunControl


class Cockpit(App[None]):
    """Draws a run, and hands the operator the load."""

    TITLE = "vramp"
    CSS_PATH = "app.tcss"
    ALLOW_SELECT = False
    # Textual declares these two in a way that mypy reads as instance variables.
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-narrow"), (116, "-medium"), (150, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-short"), (38, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "ctrl+c",
            "interrupt",
            "finish",
            show=False,
            priority=True,
            id="app.interrupt",
            tooltip="End the run and keep the result; twice: abort now",
        ),
    ]

    def __init__(self, run: RunControl) -> None:
        super().__init__()
        self._cockpit = CockpitScreen(run)
        self.register_theme(COCKPIT)
        self.theme = COCKPIT.name

    @property
    def failure(self) -> BaseException | None:
        """What broke the feed of snapshots, None if nothing did."""
        return self._cockpit.failure

    def get_default_screen(self) -> Screen[None]:
        """The only screen below the dialogs."""
        return self._cockpit

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The colours of the series, under every theme."""
        return SERIES

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette: the same actions as the keys; no way out that does not ask."""
        for binding in keys.ACTIONS:
            if not binding.id or binding.id.endswith("_too"):
                continue
            run = partial(self._cockpit.run_action, binding.action)
            yield SystemCommand(f"{binding.description} ({binding.key})", binding.tooltip, run)
        yield SystemCommand("theme", "Change the colours", self.action_change_theme)
        yield SystemCommand("screenshot", "Keep the screen as an SVG file", self.deliver_screenshot)

    async def action_quit(self) -> None:
        """Ctrl+Q asks like q."""
        self._cockpit.action_leave()

    def action_interrupt(self) -> None:
        """Ctrl+C, whatever has the focus."""
        self._cockpit.interrupt()
