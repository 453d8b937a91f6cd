"""The cockpit's one screen: panels over the latest snapshot, and the keys that steer the run.

The app hands it snapshots, it changes widgets, `render_line` only draws. Widgets are neither mounted nor removed while
it runs: panels come and go by CSS class, by size (`app.tcss`) and by phase. A key answers from the local wish
(`Hand`) before the run confirms it.
"""

from __future__ import annotations

from time import monotonic
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Vertical
from textual.screen import Screen

from loadgen.metrics.snapshot import Snapshot
from tui import keys
from tui.board import Board
from tui.chart import Chart
from tui.dialogs import AskLeave, AskNumber, AskText, Help, Leave
from tui.hand import MOST_CONCURRENCY, MOST_RATE, STEERABLE, Hand
from tui.keybar import KeyBar
from tui.paint import ROLE_CLASSES
from tui.panels import findings, gpus, header, health, latency, load, messages, stages, startup
from tui.timeline import Timeline, charts
from tui.view import STALE_AFTER_S, RunControl, View

_ZOOMED = ("throughput", "ttft", "tpot", "engine", "latency", "stages", "log", "gpus", "verdicts")
_FEW_GPUS, _SOME_GPUS = 2, 4
"""Up to this many leave room to the stages."""


class CockpitScreen(Screen[None]):
    """Draws a run and steers it."""

    AUTO_FOCUS = None
    COMPONENT_CLASSES: ClassVar[set[str]] = set(ROLE_CLASSES)
    ALLOW_IN_MAXIMIZED_VIEW = "#keys, #header"
    BINDINGS: ClassVar[list[BindingType]] = keys.COCKPIT

    def __init__(self, control: RunControl) -> None:
        super().__init__()
        self._control = control
        self._hand = Hand(control)
        self._timeline = Timeline()
        self._boards: list[Board] = []
        self._charts: list[Chart] = []
        self.snapshot: Snapshot | None = None
        """The state on the screen."""
        self._arrived_s = monotonic()
        self._ending: Literal["", "stop", "abort"] = ""
        self._ended = False
        self.leaving = False
        """The operator wants to be out as soon as the run is over."""
        self._interrupts = 0
        self._log_wanted = False
        self._findings_wanted = False
        self._log_filter = ""

    def compose(self) -> ComposeResult:
        """All panels, always; the style sheet says which show."""
        yield Board(header.header, id="header")
        with Container(id="top"):
            with Vertical(id="hand"):
                yield Board(load.load, id="load")
                yield Board(health.server, id="server")
                yield Board(health.client, id="client")
                yield Board(health.host, id="host")
            with Container(id="charts"):
                yield from charts(self._timeline.history)
            with Vertical(id="startup"):
                yield Board(findings.findings, id="findings")
                yield Board(startup.startup, id="milestones")
                yield Board(messages.log, id="startup-log")
        with Container(id="lower"):
            with Vertical(id="tables"):
                yield Board(gpus.gpus, id="gpus")
                yield Board(latency.latency, id="latency")
                yield Board(stages.stages, id="stages")
            with Vertical(id="texts"):
                yield Board(latency.latency, id="latency-beside")
                yield Board(messages.errors, id="errors")
                yield Board(health.verdicts, id="verdicts")
                yield Board(messages.events, id="events")
                yield Board(messages.log, id="log")
        yield Board(load.notice, id="notice")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Find the panels once; a first snapshot may have come before them."""
        self._boards = list(self.query(Board))
        self._charts = list(self.query(Chart))
        self._draw()

    def take(self, snapshot: Snapshot) -> None:
        """A beat: draw it."""
        self.snapshot = snapshot
        self._arrived_s = monotonic()
        self._hand.see(snapshot)
        self._timeline.add(snapshot)
        self._draw()

    def finish(self) -> None:
        """No more snapshots will come."""
        self._ended = True
        self._draw()

    def check_age(self) -> None:
        """Draw the age of the numbers where the beat has stopped."""
        if self.snapshot is not None and not self._ended and monotonic() - self._arrived_s > STALE_AFTER_S:
            self._draw()

    def on_screen_resume(self) -> None:
        """Back from a dialog."""
        self._draw()

    def _draw(self) -> None:
        """All panels, from what is known now.

        Not under a dialog: Textual would blend the whole screen anew at each message that this one gets (measured: 60 %
        of a core). Therefore the app, not this screen, is what the beats are posted to.
        """
        if self.snapshot is None or not self._boards or not self.is_current or self.app.screen is not self:
            return
        age_s = monotonic() - self._arrived_s
        view = View(
            self.snapshot,
            self._hand.wanted,
            age_s=age_s,
            ending=self._ending,
            ended=self._ended,
            log_filter=self._log_filter,
        )
        self._arrange(view)
        for board in self._boards:
            board.show(view)
        span = self._timeline.span()
        for chart in self._charts:
            chart.show(span, self._timeline.marks)

    def _arrange(self, view: View) -> None:
        """Which panels show depends on the phase; a class that is already set costs nothing."""
        snapshot = view.snapshot
        checking = snapshot.phase in ("checking", "blocked")
        starting = checking or snapshot.phase in ("starting", "probing")
        died = snapshot.server.state == "died"
        found = checking or self._findings_wanted
        self.set_class(starting or died or self._log_wanted or found, "-startup")
        self.set_class(self._log_wanted, "-log")
        self.set_class(found and not self._log_wanted, "-findings")
        self.set_class(starting and not snapshot.stages, "-empty")
        self.set_class(bool(snapshot.errors), "-errors")
        self.set_class(bool(load.notice(view, self.size.width, 1)), "-notice")
        self.set_class(view.stale, "-stale")
        self._arrange_gpus(snapshot)

    def _arrange_gpus(self, snapshot: Snapshot) -> None:
        """No more room than there are GPUs; a row that says why there are none, unless nobody wants to know."""
        count = len(snapshot.gpus)
        self.set_class(count > 0, "-gpus")
        self.set_class(0 < count <= _FEW_GPUS, "-few-gpus")
        self.set_class(_FEW_GPUS < count <= _SOME_GPUS, "-some-gpus")
        self.set_class(not count and snapshot.telemetry not in ("", "off"), "-no-gpus")

    # What the keys do.

    def _steerable(self) -> bool:
        phase = "starting" if self.snapshot is None else self.snapshot.phase
        if phase in STEERABLE and not self._ending:
            return True
        reason = "the run is over" if phase in ("stopping", "done") or self._ending else "the server is not ready"
        self.notify(f"The load cannot be changed: {reason}", severity="warning", timeout=3, markup=False)
        return False

    def action_step(self, direction: int) -> None:
        """One more or less."""
        if self._steerable():
            self._hand.step(direction)
            self._draw()

    def action_scale(self, factor: float) -> None:
        """Double or half."""
        if self._steerable():
            self._hand.scale(factor)
            self._draw()

    def action_number(self) -> None:
        """Ask for the load as a number."""
        if not self._steerable():
            return
        whole = not self._hand.wanted.open_loop
        question = "Concurrency: streams held open" if whole else "Rate: requests a second"
        dialog = AskNumber(question, most=MOST_CONCURRENCY if whole else MOST_RATE, whole=whole)
        self.app.push_screen(dialog, self._set_number)

    def _set_number(self, value: float | None) -> None:
        if value is not None and self._steerable():
            self._hand.ask(value)
            self._draw()

    def action_pause(self) -> None:
        """Pause, or go on."""
        if self._steerable():
            self._hand.toggle_pause()
            self._draw()

    def action_next_stage(self) -> None:
        """On with the plan."""
        if self._steerable():
            self._control.next_stage()

    def action_extend(self) -> None:
        """Longer."""
        if self._steerable():
            self._control.extend()

    def action_redo(self) -> None:
        """Once more."""
        if self._steerable():
            self._control.redo()

    def action_note(self) -> None:
        """Ask for a remark."""
        self.app.push_screen(AskText("Note, kept in the result at this moment"), self._put_note)

    def _put_note(self, text: str | None) -> None:
        if text and not self.over:
            self._control.note(text)

    def action_window(self) -> None:
        """The next span of the time axis."""
        self.notify(f"Charts show {self._timeline.next_window()}", timeout=2, markup=False)
        self._draw()

    def action_log(self) -> None:
        """The server's log in the charts' place, and back."""
        self._log_wanted = not self._log_wanted
        self._draw()

    def action_filter(self) -> None:
        """Ask which lines of the log to show."""
        question = "Show only lines of the log with (empty: all)"
        self.app.push_screen(AskText(question, self._log_filter), self._set_filter)

    def _set_filter(self, text: str | None) -> None:
        if text is not None:
            self._log_filter = text
            self._draw()

    def action_findings(self) -> None:
        """What the preflight found in the charts' place, and back."""
        self._findings_wanted = not self._findings_wanted
        self._draw()

    def action_start_anyway(self) -> None:
        """On against the preflight."""
        if self.snapshot is not None and self.snapshot.phase == "blocked":
            self._control.start_anyway()

    def action_zoom(self, number: int) -> None:
        """One panel over the whole screen; the same key or Esc goes back."""
        panel = self.query_one(f"#{_ZOOMED[number - 1]}")
        if self.maximized is panel:
            self.minimize()
        else:
            self.maximize(panel, container=False)

    def action_help(self) -> None:
        """Every key."""
        self.app.push_screen(Help(keys.table()))

    def action_leave(self) -> None:
        """Leave at once when the run is over, else ask."""
        if self.over:
            self.app.exit()
        elif not isinstance(self.app.screen, AskLeave):
            self.app.push_screen(AskLeave(), self._leave)

    def interrupt(self) -> None:
        """Ctrl+C: finish; then abort; then leave whatever the run does."""
        self._interrupts += 1
        while self.app.screen is not self:
            self.app.pop_screen()
        if self.over or self._interrupts > 2:
            self.app.exit()
        else:
            self._end("stop" if self._interrupts == 1 and not self._ending else "abort")

    def _leave(self, how: Leave | None) -> None:
        if how is None:
            return
        self.leaving = True
        if self.over:
            self.app.exit()
        self._end(how)

    def _end(self, how: Leave) -> None:
        if not self.over:
            (self._control.stop if how == "stop" else self._control.abort)()
            self._ending = how
            self._draw()

    @property
    def over(self) -> bool:
        """Whether there is nothing left to end."""
        return self._ended or (self.snapshot is not None and self.snapshot.phase == "done")
