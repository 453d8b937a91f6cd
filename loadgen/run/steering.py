"""Which stage is running and which comes next: the plan and the operator's hand on it.

Every change of the load ends one stage and begins another, in the same turn of the loop as the keypress, and is an
event in the journal. Pausing ends the stage too; resuming begins it again. Nothing here waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from loadgen.metrics.journal import Happened, Line, StageEnded, StageStarted
from loadgen.plan import Stage
from loadgen.stream.request import RequestTemplate
from loadgen.worker.fleet import Fleet

TemplatesOf = Callable[[Stage], Sequence[RequestTemplate]]
"""The requests of a stage, a template for each server."""
Boundary = Callable[[int | None, int | None], None]
"""(index of the stage that ended, index of the one that begins): what the engine's metrics are cut by."""


class Steering:
    """The load of a run. The operator's methods are instant and legal at any time; too early or too late, they do
    nothing."""

    def __init__(self, plan: Sequence[Stage], log: Callable[[Line], None], clock_s: Callable[[], float]) -> None:
        self._upcoming = deque(plan)
        self._log = log
        self._clock_s = clock_s
        self._fleet: Fleet | None = None
        self._templates_of: TemplatesOf | None = None
        self._boundary: Boundary = _no_boundary
        self._due: asyncio.TimerHandle | None = None
        self._last = plan[0]
        self._paused: tuple[Stage, bool] | None = None
        self._early: Stage | None = None
        """What the operator asked for before the server was ready."""
        self._next_index = 0
        self.current: Stage | None = None
        self.index = -1
        self.manual = False
        """The operator has taken the load in hand: the running stage has no end of its own."""

    def take_the_wheel(self, fleet: Fleet, templates_of: TemplatesOf, boundary: Boundary) -> None:
        """The server is ready and the workers stand by: begin the plan."""
        self._fleet, self._templates_of, self._boundary = fleet, templates_of, boundary
        if self._early is not None:
            self._switch(self._early, "", manual=True)
        else:
            self.advance("")

    @property
    def last(self) -> Stage:
        """The stage to show: the paused one, or the last that ran, or the first to come."""
        return self._paused[0] if self._paused is not None else self._early or self._last

    @property
    def paused(self) -> bool:
        """No streams are sent, at the operator's wish."""
        return self._paused is not None

    @property
    def over(self) -> bool:
        """Nothing runs, and nothing is to come by itself."""
        return self._fleet is not None and self.current is None and not self.paused and not self._upcoming

    # The plan.

    def advance(self, reason: str) -> None:
        """End the running stage, if one is, and begin the next of the plan, if there is one."""
        following = self._upcoming.popleft() if self._upcoming else None
        self._switch(following, reason, manual=False)

    def finish(self, reason: str, *, abort: bool) -> None:
        """End the running stage and send nothing more; with `abort`, cut the running streams off."""
        self._upcoming.clear()
        self._paused = None
        self._switch(None, reason, manual=False)
        if self._fleet is not None:
            self._fleet.end_load(abort=abort)

    def _switch(self, stage: Stage | None, reason: str, *, manual: bool) -> None:
        if self._fleet is None or self._templates_of is None:
            return
        if self._due is not None:
            self._due.cancel()
            self._due = None
        ended = self.index if self.current is not None else None
        if ended is not None:
            self._log(StageEnded(t_s=self._clock_s(), index=ended, reason=reason))
        self.current, self.manual, self._early = stage, manual, None
        if stage is None:
            self._fleet.end_load(abort=False)
            self._boundary(ended, None)
        else:
            self._begin(stage, ended)

    def _begin(self, stage: Stage, ended: int | None) -> None:
        assert self._fleet is not None and self._templates_of is not None
        self.index, self._next_index = self._next_index, self._next_index + 1
        self._last = stage
        self._log(_started(stage, self.index, self._clock_s(), manual=self.manual))
        self._boundary(ended, self.index)
        self._fleet.begin_stage(self.index, stage, self._templates_of(stage))
        if stage.duration_s is not None:
            delay_s = stage.warmup_s + stage.duration_s
            self._due = asyncio.get_running_loop().call_later(delay_s, self.advance, "its time was up")

    # The operator.

    def set_concurrency(self, concurrency: int) -> None:
        """Hold this many streams from now on."""
        self._change(f"concurrency {concurrency}", concurrency=max(1, concurrency), rate=None)

    def set_rate(self, requests_per_s: float) -> None:
        """Send this many requests a second from now on."""
        self._change(f"rate {requests_per_s:g}/s", concurrency=None, rate=max(0.001, requests_per_s))

    def set_shape(self, isl: int, osl: int) -> None:
        """Send requests of this shape from now on."""
        self._change(f"shape {isl}/{osl}", isl=max(1, isl), osl=max(1, osl))

    def _change(self, words: str, **changes: object) -> None:
        before = self.current or self.last
        endless = {"requests": None, "duration_s": None, "warmup_requests": 0, "warmup_s": 0.0, "label": ""}
        stage = msgspec.structs.replace(before, **endless, **changes)
        self._event("load", f"{before.title} -> {words}")
        if self._fleet is None:
            self._early = stage
        elif self._paused is not None:
            self._paused = (stage, True)
        else:
            self._switch(stage, "the operator changed the load", manual=True)

    def pause(self) -> None:
        """Send nothing more until `resume`; running streams finish."""
        if self.current is None or self._paused is not None:
            return
        stage, manual = self.current, self.manual
        self._event("pause", "paused")
        self._switch(None, "the operator paused", manual=manual)
        self._paused = (stage, manual)

    def resume(self) -> None:
        """Begin the paused stage again."""
        if self._paused is None:
            return
        stage, manual = self._paused
        self._paused = None
        self._event("resume", "resumed")
        self._switch(stage, "", manual=manual)

    def next_stage(self) -> None:
        """Go on with the plan, whatever is left of the running stage."""
        if self.current is None and self._paused is None:
            return
        self._paused = None
        self._event("load", "next stage")
        self.advance("the operator went on")

    def _event(self, kind: str, text: str) -> None:
        self._log(Happened(t_s=self._clock_s(), kind=kind, text=text))


def _started(stage: Stage, index: int, t_s: float, *, manual: bool) -> StageStarted:
    return StageStarted(
        t_s=t_s,
        index=index,
        label=stage.title,
        concurrency=stage.concurrency,
        rate=stage.rate,
        arrival=stage.arrival,
        isl=stage.isl,
        osl=stage.osl,
        requests=stage.requests,
        duration_s=stage.duration_s,
        warmup_requests=stage.warmup_requests,
        warmup_s=stage.warmup_s,
        manual=manual,
    )


def _no_boundary(ended: int | None, begun: int | None) -> None:
    return
