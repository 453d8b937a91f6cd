"""Which stage is running and which comes next, by the plan and by what the operator asks for.

Every change of the load ends one stage and begins another, in the same turn of the loop as the keypress, and is an
event in the journal; so is what cannot be done, as an error with its reason. Pausing ends the stage too;
resuming begins it again. Nothing here waits. The plan is asked for the next stage when the present one is over, with
what has been measured by then; what the operator does beside the plan is none of its measurements.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import msgspec

from loadgen.errors import ProfileError
from loadgen.fleet.fleet import Fleet, FleetTick
from loadgen.metrics.journal import Happened, Line, SearchEnded, StageEnded, StageSettled
from loadgen.metrics.record import Record
from loadgen.metrics.snapshot import LoadView
from loadgen.metrics.stage_record import StageRecord
from loadgen.plan.from_here import plan_from_here
from loadgen.plan.request import PlanRequest
from loadgen.plan.stage import Measured, Plan, Stage
from loadgen.profile.schema import Profile
from loadgen.run.stage_watch import StageWatch, enough, measured_of
from loadgen.run.view import load_view
from loadgen.stream.request import RequestTemplate

TemplatesOf = Callable[[Stage], Sequence[RequestTemplate]]  # the requests of a stage, a template for each server
Boundary = Callable[[int | None, int | None], None]
"""(index of the stage that ended, index of the one that begins): what the engine's metrics are cut by."""


