"""The larger changes of a run: another shape, another plan, another start of the server. Each is asked for in a dialog.

What was asked for goes to the run as it is; what the run cannot do comes back as an event and is shown as a notice.
"""

from __future__ import annotations

from textual.screen import Screen

from loadgen import format as fmt
from loadgen.errors import ProfileError
from loadgen.metrics.snapshot import Phase, Snapshot
from loadgen.plan.request import PlanRequest, parse_plan
from loadgen.run.operations import FollowPlan, Restart
from loadgen.searches import SEARCHES
from tui.panels.frame import RunControl
from tui.screens.dialogs import AskChoice, AskNumber, AskParsed
from tui.screens.pending_load import MOST_CONCURRENCY, MOST_RATE, STEERABLE, PendingLoad

LARGEST_LENGTH = 10_000_000
_RESTARTABLE: frozenset[Phase] = STEERABLE | {"checking", "blocked", "starting", "probing", "failed"}
_AS_IT_IS = "."


def phases_for(what: str) -> frozenset[Phase]:
    """Those in which a change can be asked for."""
    return _RESTARTABLE if what == "restart" else STEERABLE


def parse_shape(text: str) -> tuple[int, int]:
    """`4096/1024`, the tokens of a prompt and of its answer; raises `ProfileError`."""
    isl, _, osl = text.partition("/")
    if not (isl.strip().isdecimal() and osl.strip().isdecimal()):
        raise ProfileError("two whole numbers, such as 4096/1024")
    shape = int(isl), int(osl)
    if not all(0 < length <= LARGEST_LENGTH for length in shape):
        raise ProfileError(f"from 1 up to {LARGEST_LENGTH} tokens each")
    return shape


class Steer:
    """Asks on a screen, and tells the run."""

    def __init__(self, screen: Screen[None], control: RunControl, pending: PendingLoad) -> None:
        self._screen = screen
        self._control = control
        self._pending = pending
        self._events_seen: int | None = None

    def see(self, snapshot: Snapshot) -> None:
        """Show what the run has refused since the last snapshot."""
        seen, self._events_seen = self._events_seen, len(snapshot.events)
        if seen is None:
            return
        for event in snapshot.events[seen:]:
            if event.kind == "error" and " refused: " in event.text:
                self._screen.notify(fmt.plain(event.text), severity="warning", timeout=6, markup=False)

    def begin(self, what: str, snapshot: Snapshot) -> None:
        """Ask for a change in a dialog."""
        match what:
            case "loop":
                self._ask_loop()
            case "shape":
                self._ask_shape()
            case "plan":
                question = "From here: a ladder, 8, 16, 32 each 30s, or a ramp, 64 in 60s"
                self._screen.app.push_screen(AskParsed(question, parse_plan), self._follow)
            case "search":
                searches = [(kind.name, kind.choice) for kind in SEARCHES.values()]
                self._screen.app.push_screen(AskChoice("Search from the present load", searches), self._search)
            case "restart":
                self._ask_restart(snapshot)

    def _ask_loop(self) -> None:
        """A load of the other kind: a rate in place of a concurrency, or the other way round."""
        if self._pending.wanted.open_loop:
            dialog = AskNumber("Closed loop: streams held open", most=MOST_CONCURRENCY, whole=True)
        else:
            dialog = AskNumber("Open loop: requests a second", most=MOST_RATE, whole=False)
        self._screen.app.push_screen(dialog, self._set_loop)

    def _set_loop(self, value: float | None) -> None:
        if value is not None:
            self._pending.ask(value, open_loop=not self._pending.wanted.open_loop)

    def _ask_shape(self) -> None:
        isl, osl = self._pending.wanted.shape
        question = "Shape: input / output tokens of a request, such as 4096/1024"
        self._screen.app.push_screen(AskParsed(question, parse_shape, f"{isl}/{osl}"), self._set_shape)

    def _set_shape(self, shape: tuple[int, int] | None) -> None:
        if shape is not None:
            self._pending.ask_shape(*shape)

    def _follow(self, plan: PlanRequest | None) -> None:
        if plan is not None:
            self._control.apply(FollowPlan(plan))

    def _search(self, kind: str | None) -> None:
        if kind is not None:
            self._control.apply(FollowPlan(PlanRequest(SEARCHES[kind].name)))

    def _ask_restart(self, snapshot: Snapshot) -> None:
        now = snapshot.server.variant
        choices = [("", "go on without"), (_AS_IT_IS, f"restart it as it is{f', {now}' if now else ''}")]
        choices += [(name, f"restart it as {name}") for name in snapshot.variants if name != now]
        question = "Restart the server? Running streams are cut off, results are kept"
        self._screen.app.push_screen(AskChoice(question, choices), self._restart)

    def _restart(self, variant: str | None) -> None:
        if variant:
            self._control.apply(Restart(None if variant == _AS_IT_IS else variant))
