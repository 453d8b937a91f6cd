"""The Textual app: opens on the picker or on a run, and holds what all screens share.

It follows the run on screen: a worker posts snapshots, each message replaces the one before, and only handlers touch
widgets. Leaving never cuts a run short: the app stops or aborts it, draws until it is over, and closes each run that it
started before the next begins. Nothing is written to the terminal after it has been restored.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.screen import Screen
from textual.worker import Worker, WorkerFailed, WorkerState

from loadgen.errors import VrampError
from loadgen.format import harmless
from loadgen.masking import masked_text
from loadgen.run.operations import Abort, Stop
from loadgen.run.remote import RemoteRun
from loadgen.run.replay import Replay
from loadgen.run.run import Run
from loadgen.schema.snapshot import Snapshot
from loadgen.server.process.guard_client import stop_server
from loadgen.server.process.records import ServerRecord, orphan_words
from loadgen.store.journal import JOURNAL
from loadgen.system import map_large_blocks
from tui.catalog import StartChoice
from tui.config import DEFAULTS, Config
from tui.exhausted import give_up_where_callbacks_fail
from tui.keys import INTERRUPT, key_of
from tui.panels.frame import RunControl
from tui.screens.base import FullScreen
from tui.screens.cockpit import CockpitScreen
from tui.screens.dialogs import AskOrphans
from tui.terminal import CONSOLE_GLYPHS, NonBlockingWriter, shows_all_glyphs, usable_size
from tui.theme import COCKPIT, COCKPIT_OF_16, SERIES, SERIES_OF_16

if TYPE_CHECKING:
    from tui.screens.accept import AcceptScreen
    from tui.screens.past_runs import PastScreen
    from tui.screens.picker import PickerScreen

_AGE_CHECK_S = 0.5
MAX_TOASTS = 3
_OVER = (WorkerState.SUCCESS, WorkerState.ERROR)
MakeRun = Callable[[StartChoice], Run]  # turns the operator's choice into a run; raises `VrampError`


@dataclass
class SnapshotArrived(Message):
    """The only message from a run; a newer one replaces one that was not yet drawn."""

    screen: CockpitScreen
    snapshot: Snapshot

    def can_replace(self, message: Message) -> bool:
        """Only the newest state is worth drawing."""
        return isinstance(message, SnapshotArrived) and message.screen is self.screen


class CaughtUp(Message):
    """The terminal has caught up after writes were dropped, and must be redrawn."""


class TerminalDriver(LinuxDriver):
    """A driver whose writes never wait for the terminal."""

    _writer: NonBlockingWriter | None = None

    def __init__(self, app: App[Any], *, size: tuple[int, int] | None = None, **options: bool) -> None:
        """Take Textual's options; without a size, the first frame has the terminal's."""
        super().__init__(app, size=size or usable_size(*shutil.get_terminal_size()), **options)

    def start_application_mode(self) -> None:
        """Take over the terminal, or redraw it if it is already taken."""
        if self._writer is not None:  # a SIGCONT without a stop before it: tmux sends them
            self._caught_up()
            return
        # The stream that Textual writes to; its own writer thread also starts, but is given nothing to write.
        assert sys.__stderr__ is not None
        # As the kernel does for a session leader when its terminal closes; we may not be the leader.
        hang_up = partial(signal.raise_signal, signal.SIGHUP)
        self._writer = NonBlockingWriter(sys.__stderr__, caught_up=self._caught_up, gone=hang_up)
        super().start_application_mode()  # type: ignore[no-untyped-call]  # Textual gave it no types

    def write(self, data: str) -> None:
        if self._writer is not None:
            self._writer.write(data if shows_all_glyphs() else data.translate(CONSOLE_GLYPHS))

    def close(self) -> None:
        """Leave the terminal after the last output, if the terminal still takes it."""
        super().close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _caught_up(self) -> None:
        self.send_message(CaughtUp())


class Cockpit(App[None]):
    """The app: shows runs, and lets the operator steer their load."""

    TITLE = "vramp"
    CSS_PATH = "app.tcss"
    ALLOW_SELECT = False
    # Textual declares these two in a way that mypy reads as instance variables.
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-narrow"), (116, "-medium"), (150, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-short"), (38, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [INTERRUPT]

    def __init__(
        self,
        screen: CockpitScreen | AcceptScreen | None = None,
        *,
        make_run: MakeRun | None = None,
        api_key_env: str | None = None,
        orphans: Sequence[ServerRecord] = (),
        config: Config = DEFAULTS,
    ) -> None:
        """Open on `screen`, or without one on the picker, whose choice `make_run` turns into a run.

        First the operator is asked what to do about `orphans`, servers left behind by earlier vramps. The acceptance of
        an `AcceptScreen` is carried out.
        """
        super().__init__()
        self._make_run = make_run
        self._api_key_env = api_key_env
        self._orphans = orphans
        self.config = config
        self._toasts: dict[str, float] = {}  # the messages on the screen, and until when
        self._run_screen = screen if isinstance(screen, CockpitScreen) else None  # of the run on display
        self._feed: Worker[None] | None = None
        self._accept_screen = None if isinstance(screen, CockpitScreen) else screen
        self._accepting: asyncio.Task[None] | None = None
        self.runs: list[Run] = []  # those started here; only the last may be live
        if self._run_screen is not None and isinstance(self._run_screen.control, Run):
            self.runs.append(self._run_screen.control)
        self.failure: BaseException | None = None  # what broke the feed or the screen, for the caller to raise
        self.register_theme(COCKPIT_OF_16 if self._few_colours else COCKPIT)
        self.theme = config.theme
        self.set_keymap(config.keys)

    def on_mount(self) -> None:
        self.set_interval(_AGE_CHECK_S, self._check_age)
        self.call_after_refresh(gc.freeze)  # the widgets and their styles are permanent, too
        if self._accept_screen is not None:
            self._accepting = asyncio.create_task(self._accept_screen.carry_out())
            self._accepting.add_done_callback(self._accepted)
        elif self._orphans:
            self._settle_orphans()
        elif self._run_screen is not None:
            self._feed = self._follow(self._run_screen)

    @work(group="orphans")
    async def _settle_orphans(self) -> None:
        if await self.push_screen_wait(AskOrphans([orphan_words(record) for record in self._orphans])) is not None:
            self.notify("ending leftovers; a container may take a while", timeout=8)
            await asyncio.gather(*(self._end_orphan(record) for record in self._orphans))
        if self._run_screen is not None:
            self._feed = self._follow(self._run_screen)

    async def _end_orphan(self, record: ServerRecord) -> None:
        try:
            report = await stop_server(record, timeout_s=0.0)
        except VrampError as error:
            self.notify(str(error), severity="error", timeout=8)
        else:
            severity = "information" if report.clean else "error"
            self.notify(f"port {record.port}: {report.sentence}", severity=severity, timeout=8)

    def get_default_screen(self) -> Screen[None]:
        if self._run_screen is not None:
            return self._run_screen
        if self._accept_screen is not None:
            return self._accept_screen
        from tui.screens.picker import PickerScreen  # brings the editor, which is not needed if a profile was named

        return PickerScreen(api_key_env=self._api_key_env)

    # The terminal.

    def get_driver_class(self) -> type[Driver]:
        """Return our driver, unless `vramp web` or a test chose another."""
        wanted = super().get_driver_class()
        return TerminalDriver if wanted is LinuxDriver else wanted

    def on_resize(self, event: Resize) -> None:
        """Run before Textual's handler: whatever the terminal reports, what is drawn fits into memory."""
        event.size = Size(*usable_size(*event.size))

    def notify(self, message: str, *, timeout: float | None = None, **options: Any) -> None:  # noqa: ANN401 - passed on
        """Show a message as plain text without secrets, unless it is on the screen; too many make room for it."""
        text, now_s = harmless(masked_text(message)), monotonic()
        self._toasts = {shown: until_s for shown, until_s in self._toasts.items() if until_s > now_s}
        if text in self._toasts:
            return
        if len(self._toasts) >= MAX_TOASTS:
            self.clear_notifications()
        self._toasts[text] = now_s + (self.NOTIFICATION_TIMEOUT if timeout is None else timeout)
        super().notify(text, timeout=timeout, **options | {"markup": False})

    def clear_notifications(self) -> None:
        self._toasts.clear()
        super().clear_notifications()

    def on_caught_up(self) -> None:
        self.screen.refresh()

    def _handle_exception(self, error: Exception) -> None:
        """Leave the error to the caller of `open_cockpit`."""
        # The one override of a private method: Textual's traceback shows all locals, API keys included.
        super()._handle_exception(error)
        self._exit_renderables.clear()
        self.failure = self.failure or (error.error if isinstance(error, WorkerFailed) else error)
        for run in self.runs:
            run.fail(f"the cockpit broke: {type(self.failure).__name__}")

    # The run on display.

    @work(exclusive=True, exit_on_error=False, group="feed")
    async def _follow(self, screen: CockpitScreen) -> None:
        async for snapshot in screen.control.snapshots():
            screen.gather(snapshot)
            self.post_message(SnapshotArrived(screen, snapshot))

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        """Draw the snapshot; exit if it is the last one and the operator is leaving."""
        if message.screen is not self._run_screen:
            return
        message.screen.show(message.snapshot)
        if message.screen.leaving and message.screen.over:
            self.exit()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Handle the end of the feed: the run is over, or the feed broke and there is nothing left to show."""
        screen, error = self._run_screen, event.worker.error
        if event.worker is not self._feed or screen is None or event.state not in _OVER:
            return
        if isinstance(error, VrampError) and screen.control not in self.runs and len(self.screen_stack) > 1:
            self._complain("Cannot be shown", error)
            self._leave_run(screen)
            return
        self.failure = self.failure or error
        if self.failure is not None or screen.leaving:
            self.exit()
        screen.finish()
        if len(self.screen_stack) > 1:
            back, leave = (key_of(f"cockpit.{id}", self.config.keys) for id in ("to_picker", "leave"))
            self.notify(f"Run over: {back} goes back, {leave} leaves", timeout=8)

    def _check_age(self) -> None:
        if self._run_screen is not None:
            self._run_screen.check_age()

    # From the picker to a run, and back.

    def on_picker_screen_start(self, message: PickerScreen.Start) -> None:
        """Make the run; a failure is shown on the picker."""
        if self._make_run is None or self._run_screen is not None:
            return
        try:
            run = self._make_run(message.choice)
        except VrampError as error:
            self._complain("Cannot be started", error)
            return
        self.runs.append(run)
        self._show(CockpitScreen(run))

    def on_past_screen_open(self, message: PastScreen.Open) -> None:
        if self._run_screen is not None:
            return
        live = message.run.state == "goes on"
        try:
            folder = message.run.folder
            control: RunControl = RemoteRun(folder, steers=False) if live else Replay(folder / JOURNAL)
        except VrampError as error:
            self._complain("Cannot be opened", error)
            return
        self._show(CockpitScreen(control, watching=True, read_only=live))

    def _show(self, screen: CockpitScreen) -> None:
        self._run_screen = screen
        self.push_screen(screen)
        self._feed = self._follow(screen)

    async def action_to_picker(self) -> None:
        """Go back to the list that the run was chosen from, unless the run was started here and is live."""
        screen = self._run_screen
        if screen is None or len(self.screen_stack) == 1:
            self.notify("There is no list to go back to", timeout=3)
        elif screen.control in self.runs and not screen.over:
            words = f"The run is live: {key_of('cockpit.leave', self.config.keys)} asks how to end it"
            self.notify(words, severity="warning", timeout=3)
        else:
            await self.close_runs()
            self._leave_run(screen)

    def _leave_run(self, screen: CockpitScreen) -> None:
        """Remove the run's screens before another run can show."""
        self._run_screen = None
        self.workers.cancel_group(self, "feed")
        while screen in self.screen_stack:
            self.pop_screen()

    def _complain(self, title: str, error: VrampError) -> None:
        self.notify(str(error), title=title, severity="error", timeout=15)

    async def close_runs(self) -> None:
        """End every run that has not ended, and wait for it."""
        for run in self.runs:
            await run.close()

    def finish(self) -> None:
        """End what goes on, and keep what was measured."""
        for run in self.runs[-1:]:
            run.apply(Stop())
        if self._accept_screen is not None:
            self._accept_screen.end(Stop())

    # An acceptance and its runs.

    def _accepted(self, task: asyncio.Task[None]) -> None:
        """Exit if it failed, or if the operator is leaving."""
        assert self._accept_screen is not None
        error = None if task.cancelled() else task.exception()
        self.failure = self.failure or error
        if self.failure is not None or self._accept_screen.leaving:
            self.exit()

    def on_accept_screen_watch(self, message: AcceptScreen.Watch) -> None:
        if self._run_screen is None:
            run = RemoteRun(message.folder, steers=False)
            self._show(CockpitScreen(run, watching=True, read_only=True, leave=self._back))

    def _back(self) -> None:
        """Go back from the run to its acceptance."""
        if self._run_screen is not None:
            self._leave_run(self._run_screen)

    async def close_acceptance(self) -> None:
        """End it unless it has ended, and wait until everything is stopped and judged."""
        if self._accepting is not None and self._accept_screen is not None:
            if not self._accepting.done():
                self._accept_screen.end(Abort())
            await asyncio.wait({self._accepting})

    # What all screens share.

    @property
    def _base_screen(self) -> FullScreen[Any]:
        """The topmost screen that is not a dialog."""
        return next(screen for screen in reversed(self.screen_stack) if isinstance(screen, FullScreen))

    @property
    def _few_colours(self) -> bool:
        return self.console.color_system == "standard"

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return the colours of the series, which no other theme defines."""
        return SERIES_OF_16 if self._few_colours else SERIES

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Yield the actions of the keys, the theme and a screenshot; not Textual's quit, which does not ask."""
        base = self._base_screen
        for binding in base.BINDINGS:
            if isinstance(binding, Binding) and binding.id and not binding.id.endswith("_too"):
                name = f"{binding.description} ({self.config.keys.get(binding.id, binding.key)})"
                yield SystemCommand(name, binding.tooltip, partial(base.run_action, binding.action))
        yield SystemCommand("theme", "Change the colours", self.action_change_theme)
        keep = partial(self.deliver_screenshot, path=".")
        yield SystemCommand("screenshot", "Save the screen as an SVG file in this folder", keep)

    async def action_quit(self) -> None:
        self._base_screen.action_leave()

    def action_interrupt(self) -> None:
        self._base_screen.interrupt()


def open_cockpit(cockpit: Cockpit) -> bool:
    """Run the app until the operator leaves, and close its runs; return True if a signal ended it.

    SIGHUP (a closed terminal or a dropped connection), SIGTERM, and a SIGINT that is not a key press finish the run and
    keep its result. Raises what broke the snapshot feed or the screen, after the runs are closed.
    """
    interrupted = False

    def hang_up() -> None:
        nonlocal interrupted
        interrupted = True
        cockpit.finish()
        cockpit.exit()

    async def show() -> None:
        give_up_where_callbacks_fail()
        map_large_blocks()
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, hang_up)
        # Keep the garbage collector off imported objects: scanning them would freeze the screen for 100 ms at times.
        # There is no collection first, either: there is next to no garbage yet, and the operator waits for a frame.
        gc.freeze()
        gc.set_threshold(1_000, 4, 250)
        gc.enable()
        try:
            await cockpit.run_async()
        finally:
            await cockpit.close_runs()
            await cockpit.close_acceptance()

    asyncio.run(show())
    if cockpit.failure is not None:
        raise cockpit.failure
    # Read only now: a signal that came as the screen closed is handled while the loop ends.
    return interrupted
