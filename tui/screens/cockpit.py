"""The screen of a run: panels that draw the latest snapshot, and the keys that steer the run.

The app hands it snapshots, the screen changes widgets, and its panels only draw. No widget is mounted or removed while
it runs: panels show and hide by CSS class, depending on size (`app.tcss`) and phase. A key shows its effect from the
local target (`PendingLoad`) before the run confirms it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import ClassVar, Literal

from rich.cells import cached_cell_len
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container

from loadgen import format as fmt
from loadgen.plan.request import PlanRequest, parse_plan
from loadgen.run import operations
from loadgen.schema.snapshot import Phase, ReplayView, ServerView, Snapshot
from loadgen.searches import SEARCHES
from tui import keys
from tui.charts.definitions import BOX_CHARTS, OVERVIEW_CHARTS
from tui.charts.timeline import Timeline
from tui.config import keymap_of
from tui.keys import OVERVIEW, Hint, Operator
from tui.panels import details, gpus, header, health, latency, load, messages, stages, startup
from tui.panels.frame import (
    CURVE_METRICS,
    METRICS,
    STALE_AFTER_S,
    Frame,
    Panel,
    Player,
    RunControl,
    chart_panels,
    panels,
)
from tui.screens.base import FullScreen
from tui.screens.dialogs import AskChoice, AskLeave, AskText, Leave, ask, ask_leave, ask_load, parse_shape
from tui.screens.log import LogBook, LogView
from tui.screens.pages import COPIES, PANEL_PAGES, compose, shown_classes
from tui.screens.pending_load import STEERABLE, PendingLoad
from tui.widgets.rows_widgets import KeyBar

_PROCESSES_EVERY_S = 5.0
_RESTARTABLE: frozenset[Phase] = STEERABLE | {"checking", "blocked", "starting", "probing", "failed"}
_NO_SERVER = ServerView(engine="none", url="", state="stopped")  # before the first snapshot
_HAND = {"load": load.load, "server": health.server, "client": health.client, "host": health.host}
_STARTUP = {"findings": startup.findings, "milestones": startup.startup, "startup-log": messages.log}
_TABLES = {"gpus": gpus.gpus, "hosts": health.hosts, "latency": latency.latency, "stages": stages.stages}
_TEXTS = {
    "latency-right": latency.latency,
    "errors": messages.errors,
    "verdicts": health.verdicts,
    "events": messages.events,
    "log": messages.log,
}


class CockpitScreen(FullScreen[None]):
    """Shows a run and steers it."""

    AUTO_FOCUS = ""
    ALLOW_IN_MAXIMIZED_VIEW = "#keys, #header"
    BINDINGS: ClassVar[list[BindingType]] = list(keys.COCKPIT)
    HELP_KEYS = (*keys.COCKPIT, *keys.LOG, keys.PALETTE, keys.INTERRUPT)

    def __init__(
        self,
        control: RunControl,
        *,
        watching: bool = False,
        read_only: bool = False,
        leave: Callable[[], object] | None = None,
    ) -> None:
        """With `watching`, leaving does not end the run; with `read_only`, no key steers it either.

        `leave` is what leaving does when there is nothing to end; default: leave the app.
        """
        super().__init__()
        self._leave_now = leave
        self.control = control
        self._watching = watching
        self._operator: Operator = "watcher" if read_only else "guest" if watching else "owner"
        if isinstance(control, Player):
            self._operator = "player"
        self._pending = PendingLoad(control)
        self._timeline = Timeline()
        self._log_book = LogBook()
        self._panels: list[Panel] = []
        self._page = OVERVIEW
        self._full = False
        self._chosen = ""  # the item in the details view
        self._metric = METRICS[0]
        self.snapshot: Snapshot | None = None  # the state on the screen
        self._arrived_s = monotonic()
        self._ending: Literal["", "stop", "abort"] = ""
        self._ended = False
        self.leaving = False  # exit as soon as the run is over
        self._interrupts = 0
        self._processes_at_s = 0.0  # when to request them again
        self._filters = {"log": "", "events": ""}

    def compose(self) -> ComposeResult:
        """Compose all panels; the style sheet decides which are shown."""
        yield Panel(header.header, id="header")
        with Container(id="top"):
            yield Container(*panels(_HAND), id="hand")
            yield Container(*chart_panels(OVERVIEW_CHARTS | BOX_CHARTS), id="charts")
            yield Container(*panels(_STARTUP), id="startup")
            yield from compose(self._log_book)
        with Container(id="lower"):
            yield Container(*panels(_TABLES), id="tables")
            yield Container(*panels(_TEXTS), id="texts")
        yield Panel(load.notice, id="notice")
        yield KeyBar(self._hints, id="keys")

    def on_mount(self) -> None:
        """Look up the panels once, and draw a snapshot that may have come before them."""
        self._panels = list(self.query(Panel))
        self._draw()

    def gather(self, snapshot: Snapshot) -> None:
        """Keep what charts, marks and log need of a snapshot; called for every one, drawn or not."""
        self._timeline.add(snapshot)
        self._log_book.add(snapshot.server)

    def show(self, snapshot: Snapshot) -> None:
        before, over, had_server = self.snapshot, self.over, self._has_server
        self.snapshot, self._arrived_s = snapshot, monotonic()
        if self._has_server != had_server:
            self.query_one(KeyBar).draw()
        self._pending.update(snapshot)
        for event in snapshot.events[len(before.events) :] if before is not None else ():
            if event.kind == "error" and " refused: " in event.text:
                self.notify(fmt.plain(event.text), severity="warning", timeout=6)
        if self.over and not over and snapshot.stages and self._page == OVERVIEW:
            self._show_page("results")
        # The list of GPU processes is requested only while it is shown: some drivers take long to produce it.
        if self._page == "gpus" and not self.over and self._replayed is None and monotonic() >= self._processes_at_s:
            self._processes_at_s = monotonic() + _PROCESSES_EVERY_S
            self.control.apply(operations.ShowProcesses())
        self._draw()

    def finish(self) -> None:
        self._ended = True
        self._draw()

    def check_age(self) -> None:
        """Draw the age of the numbers if snapshots have stopped coming."""
        if self.snapshot is not None and not self._ended and monotonic() - self._arrived_s > STALE_AFTER_S:
            self._draw()

    def on_screen_resume(self) -> None:
        self._draw()

    def _draw(self) -> None:
        """Draw all panels from the present state.

        Nothing is drawn under a dialog: Textual would blend the whole screen again for each message to this screen
        (measured: 60 % of a core). For the same reason, snapshots are posted to the app and not to this screen.
        """
        if self.snapshot is None or not self._panels or not self.is_current or self.app.screen is not self:
            return
        frame = self._frame_of(self.snapshot)
        self.update_classes(shown_classes(frame, self._page, full=self._full, width=self.size.width))
        for panel in self._panels:
            panel.show(frame)

    def _frame_of(self, snapshot: Snapshot) -> Frame:
        return Frame(
            snapshot,
            self._pending.wanted,
            age_s=monotonic() - self._arrived_s,
            ending=self._ending,
            ended=self._ended,
            log_filter=self._filters["log"],
            event_filter=self._filters["events"],
            timeline=self._timeline,
            chosen=self._chosen,
            metric=self._shown_metric,
            operator=self._operator,
            keymap=keymap_of(self.app),
        )

    @property
    def _shown_metric(self) -> str:
        """The metric that a view shows; outside the curve view, TPOT instead of the frontier, which is its inverse."""
        return self._metric if self._page == "curve" or self._metric in METRICS else "tpot"

    def _hints(self, height: int) -> list[list[Hint]]:
        return keys.cockpit_hints(self._operator, self._page, keymap_of(self.app), height, has_server=self._has_server)

    @property
    def _has_server(self) -> bool:
        return self.snapshot is None or self.snapshot.has_server

    def _show_page(self, page: str) -> None:
        """Switch to a view; the log gets the focus, for the keys that move in it."""
        self._page = page
        cached_cell_len.cache_clear()  # rich caches 4,096 texts, most of them rows of the previous view
        if page == "details" and self.snapshot is not None:
            self._chosen = details.chosen(self._frame_of(self.snapshot))
        for each in self.query(".page"):
            each.display = each.id == f"page-{page}"
        self.query_one(KeyBar).draw()
        self.set_focus(self.query_one(LogView) if page == "log" else None)

    # What the keys do.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Whether an action may run; Textual asks right before."""
        refused = self._operator == "watcher" and action in keys.STEERING
        if refused:
            self.notify("watching: the load is steered elsewhere", severity="warning", timeout=3)
        return not refused

    @property
    def _replayed(self) -> tuple[Player, ReplayView] | None:
        """The player and its position; None for a live run."""
        now = self.snapshot.replay if self.snapshot is not None else None
        return (self.control, now) if now is not None and isinstance(self.control, Player) else None

    def _steerable(self, phases: frozenset[Phase] = STEERABLE) -> bool:
        phase = "starting" if self.snapshot is None else self.snapshot.phase
        if self._replayed is not None:
            self.notify("This is a replay: its keys are in the last row", timeout=3)
            return False
        if not self._has_server:
            self.notify("This run has no server to send load to", severity="warning", timeout=3)
            return False
        if phase in phases and not self._ending:
            return True
        reason = "the run is over" if phase in ("stopping", "done") or self._ending else "the server is not ready"
        self.notify(f"The load cannot be changed: {reason}", severity="warning", timeout=3)
        return False

    def action_step(self, direction: int) -> None:
        if self._steerable():
            self._pending.step(direction)
            self._draw()

    def action_scale(self, factor: float) -> None:
        """Scale the load, or the speed of a replay."""
        if self._replayed is not None:
            player, now = self._replayed
            player.set_speed(now.speed * factor)
        elif self._steerable():
            if self._pending.wanted.value == 0:
                self.notify("No load to scale: begin with one stream, or a number", timeout=3)
            self._pending.scale(factor)
            self._draw()

    def action_no_load(self) -> None:
        """Stop the load, in open loop too."""
        if self._steerable():
            self._pending.request(0.0, open_loop=False)
            self._draw()

    def action_pause(self) -> None:
        if self._replayed is not None:
            _, now = self._replayed
            self.control.apply(operations.Resume() if now.paused else operations.Pause())
        elif self._steerable():
            self._pending.toggle_pause()
            self._draw()

    def action_next_stage(self) -> None:
        """Go to the next stage of the plan, or in a replay to the next snapshot."""
        if self._replayed is not None or self._steerable():
            self.control.apply(operations.NextStage())

    def action_apply(self, operation: str) -> None:
        if self._steerable():
            self.control.apply(getattr(operations, operation)())

    def action_steer(self, what: str) -> None:
        """Ask for a change in a dialog; what the run refuses comes back as an event."""
        if not self._steerable(_RESTARTABLE if what == "restart" else STEERABLE):
            return
        wanted = self._pending.wanted
        match what:
            case "number" | "loop":  # a load of this kind or the other
                open_loop = wanted.open_loop != (what == "loop")
                ask(self, ask_load(what, open_loop=open_loop), partial(self._pending.request, open_loop=open_loop))
            case "shape":
                question = "Shape: input / output tokens of a request, such as 4096/1024"
                dialog = AskText(question, parse_shape, "/".join(map(str, wanted.shape)))
                ask(self, dialog, lambda shape: self._pending.request_shape(*shape))
            case "plan":
                question = "From here: a ladder, 8, 16, 32 each 30s, or a ramp, 64 in 60s or 4 to 24 in 15s"
                ask(self, AskText(question, parse_plan), self._follow)
            case "search":
                searches = [(PlanRequest(kind.name), kind.choice) for kind in SEARCHES.values()]
                ask(self, AskChoice("Search from the present load", searches), self._follow)
            case "restart":
                self._ask_restart()

    def _follow(self, plan: PlanRequest) -> None:
        self.control.apply(operations.FollowPlan(plan))

    def _ask_restart(self) -> None:
        snapshot = self.snapshot
        now, variants = (snapshot.server.variant, snapshot.variants) if snapshot is not None else (None, ())
        same = f"restart it as it is, {now}" if now else "restart it as it is"
        choices = [(None, "do not restart"), (operations.Restart(None), same)]
        choices += [(operations.Restart(name), f"restart it as {name}") for name in variants if name != now]
        question = "Restart the server? Running streams are cut off, results are kept"
        ask(self, AskChoice(question, choices), self.control.apply)

    def action_note(self) -> None:
        if self.over or self._replayed is not None:
            self.notify("The run is over: notes cannot be added", severity="warning", timeout=3)
        else:
            ask(self, AskText("Note, kept in the result at this moment", str), self._put_note)

    def _put_note(self, text: str) -> None:
        if text and not self.over:
            self.control.apply(operations.Note(text))

    def action_window(self) -> None:
        self.notify(f"Charts show {self._timeline.next_window()}", timeout=2)
        self._draw()

    def action_filter(self) -> None:
        what = "events" if self._page == "events" else "log"
        lines = "events with, in kind or text" if what == "events" else "log lines with"
        ask(self, AskText(f"Show only {lines} (empty: all)", str, self._filters[what]), partial(self._filter, what))

    def _filter(self, what: str, text: str) -> None:
        self._filters[what] = text
        self._log_book.filter(self._filters["log"])
        self._draw()

    def action_start_anyway(self) -> None:
        if self.snapshot is not None and self.snapshot.phase == "blocked":
            self.control.apply(operations.StartAnyway())
        else:
            self.notify("Nothing blocks the start", timeout=2)

    def action_show(self, page: str) -> None:
        """Show a view; for the one already shown, toggle full screen."""
        if self.maximized is not None:
            self.minimize()
        self._full = page == self._page and not self._full
        self._show_page(page)
        self._draw()

    def action_full(self) -> None:
        self._full = not self._full
        self._draw()

    def action_back(self) -> None:
        if self.maximized is not None:
            self.minimize()
        elif self._full:
            self._full = False
        else:
            self._show_page(OVERVIEW)
        self._draw()

    def action_other(self, step: int) -> None:
        """Show details of the next or the previous item."""
        if self.snapshot is not None and self._page == "details":
            self._chosen = details.moved(self._frame_of(self.snapshot), step)
            self._draw()

    def on_panel_chosen(self, message: Panel.Chosen) -> None:
        """Show the details of a clicked verdict, stage or GPU, or the view of a clicked overview panel.

        A click on a chart maximizes it; another click restores it.
        """
        panel = message.panel
        if self.maximized is not None:
            self.minimize()
        elif message.target:
            self._chosen = message.target
            self._show_page("details")
            self._draw()
        elif panel.id in PANEL_PAGES:
            self.action_show(PANEL_PAGES[panel.id])
        elif panel.id in OVERVIEW_CHARTS:
            self.maximize(panel, container=False)

    def action_metric(self) -> None:
        offered = CURVE_METRICS if self._page == "curve" else METRICS
        self._metric = offered[(offered.index(self._shown_metric) + 1) % len(offered)]
        words = "The curve view shows the frontier" if self._metric not in METRICS else ""
        self.notify(words or f"Views curve and latency show {self._metric.upper()}", timeout=2)
        self._draw()

    def action_copy(self) -> None:
        if self.snapshot is None:
            return
        text = COPIES[self._page](self._frame_of(self.snapshot))
        self.app.copy_to_clipboard(text)
        self.notify(f"{self._page}: {fmt.counted(text.count(chr(10)), 'line')} copied", timeout=2)

    def action_leave(self) -> None:
        """Leave at once if the run is over or only watched, else ask."""
        if self.over or self._watching:
            (self._leave_now or self.app.exit)()
        elif not isinstance(self.app.screen, AskLeave):
            now = self.snapshot
            server, streams = (now.server, now.load.held) if now is not None else (_NO_SERVER, 0)
            self.app.push_screen(ask_leave(server, open_streams=streams), self._leave)

    def interrupt(self) -> None:
        """Handle Ctrl+C: finish first, then abort, then leave whatever the run does."""
        self._interrupts += 1
        while self.app.screen is not self:
            self.app.screen.dismiss(None)  # its caller gets None
        if self.over or self._watching or self._interrupts > 2:
            (self._leave_now or self.app.exit)()
        else:
            self._end("stop" if self._interrupts == 1 and not self._ending else "abort")
            self._draw()

    def _leave(self, how: Leave | None) -> None:
        if how is None:
            return
        self.leaving = True
        if self.over:
            self.app.exit()
        self._end(how)

    def _end(self, how: Leave) -> None:
        if not self.over:
            self.control.apply(operations.Stop() if how == "stop" else operations.Abort())
            self._ending = how

    @property
    def over(self) -> bool:
        """Whether the run is over, so that there is nothing left to end."""
        return self._ended or (self.snapshot is not None and self.snapshot.phase == "done")