class LoadController:
    """The load of a run. What the operator asks for is instant and legal at any time; too early or too late, it is
    refused."""

    def __init__(
        self,
        plan: Plan,
        known: Sequence[Stage],
        record: Record,
        log: Callable[[Line], None],
        clock_s: Callable[[], float],
    ) -> None:
        """`known` are the stages of the plan, as far as that can be said; the first is shown until it begins."""
        self._plan: Plan | None = plan
        self._done: list[Measured] = []
        self._record = record
        self._log = log
        self._clock_s = clock_s
        self._fleet: Fleet | None = None
        self._templates_of: TemplatesOf | None = None
        self._boundary: Boundary = lambda ended, begun: None
        self._timer: asyncio.TimerHandle | None = None
        self._last = known[0]
        self._begun_s = 0.0
        self._watch: StageWatch | None = None
        self._open_streams = 0  # streams that were open at the last tick
        self._window_s: float | None = None  # when the measured window of a stage that waits for its own was opened
        self._max_duration_s = 0.0
        self._paused: tuple[Stage, bool] | None = None
        self._pending: tuple[Stage, bool] | None = None
        """What begins once there is a server, and whether by hand: what the operator asked for while there is none, or
        what ran on the one before."""
        self._before_hold: Stage | None = None  # the running stage with its end, while the operator holds it open
        self._finished = False
        self._current: Stage | None = None
        self.index = -1
        self._manual = False  # the operator set the running stage, which has no end of its own
        self._stages_planned = len(known)  # as far as that is known, with what the operator begins beside the plan
        self.variant: str | None = None  # of the profile whose server runs

    def attach(self, fleet: Fleet, templates_of: TemplatesOf, boundary: Boundary) -> None:
        """The server is ready and the workers stand by: begin the plan, or what was asked for before."""
        self._fleet, self._templates_of, self._boundary = fleet, templates_of, boundary
        if self.paused:
            return
        if self._pending is None:
            self.advance("")
            return
        stage, manual = self._pending
        self._insert(stage, "", manual=manual)

    def detach(self, reason: str) -> None:
        """The server goes away: end the stage. It begins again, by hand, once there is another."""
        stage = self._current
        if self._fleet is None:
            return
        if stage is None:
            self._fleet.end_load(abort=True)
        else:
            self._note_done(abandoned=True)
            self._switch(None, reason, manual=False, abort=True)
            self._pending = (stage.by_hand(rate=stage.rate), True)
        self._fleet = None

    @property
    def paused(self) -> bool:
        """The operator wants no streams to be sent."""
        return self._paused is not None

    @property
    def over(self) -> bool:
        """Nothing runs, and nothing is to come by itself."""
        return self._fleet is not None and self._current is None and not self.paused

    def view(self, t_s: float) -> LoadView:
        """What is asked for and what is held, as the screen shows it."""
        return load_view(
            self._current or self._shown,
            self._record,
            t_s,
            stage=self.index + 1,
            stages_planned=max(self._stages_planned, self.index + 1),
            paused=self.paused,
            manual=self._manual,
            held_open=self._held_open,
        )

    @property
    def _shown(self) -> Stage:
        """The stage to show while none runs: the paused one, or the last that ran, or the first to come."""
        waiting = self._paused or self._pending
        return waiting[0] if waiting is not None else self._last

    @property
    def _present(self) -> Stage:
        """The load as it stands: of one that moves, where it has come to."""
        return self._current.at(self._measured_s(self._current)) if self._current is not None else self._shown

    @property
    def _held_open(self) -> bool:
        """The operator lets the running stage go on past its end."""
        return self._before_hold is not None

    # The plan.

    def advance(self, reason: str, *, saturated: bool = False) -> None:
        """End the running stage, if one is, and begin the next of the plan, if there is one."""
        self._note_done(saturated=saturated)
        self._go_on(reason)

    def finish(self, reason: str) -> None:
        """End the running stage, cut its streams off and send nothing more, ever."""
        self._finished = True
        self._plan = None
        self._paused = None
        self._switch(None, reason, manual=False, abort=True)

    def _note_done(self, *, saturated: bool = False, abandoned: bool = False) -> None:
        """The running or paused stage is over; the plan learns of its own."""
        stage, manual = self._paused or (self._before_hold or self._current, self._manual)
        if stage is not None and not manual:
            numbers = measured_of(stage, self._record.stages[self.index], self._record.limits)
            self._done.append(numbers.after(saturated=saturated, abandoned=abandoned))

    def _go_on(self, reason: str) -> None:
        self._paused = None
        following = self._plan(self._done) if self._plan is not None else None
        if following is None or isinstance(following, Stage):
            self._switch(following, reason, manual=False)
            return
        self._plan = None
        self._switch(None, reason, manual=False)
        self._log(SearchEnded(t_s=self._clock_s(), search=following))
        self._event("search", following.why)

    def _switch(self, stage: Stage | None, reason: str, *, manual: bool, abort: bool = False) -> None:
        if self._fleet is None or self._templates_of is None:
            return
        self._cancel_timer()
        ended = None
        if self._current is not None:
            self._last, ended = self._present, self.index
            self._log(StageEnded(t_s=self._clock_s(), index=ended, reason=reason))
        self._current, self._manual, self._pending, self._before_hold = stage, manual, None, None
        if stage is None:
            self._fleet.end_load(abort=abort)
            self._boundary(ended, None)
        else:
            self._begin(stage, ended)

    def _insert(self, stage: Stage, reason: str, *, manual: bool) -> None:
        """Begin a stage that is none of those that the plan has yet to come."""
        self._stages_planned += 1
        self._switch(stage, reason, manual=manual)

    def _begin(self, stage: Stage, ended: int | None) -> None:
        assert self._fleet is not None and self._templates_of is not None
        self.index += 1
        # The last tick may be older than the last change of the load.
        lasting = (self._last.concurrency or 0) if ended is not None else 0
        held = max(self._open_streams, lasting)
        watch = self._watch = StageWatch(stage, held, filled=max(held, self._fleet.streams_at_start(stage)))
        self._last = stage
        self._log(watch.started(self.index, self._clock_s(), manual=self._manual, variant=self.variant))
        self._boundary(ended, self.index)
        templates, apart = self._templates_of(stage), watch.first_wave_apart
        self._fleet.begin_stage(self.index, stage, templates, waits=watch.waits, first_wave_apart=apart)
        self._begun_s, self._window_s, self._max_duration_s = self._clock_s(), None, stage.max_duration_s
        if stage.settle_s:
            self._start_timer(stage.settle_s, self._open_window, False)
        elif stage.duration_s is not None and not watch.waits:
            self._start_timer(stage.warmup_s + stage.duration_s, self.advance, "its time was up")

    def _measured_s(self, stage: Stage) -> float:
        """How long the running stage has been measured; below 0 during its warm-up."""
        if self._waits:
            return self._clock_s() - self._window_s if self._window_s is not None else 0.0
        return self._clock_s() - self._begun_s - stage.warmup_s

    @property
    def _waits(self) -> bool:
        """The running stage is not measured, and does not end, at times that were known when it began."""
        return self._watch is not None and self._watch.waits

    def _start_timer(self, delay_s: float, action: Callable[..., None], *arguments: object) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(delay_s, action, *arguments)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Stages that are watched.

    def observe(self, tick: FleetTick, record: StageRecord | None) -> None:
        """React to a tick: open the window of a stage that has settled, end one that has enough or is beyond help."""
        self._open_streams = tick.held
        stage, watch = self._current, self._watch
        if stage is None or watch is None or record is None or record.started.index != self.index:
            return
        known = watch.saturated
        watch.observe(tick, record, self._clock_s() - self._begun_s)
        if watch.saturated is not None and known is None:
            # What is bounded by a number of requests ends by itself, and what the operator asked for is his.
            if stage.ends_saturated and stage.requests is None and not self._manual:
                self.advance(watch.saturated, saturated=True)
            else:
                self._event("load", watch.saturated)
        elif self._window_s is None and (watch.settled or watch.late):
            self._open_window(watch.settled)
        elif self._window_s is not None and not self._manual:
            why = enough(stage, record, self._clock_s() - self._window_s, self._max_duration_s)
            if why is not None:
                self.advance(why)

    def _open_window(self, settled: bool) -> None:
        if self._fleet is None or self._current is None or self._window_s is not None:
            return
        self._cancel_timer()
        self._window_s = self._clock_s()
        self._log(StageSettled(t_s=self._window_s, index=self.index, settled=settled))
        self._fleet.open_window(self.index)

    # The operator.

    def extend(self, needs_s: float | None = None) -> None:
        """Let the running stage go on for as long as it needs to know E2E, or else for its length once more.

        Only one that time bounds has a length.
        """
        stage = self._before_hold or self._current
        if stage is None or self._manual or stage.duration_s is None:
            self._refuse("extend", "nothing runs" if stage is None else f"{stage.title} is not bounded by time")
            return
        # One that was held ends that much from now, any other so much later than it would have.
        before_s = self._measured_s(stage) if self._held_open else stage.duration_s
        # What is left of its length counts towards what it needs.
        more_s = math.ceil(10 * (self._measured_s(stage) + (needs_s or 0.0) - before_s)) / 10
        if more_s <= 0 or not needs_s:
            more_s = stage.duration_s
        longer = msgspec.structs.replace(stage, duration_s=before_s + more_s)
        self._current, self._before_hold = longer, None
        self._max_duration_s = max(before_s + self._max_duration_s, longer.duration_s or 0.0)
        self._event("load", f"{stage.title} goes on for {more_s:g} s more")
        if not self._waits:
            left_s = before_s + more_s - self._measured_s(stage)
            self._start_timer(left_s, self.advance, "its time was up")

    def redo(self) -> None:
        """Measure the running stage of the plan again from its beginning, or else the last one that is done."""
        own = self._before_hold or (None if self._manual else self._current)
        if self._fleet is None or self._plan is None or (own is None and not self._done):
            self._refuse("redo", "there is no stage of a plan to measure again")
            return
        stage = own if own is not None else self._done.pop().stage
        self._paused = None
        self._event("load", f"{stage.title} once more")
        self._insert(stage, "the operator measures it again", manual=False)

    def set_shape(self, isl: int, osl: int, *, longest: int | None) -> None:
        """Send requests of this shape from now on; not more than `longest` tokens, prompt and answer together."""
        if longest is not None and isl + osl > longest:
            self._refuse("shape", f"{isl} + {osl} = {isl + osl} tokens, but the server's max_model_len is {longest}")
            return
        self.change(f"shape {isl}/{osl}", isl=isl, osl=osl)

    def change(self, words: str, **changes: object) -> None:
        """Go on with fields of the present stage changed, until told; `words` are the load then."""
        if self._finished:
            self._refuse("load", "the run is ending")
            return
        before = self._present
        stage = before.by_hand(**changes)
        self._event("load", f"{before.title} -> {words}")
        if self._paused is not None:
            self._note_done(abandoned=True)
            self._paused = (stage, True)
        elif self._fleet is None:
            self._pending = (stage, True)
        else:
            self._note_done(abandoned=True)
            self._insert(stage, "the operator changed the load", manual=True)

    def follow(self, asked: PlanRequest, profile: Profile) -> None:
        """Begin another plan from where the load stands; what has been measured for the one before is done with."""
        if self._finished:
            self._refuse("plan", "the run is ending")
            return
        try:
            plan, stages = plan_from_here(asked, profile, self._present)
        except ProfileError as error:
            self._refuse("plan", str(error))
            return
        self._event("load", f"{asked.words} from here")
        self._plan, self._done = plan, []
        self._stages_planned = self.index + 1 + stages
        if self._fleet is None:
            self._pending = self._paused = None
        else:
            self._go_on("the operator began another plan")

    def hold(self) -> None:
        """Let the running stage go on without an end of its own."""
        stage = self._current
        if stage is None or self._manual or self._held_open:
            self._refuse("hold", "nothing runs" if stage is None else f"{stage.title} has no end of its own")
            return
        self._event("load", f"{stage.title} is held")
        if stage.requests is not None:
            # The workers have been told how many; so the same load goes on as a stage without an end.
            self._note_done(abandoned=True)
            self._insert(stage.by_hand(rate=stage.rate), "the operator held it", manual=True)
            return
        self._before_hold = stage
        self._current = msgspec.structs.replace(stage, duration_s=None, ends_saturated=False)
        if not self._waits:
            self._cancel_timer()

    def pause(self) -> None:
        """Send nothing more until `resume`; running streams finish."""
        if self._paused is not None:
            return
        if self._current is None:
            self._refuse("pause", "nothing runs")
            return
        stage, manual = self._before_hold or self._current, self._manual
        self._event("pause", "paused")
        self._switch(None, "the operator paused", manual=manual)
        self._paused = (stage, manual)

    def resume(self) -> None:
        if self._paused is None:
            return
        stage, manual = self._paused
        self._event("resume", "resumed")
        if self._fleet is None:
            self._pending, self._paused = self._paused, None
            return
        self._paused = None
        self._insert(stage, "", manual=manual)

    def next_stage(self) -> None:
        """Go on with the plan, whatever is left of the running stage."""
        if self._current is None and self._paused is None:
            self._refuse("next", "nothing runs")
            return
        self._event("load", "next stage")
        self.advance("the operator went on")

    def _refuse(self, what: str, why: str) -> None:
        self._event("error", f"{what} refused: {why}")

    def _event(self, kind: str, text: str) -> None:
        self._log(Happened(t_s=self._clock_s(), kind=kind, text=text))
