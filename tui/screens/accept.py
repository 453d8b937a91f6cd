"""The screen of an acceptance: its phases and criteria, and all about the one under the cursor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message

from loadgen.run.operations import Abort, Operation, Stop
from loadgen.schema.accept_view import AcceptView
from tui import keys
from tui.config import keymap_of
from tui.panels import accept as panel
from tui.screens.base import ListScreen
from tui.screens.dialogs import AskLeave, Leave
from tui.widgets.rows import Rows
from tui.widgets.rows_widgets import Pane, blank


class AcceptScreen(ListScreen):
    """Phases and criteria on the left; on the right, all about the one under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.ACCEPT)
    HELP_KEYS = (*keys.ACCEPT, keys.PALETTE, keys.INTERRUPT)

    @dataclass
    class Watch(Message):
        """The operator wants to see the run that goes on."""

        folder: Path

    def __init__(self, folder: Path, states: AsyncIterator[AcceptView], apply: Callable[[Operation], None]) -> None:
        """Take the acceptance's folder, its states, which carry it out as they are drawn, and what can end it."""
        super().__init__()
        self._folder, self._states = folder, states
        self.end = apply
        self._interrupts = 0
        self.view: AcceptView | None = None
        self.leaving = False  # exit as soon as it is over

    def on_mount(self) -> None:
        self.query_one("#rows-head", Pane).show(lambda width: [panel.head(self.list.row_width)])
        self._draw()

    def on_screen_resume(self) -> None:
        self._draw()

    async def carry_out(self) -> None:
        """Carry the acceptance out; raises `VrampError` if it cannot go on."""
        async for view in self._states:
            self.view = view
            self._draw()

    def _draw(self) -> None:
        """Draw the present state, unless another screen is above this one or the app has ended."""
        view = self.view
        if view is not None and self.app.is_running and self.is_mounted and self.is_current:
            self.query_one("#picker-header", Pane).show(lambda width: [panel.header(view, width)])
            self.fill()

    def fill(self) -> None:
        if self.view is not None and self.is_mounted:
            self.fill_list([*panel.rows(self.view, self.list.row_width)])

    def show_detail(self) -> None:
        self.query_one("#picker-detail", Pane).show(blank if self.view is None else partial(self._detail, self.view))

    def _detail(self, view: AcceptView, width: int) -> Rows:
        name, certificate = self.list.highlighted_id, view.certificate
        phase = next((each for each in certificate.phases if each.name == name), None)
        if phase is not None:
            return panel.phase_detail(view, phase, width, keymap_of(self.app))
        number = int(name.removeprefix("criterion ")) if name is not None else -1
        found = certificate.criteria[number : number + 1] if number >= 0 else ()
        return [row for criterion in found for row in panel.criterion_detail(criterion, width)]

    # What the keys do.

    def action_choose(self) -> None:
        if self.view is not None and self.view.run:
            self.post_message(self.Watch(self._folder / self.view.run))
        else:
            self.notify("No run goes on", timeout=3)

    def action_leave(self) -> None:
        """Leave at once if it is over, else ask."""
        if self.over:
            self.app.exit()
            return
        choices: list[tuple[Leave | None, str]] = [
            ("stop", "finish and keep: end the present run, judge what was measured"),
            ("abort", "abort now: end it at once, judge what was measured"),
            (None, "go on"),
        ]
        question = f"The acceptance is not over; --resume {self._folder} can go on later"
        self.app.push_screen(AskLeave(question, choices), self._leave)

    def interrupt(self) -> None:
        """Handle Ctrl+C: finish first, then abort, then leave whatever goes on."""
        self._interrupts += 1
        if self.over or self._interrupts > 2:
            self.app.exit()
        else:
            self._leave("stop" if self._interrupts == 1 else "abort")

    def _leave(self, how: Leave | None) -> None:
        if how is None:
            return
        self.leaving = True
        if self.over:
            self.app.exit()
        self.end(Stop() if how == "stop" else Abort())

    @property
    def over(self) -> bool:
        """Whether there is nothing left to end."""
        return self.view is not None and self.view.over
