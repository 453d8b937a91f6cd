"""The larger changes of a run, each asked for in a dialog: another shape, another plan, a restart of the server.

A request goes to the run unchecked; what the run refuses comes back as an event and is shown as a notification.
"""

from __future__ import annotations

from functools import partial

from textual.screen import Screen

from loadgen import format as fmt
from loadgen.errors import ProfileError
from loadgen.plan.request import PlanRequest, parse_plan
from loadgen.run.operations import FollowPlan, Restart
from loadgen.schema.snapshot import Phase, Snapshot
from loadgen.searches import SEARCHES
from tui.panels.frame import RunControl
from tui.screens.dialogs import AskChoice, AskLoad, AskParsed, ask
from tui.screens.pending_load import STEERABLE, PendingLoad

MAX_LENGTH = 10_000_000
_RESTARTABLE: frozenset[Phase] = STEERABLE | {"checking", "blocked", "starting", "probing", "failed"}


def phases_for(what: str) -> frozenset[Phase]:
    """Return the phases in which a change can be asked for."""
    return _RESTARTABLE if what == "restart" else STEERABLE


def parse_shape(text: str) -> tuple[int, int]:
    """Parse `4096/1024`, the tokens of a prompt and of its answer; raises `ProfileError`."""
    isl, _, osl = text.partition("/")
    if not (isl.strip().isdecimal() and osl.strip().isdecimal()):
        raise ProfileError("two whole numbers, such as 4096/1024")
    shape = int(isl), int(osl)
    if not all(0 < length <= MAX_LENGTH for length in shape):
        raise ProfileError(f"from 1 up to {MAX_LENGTH:,} tokens each")
    return shape


class Steer:
    """Asks for changes on a screen, and applies them to the run."""

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
        pending, screen = self._pending, self._screen
        match what:
            case "loop":  # a load of the other kind
                open_loop = not pending.wanted.open_loop
                dialog = AskLoad("Open loop" if open_loop else "Closed loop", open_loop=open_loop)
                ask(screen, dialog, partial(pending.ask, open_loop=open_loop))
            case "shape":
                isl, osl = pending.wanted.shape
                question = "Shape: input / output tokens of a request, such as 4096/1024"
                ask(screen, AskParsed(question, parse_shape, f"{isl}/{osl}"), lambda shape: pending.ask_shape(*shape))
            case "plan":
                question = "From here: a ladder, 8, 16, 32 each 30s, or a ramp, 64 in 60s or 4 to 24 in 15s"
                ask(screen, AskParsed(question, parse_plan), self._follow)
            case "search":
                searches = [(PlanRequest(kind.name), kind.choice) for kind in SEARCHES.values()]
                ask(screen, AskChoice("Search from the present load", searches), self._follow)
            case "restart":
                self._ask_restart(snapshot)

    def _follow(self, plan: PlanRequest) -> None:
        self._control.apply(FollowPlan(plan))

    def _ask_restart(self, snapshot: Snapshot) -> None:
        now = snapshot.server.variant
        choices = [(None, "do not restart"), (Restart(None), f"restart it as it is{f', {now}' if now else ''}")]
        choices += [(Restart(name), f"restart it as {name}") for name in snapshot.variants if name != now]
        question = "Restart the server? Running streams are cut off, results are kept"
        ask(self._screen, AskChoice(question, choices), self._control.apply)
