"""Cockpit: the Textual app over a run: it follows the run and holds theme, palette and Ctrl+C; the screen is the rest.

A worker posts snapshots, one message replaces the last; handlers alone touch widgets.

The app never ends a run by leaving: it calls `stop` or `abort`, keeps drawing until the run is over, and whoever opened
it closes the run. Nothing is written to the terminal after it was restored.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.worker import Worker, WorkerState

from loadgen.metrics.snapshot import Snapshot
from loadgen.run import Run
from tui import keys
from tui.screen import CockpitScreen
from tui.theme import COCKPIT, SERIES
from tui.view import RunControl

_AGE_CHECK_S = 0.5


class SnapshotArrived(Message):
    """The only message from the run; a newer one replaces one that was not yet drawn."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        """Only the newest state is worth drawing."""
        return isinstance(message, SnapshotArrived)


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
        self._run_control = run
        self._cockpit = CockpitScreen(run)
        self.failure: BaseException | None = None
        """What broke the feed of snapshots, for whoever opened the cockpit."""
        self.register_theme(COCKPIT)
        self.theme = COCKPIT.name

    def on_mount(self) -> None:
        """Begin to follow the run."""
        self.set_interval(_AGE_CHECK_S, self._cockpit.check_age)
        self._follow()

    @work(exclusive=True, exit_on_error=False, group="feed")
    async def _follow(self) -> None:
        async for snapshot in self._run_control.snapshots():
            self.post_message(SnapshotArrived(snapshot))

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        """Draw it; the last one may be what the operator waits for to leave."""
        self._cockpit.take(message.snapshot)
        if self._cockpit.leaving and self._cockpit.over:
            self.exit()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """The feed is over, or broke; a broken one leaves nothing to show."""
        if event.worker.group != "feed" or event.state not in (WorkerState.SUCCESS, WorkerState.ERROR):
            return
        self.failure = event.worker.error
        if self.failure is not None or self._cockpit.leaving:
            self.exit()
        self._cockpit.finish()

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


async def open_cockpit(run: Run) -> bool:
    """Show a run until the operator leaves, and end it in order; True if a signal ended it.

    A closed terminal or a dropped connection (SIGHUP) and SIGTERM finish the run and keep its result. Raises what broke
    the feed of snapshots, once the run is closed.
    """
    cockpit = Cockpit(run)
    interrupted = False

    def hang_up() -> None:
        nonlocal interrupted
        interrupted = True
        run.stop()
        cockpit.exit()

    for number in (signal.SIGHUP, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, hang_up)
    try:
        await cockpit.run_async()
    finally:
        await run.close()
    if cockpit.failure is not None:
        raise cockpit.failure
    return interrupted
