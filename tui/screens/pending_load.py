"""The load that the operator asks for, shown before the run confirms it.

Invariants: a second key builds on the first even without a snapshot in between; the requested load is shown until the
run confirms it or `PATIENCE` snapshots have passed, so that a refused one does not stay on the screen; a concurrency is
a whole number, 0 for no load, and a rate is positive.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from loadgen.run.operations import Operation, Pause, Resume, SetConcurrency, SetRate, SetShape
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
        self._confirmed = Wanted()
        self._requested: dict[str, Any] = {}  # fields of `Wanted` that are not confirmed yet
        self._idle = False  # the plan is done, and no load runs
        self._waited = 0

    @property
    def wanted(self) -> Wanted:
        """The load to show: the requested one, else the confirmed one."""
        return msgspec.structs.replace(self._confirmed, **self._requested, unconfirmed=bool(self._requested))

    def update(self, snapshot: Snapshot) -> None:
        """Take over the run's own target, and drop requests that it confirms."""
        load = snapshot.load
        value = load.concurrency if load.rate is None else load.rate
        if value is None and snapshot.stages:
            value = snapshot.stages[-1].target.concurrency
        known = None if value is None else float(value)
        self._confirmed = Wanted(known, open_loop=load.rate is not None, paused=load.paused, shape=(load.isl, load.osl))
        self._idle = snapshot.phase == "holding"
        self._waited += 1
        pending = self._requested.items() if self._waited <= PATIENCE else ()
        self._requested = {name: value for name, value in pending if value != getattr(self._confirmed, name)}

    def step(self, direction: int) -> None:
        """Step by one, or in open loop by a tenth; never below one, because no load has a key of its own."""
        value = self.wanted.value or 0.0
        if self.wanted.open_loop:
            self.request(value * 1.1 if direction > 0 else value / 1.1)
        else:
            self.request(max(min(value, 1.0), value + direction))

    def scale(self, factor: float) -> None:
        value = self.wanted.value
        if value != 0:
            self.request(max(MIN_RATE if self.wanted.open_loop else 1.0, (value or 1.0) * factor))

    def request(self, value: float, *, open_loop: bool | None = None) -> None:
        """Request a load, by default of the present kind; one that changes nothing of a load is not sent."""
        now = self.wanted
        open_loop = now.open_loop if open_loop is None else open_loop
        if open_loop:
            value = min(max(value, MIN_RATE), MAX_RATE)
            value = round(value, 2 - math.floor(math.log10(value)))  # so that the number shown is the number sent
        else:
            value = float(min(max(0, int(value)), MAX_CONCURRENCY))
        if (value, open_loop) != (now.value, now.open_loop) or self._idle:
            self._send(SetRate(value) if open_loop else SetConcurrency(int(value)), value=value, open_loop=open_loop)

    def request_shape(self, isl: int, osl: int) -> None:
        """Request another shape; one that changes nothing is not sent."""
        if (isl, osl) != self.wanted.shape:
            self._send(SetShape(isl, osl), shape=(isl, osl))

    def toggle_pause(self) -> None:
        paused = not self.wanted.paused
        # Without a load it is refused, and must not show.
        self._send(Pause() if paused else Resume(), **{} if self._idle else {"paused": paused})

    def _send(self, operation: Operation, **requested: object) -> None:
        self._requested |= requested
        self._waited = 0
        self._control.apply(operation)
