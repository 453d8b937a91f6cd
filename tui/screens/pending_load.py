"""The load that the operator asks for, shown before the run confirms it.

Invariants: a second key builds on the first even without a snapshot in between; the requested load is shown until the
run confirms it or `PATIENCE` snapshots have passed, so that a refused one does not stay on the screen; a concurrency is
a whole number, 0 for no load, and a rate is positive.
"""

from __future__ import annotations

import math

from loadgen.run.operations import Pause, Resume, SetConcurrency, SetRate, SetShape
from loadgen.schema.snapshot import Phase, Snapshot
from tui.panels.frame import RunControl, Wanted

MAX_CONCURRENCY = 100_000
MAX_RATE = 100_000.0
MIN_RATE = 0.01
PATIENCE = 8  # snapshots, two seconds
STEERABLE: frozenset[Phase] = frozenset({"running", "paused", "draining", "holding"})
"""Phases in which the load can be changed."""


class PendingLoad:
    """Turns keys into operations on the run and remembers them until they show in a snapshot."""

    def __init__(self, control: RunControl) -> None:
        self._control = control
        self._seen = Wanted()
        self._idle = False  # the plan is done, and no load runs
        self._requested: tuple[float, bool] | None = None  # A value, and whether it is a rate
        self._requested_paused: bool | None = None
        self._requested_shape: tuple[int, int] | None = None
        self._waited = 0

    @property
    def wanted(self) -> Wanted:
        """The load to show: the requested one, else the confirmed one."""
        value, open_loop = self._requested or (self._seen.value, self._seen.open_loop)
        return Wanted(
            value=value,
            open_loop=open_loop,
            paused=self._seen.paused if self._requested_paused is None else self._requested_paused,
            shape=self._requested_shape or self._seen.shape,
            unconfirmed=any(
                requested is not None for requested in (self._requested, self._requested_paused, self._requested_shape)
            ),
        )

    def see(self, snapshot: Snapshot) -> None:
        """Take over the run's own target, and drop requests that it confirms."""
        self._seen = _target_of(snapshot)
        self._idle = snapshot.phase == "holding"
        self._waited += 1
        if self._waited > PATIENCE or self._requested == (self._seen.value, self._seen.open_loop):
            self._requested = None
        if self._waited > PATIENCE or self._requested_paused == self._seen.paused:
            self._requested_paused = None
        if self._waited > PATIENCE or self._requested_shape == self._seen.shape:
            self._requested_shape = None

    def step(self, direction: int) -> None:
        """Step by one, or in open loop by a tenth; never below one, because no load has a key of its own."""
        value = self.wanted.value or 0.0
        if not self.wanted.open_loop:
            return self.ask(max(min(value, 1.0), value + direction))
        return self.ask(value * 1.1 if direction > 0 else value / 1.1)

    def scale(self, factor: float) -> None:
        value = self.wanted.value
        if value != 0:
            self.ask(max(MIN_RATE if self.wanted.open_loop else 1.0, (value or 1.0) * factor))

    def ask(self, value: float, *, open_loop: bool | None = None) -> None:
        """A target, in the unit of the present loop unless told; one that changes nothing of a load is not sent."""
        now = self.wanted
        open_loop = now.open_loop if open_loop is None else open_loop
        value = _rounded_rate(value) if open_loop else float(min(max(0, int(value)), MAX_CONCURRENCY))
        if (value, open_loop) == (now.value, now.open_loop) and not self._idle:
            return
        self._requested, self._waited = (value, open_loop), 0
        self._control.apply(SetRate(value) if open_loop else SetConcurrency(int(value)))

    def ask_shape(self, isl: int, osl: int) -> None:
        """Request another shape; one that changes nothing is not sent."""
        if (isl, osl) == self.wanted.shape:
            return
        self._requested_shape, self._waited = (isl, osl), 0
        self._control.apply(SetShape(isl, osl))

    def toggle_pause(self) -> None:
        paused = not self.wanted.paused
        if not self._idle:  # then it is refused
            self._requested_paused, self._waited = paused, 0
        self._control.apply(Pause() if paused else Resume())


def _target_of(snapshot: Snapshot) -> Wanted:
    load = snapshot.load
    value = load.concurrency if load.rate is None else load.rate
    if value is None and snapshot.stages:
        value = snapshot.stages[-1].concurrency
    known = None if value is None else float(value)
    return Wanted(known, open_loop=load.rate is not None, paused=load.paused, shape=(load.isl, load.osl))


def _rounded_rate(value: float) -> float:
    """Round to three significant digits, so that the number shown is the number sent."""
    value = min(max(value, MIN_RATE), MAX_RATE)
    return round(value, 2 - math.floor(math.log10(value)))
