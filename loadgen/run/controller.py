"""Decides which stage runs and which comes next, from the plan and the operator's requests.

Every change of the load ends one stage and begins another, in the same turn of the loop as the keypress, and is an
event in the journal; a refused request is an error event with its reason. Pausing also ends the stage; resuming begins
it again. Nothing here blocks. When a stage of the plan is over, the plan derives the next one from its measurements so
far, which exclude stages that the operator set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from loadgen.errors import ProfileError
from loadgen.fleet.fleet import Fleet, FleetTick
from loadgen.plan.from_here import plan_from_here
from loadgen.plan.request import PlanRequest
from loadgen.plan.stage import Measured, Plan, Stage
from loadgen.profile.schema import Profile
from loadgen.record.stage import StageRecord
from loadgen.run.probe import TemplatesOf
from loadgen.run.running_stage import RunningStage, WaitingStage
from loadgen.run.stage_end import measured_of
from loadgen.schema.journal import SearchEnded, StageEnded, StageSettled

if TYPE_CHECKING:
    from loadgen.run.writer import RunWriter

Boundary = Callable[[int | None, int | None], None]
"""Called with the indices of the ended and the beginning stage, so that the engine's metrics are read in between."""
_CHANGED = "the operator changed the load"
_OTHER_PLAN = "the operator began another plan"


class LoadController:
    """The load of a run. The operator's requests may come at any time and take effect at once; those that come
    too early or too late are refused."""

    def __init__(self, plan: Plan, known: Sequence[Stage], writer: RunWriter, variant: str | None) -> None:
        """`known` are the plan's stages as far as known; the first is shown until it begins."""
        self._plan: Plan | None = plan
        self._done: list[Measured] = []
        self._record, self._log, self._event, self._clock_s = writer.record, writer.log, writer.event, writer.clock_s
        self._fleet: Fleet | None = None
        self._templates_of: TemplatesOf | None = None
        self._boundary: Boundary = lambda ended, begun: None
        self._known = known
        self._last = known[0]
        self._open_streams = 0  # as of the last tick, or those of a stage that has ended since
        self._running: RunningStage | None = None
        self._paused: WaitingStage | None = None
        self._pending: WaitingStage | None = None
        """The stage that begins once there is a server, and workers if it needs them: the first load, or the stage that
        ran before a restart."""
        self._finished = False
        self.index = -1
        self.manual = False  # whether the operator set the running stage, which then has no end of its own
        self._stages_planned = len(known)  # as far as known, plus those inserted by the operator
        self.variant = variant  # of the profile, on the running server

    def attach(self, fleet: Fleet, boundary: Boundary) -> None:
        """Begin the plan, or the stage that was requested earlier, now that the server is ready."""
        self._fleet, self._boundary = fleet, boundary
        if self.paused:
            return
        if self._pending is None or self.awaits_workers is not None:
            self.advance("")
            return
        self._insert(self._pending.stage, "", manual=self._pending.manual)

    @property
    def load_requested(self) -> bool:
        """Whether the plan, or what begins in its place, sends requests."""
        return any(not stage.no_load for stage in (*self._known, self._shown))

    @property
    def awaits_workers(self) -> Stage | None:
        """The requested load that begins as soon as there are workers for it."""
        if self._fleet is None or self._pending is None or not self._needs_workers(self._pending.stage):
            return None
        return self._pending.stage

    def _needs_workers(self, stage: Stage) -> bool:
        return not stage.no_load and self._templates_of is None

    def workers_ready(self, templates_of: TemplatesOf) -> None:
        """Begin the load that was requested earlier, if any, now that there are workers."""
        self._templates_of = templates_of
        if self._fleet is None or self._pending is None:
            return
        if self._pending.manual:
            self._note_done(abandoned=True)
            self._insert(self._pending.stage, _CHANGED, manual=True)
        else:
            self._go_on(_OTHER_PLAN)

    @property
    def is_idle(self) -> bool:
        """No load is sent, and none waits to be sent again or as soon as it can be."""
        waiting = self.paused or self._pending is not None
        return not waiting and not self._open_streams and (self._running is None or self._running.stage.no_load)

    def workers_freed(self) -> None:
        """Make the next load wait for `workers_ready`, because someone else may drive the server by then."""
        self._templates_of = None

    def refuse_load(self, why: str) -> None:
        """Drop the load that waits for workers, because there can be none; the running stage continues."""
        if self._pending is not None and not self._pending.manual:
            self._plan = None
        self._pending = None
        self._refuse("load", why)

    def detach(self, reason: str) -> None:
        """End the stage, because its server stops; it begins again, as a manual stage, once there is another server."""
        running = self._running
        self._templates_of = None
        if self._fleet is None:
            return
        if running is None:
            self._fleet.end_load(abort=True)
        else:
            present = running.present
            self._note_done(abandoned=True)
            self._switch(None, reason, manual=False, abort=True)
            self._pending = self._pending or WaitingStage(present.by_hand(rate=present.rate), manual=True)
        self._fleet, self._open_streams = None, 0

    @property
    def paused(self) -> bool:
        return self._paused is not None

    @property
    def over(self) -> bool:
        """Whether nothing runs and nothing will begin by itself."""
        return self._fleet is not None and self._running is None and not self.paused and self._pending is None

    @property
    def requested(self) -> Stage:
        """The load to show: the running stage, or the one that waits."""
        return self._running.stage if self._running is not None else self._shown

    @property
    def held_open(self) -> bool:
        """Whether the operator lets the running stage continue past its end."""
        return self._running is not None and self._running.held_open

    @property
    def stages_planned(self) -> int:
        """How many stages there will be, as far as known."""
        return max(self._stages_planned, self.index + 1)

    @property
    def _shown(self) -> Stage:
        """The stage to show while none runs: the paused one, otherwise the last, otherwise the first to come."""
        waiting = self._paused or self._pending
        return waiting.stage if waiting is not None else self._last

    @property
    def _present(self) -> Stage:
        """The present load; for a load that changes within its stage, the current step."""
        return self._running.present if self._running is not None else self._shown

    @property
    def _own(self) -> Stage | None:
        """The running stage, as it was before the operator held it open."""
        return self._running.own if self._running is not None else None

    # The plan.

    def advance(self, reason: str, *, saturated: bool = False) -> None:
        """End the running stage, if any, and begin the plan's next, if any."""
        if self.awaits_workers is not None and self._pending is not None and not self._pending.manual:
            return  # the plan's next stage is about to begin; the running one does not belong to that plan
        self._note_done(saturated=saturated)
        self._go_on(reason)

    def finish(self, reason: str) -> None:
        """End the running stage, cut off its streams and never send anything more."""
        self._finished = True
        self._plan = None
        self._paused = None
        self._switch(None, reason, manual=False, abort=True)

    def _note_done(self, *, saturated: bool = False, abandoned: bool = False) -> None:
        """Record the measurements of the running or paused stage, which is over, if it belongs to the plan."""
        stage, manual = self._paused or (self._own, self.manual)
        if stage is not None and not manual:
            numbers = measured_of(stage, self._record.stages[self.index], self._record.limits)
            self._done.append(numbers.after(saturated=saturated, abandoned=abandoned))

    def _go_on(self, reason: str) -> None:
        self._paused = None
        following = self._plan(self._done) if self._plan is not None else None
        if isinstance(following, Stage) and self._fleet is not None and self._needs_workers(following):
            self._pending = WaitingStage(following, manual=False)
            return
        if following is None or isinstance(following, Stage):
            self._switch(following, reason, manual=False)
            return
        self._plan = None
        self._switch(None, reason, manual=False)
        self._log(SearchEnded(t_s=self._clock_s(), search=following))
        self._event("search", following.why)

    def _switch(self, stage: Stage | None, reason: str, *, manual: bool, abort: bool = False) -> None:
        if self._fleet is None:
            return
        ended = None
        if self._running is not None:
            self._running.end()
            self._last, ended = self._running.present, self.index
            self._open_streams = max(self._open_streams, self._running.lasting)
            self._log(StageEnded(t_s=self._clock_s(), index=ended, reason=reason))
        if manual or self._finished or self.awaits_workers is None:
            self._pending = None
        self._running, self.manual = None, manual
        if stage is None:
            self._fleet.end_load(abort=abort)
            self._boundary(ended, None)
        else:
            self._begin(stage, ended)

    def _insert(self, stage: Stage, reason: str, *, manual: bool) -> None:
        """Begin a stage that is not the plan's next, now or once there are a server and workers for it."""
        if self._fleet is None or self._needs_workers(stage):
            self._pending = WaitingStage(stage, manual)
            return
        self._stages_planned += 1
        self._switch(stage, reason, manual=manual)

    def _begin(self, stage: Stage, ended: int | None) -> None:
        assert self._fleet is not None
        self.index += 1
        running = self._running = RunningStage(
            stage,
            self._clock_s,
            open_streams=self._open_streams,
            filled=max(self._open_streams, self._fleet.streams_at_start(stage)),
            settle_time_over=partial(self._open_window, False),
            time_over=partial(self.advance, "its time was up"),
        )
        self._last = stage
        self._log(running.started(self.index, manual=self.manual, variant=self.variant))
        self._boundary(ended, self.index)
        templates = self._templates_of(stage) if self._templates_of is not None else ()
        self._fleet.begin_stage(
            self.index, stage, templates, waits=running.waits, first_wave_apart=running.first_wave_apart
        )

    # Stages that are watched.

    def observe(self, tick: FleetTick, record: StageRecord | None) -> None:
        """React to a tick: open the window of a settled stage, or end one that is saturated or has measured enough."""
        self._open_streams = tick.held
        running = self._running
        if running is None or record is None or record.started.index != self.index:
            return
        stage, was_saturated = running.stage, running.saturated is not None
        running.observe(tick, record)
        if running.saturated is not None and not was_saturated:
            # Not for a stage bounded by requests, which ends by itself, or one set by the operator.
            if stage.ends_saturated and stage.requests is None and not self.manual:
                self.advance(running.saturated, saturated=True)
            else:
                self._event("load", running.saturated)
        elif not running.window_is_open and (running.settled or running.late):
            self._open_window(running.settled)
        elif not self.manual:
            why = running.enough(record)
            if why is not None:
                self.advance(why)

    def _open_window(self, settled: bool) -> None:
        if self._fleet is None or self._running is None or self._running.window_is_open:
            return
        self._log(StageSettled(t_s=self._running.open_window(), index=self.index, settled=settled))
        self._fleet.open_window(self.index)

    # The operator.

    def extend(self) -> None:
        """Extend the running stage by the time it still needs to measure E2E, or else by its own length."""
        running, record = self._running, self._record.current
        if running is None or self.manual or running.own.duration_s is None:
            self._refuse("extend", "nothing runs" if running is None else f"{running.own.title} is not bounded by time")
            return
        more_s = running.extend(record.e2e_needs_s if record is not None else None)
        self._event("load", f"{running.stage.title} extended by {round(more_s, 1):g} s")

    def redo(self) -> None:
        """Measure the plan's running stage again from its start, or its last completed stage if none is running."""
        own = None if self.manual else self._own
        if self._fleet is None or self._plan is None or (own is None and not self._done):
            self._refuse("redo", "there is no stage of a plan to measure again")
            return
        stage = own if own is not None else self._done.pop().stage
        self._paused = None
        self._event("load", f"{stage.title} is measured again")
        self._insert(stage, "the operator measures it again", manual=False)

    def begin_again(self, why: str) -> None:
        """End the running stage and begin its load again, shared among the remaining workers."""
        if self._running is not None and not self._running.stage.no_load:
            self._insert(self._running.own, why, manual=self.manual)

    def set_shape(self, isl: int, osl: int, *, longest: int | None) -> None:
        """Send requests of this shape from now on; refused if prompt and answer together exceed `longest` tokens."""
        if longest is not None and isl + osl > longest:
            self._refuse("shape", f"{isl} + {osl} = {isl + osl} tokens, but the server's max_model_len is {longest}")
            return
        self.change(f"shape {isl}/{osl}", isl=isl, osl=osl)

    def change(self, words: str = "", **changes: object) -> None:
        """Continue with the load changed as in `changes`, without an end; `words` name it in place of its title."""
        if self._finished:
            self._refuse("load", "the run is ending")
            return
        before = self._present
        if before.work.sessions is not None and ("isl" in changes or changes.get("rate") is not None):
            self._refuse("load", "sessions have lengths and times of their own; change how many are live")
            return
        stage = before.by_hand(**changes)
        self._event("load", f"{before.title} -> {words or stage.title}")
        if self._paused is not None:
            self._note_done(abandoned=True)
            self._paused = WaitingStage(stage, manual=True)
        elif self._fleet is None or self._needs_workers(stage):
            self._pending = WaitingStage(stage, manual=True)
        else:
            self._note_done(abandoned=True)
            self._insert(stage, _CHANGED, manual=True)

    def follow(self, requested: PlanRequest, profile: Profile) -> None:
        """Begin another plan from the present load; measurements for the previous plan are dropped."""
        if self._finished:
            self._refuse("plan", "the run is ending")
            return
        try:
            plan, stages = plan_from_here(requested, profile, self._present)
        except ProfileError as error:
            self._refuse("plan", str(error))
            return
        self._event("load", f"{requested.words} from here")
        self._plan, self._done = plan, []
        self._stages_planned = self.index + 1 + stages
        if self._fleet is None:
            self._pending = self._paused = None
        else:
            self._go_on(_OTHER_PLAN)

    def hold(self) -> None:
        running = self._running
        if running is None or self.manual or running.held_open:
            self._refuse("hold", "nothing runs" if running is None else f"{running.stage.title} has no end of its own")
            return
        stage = running.stage
        self._event("load", f"{stage.title} is held")
        if stage.requests is not None:
            # The workers know a fixed number of requests, so the same load continues as a stage without an end.
            self._note_done(abandoned=True)
            self._insert(stage.by_hand(rate=stage.rate), "the operator held it", manual=True)
        else:
            running.hold()

    def pause(self) -> None:
        """Send nothing more until `resume`; running streams finish."""
        if self._paused is not None:
            return
        own = self._own
        if own is None or own.no_load:
            self._refuse("pause", "nothing runs" if own is None else "there is no load")
            return
        self._event("pause", "paused")
        self._switch(None, "the operator paused", manual=self.manual)
        self._paused = WaitingStage(own, self.manual)

    def resume(self) -> None:
        if self._paused is None:
            return
        self._event("resume", "resumed")
        paused, self._paused = self._paused, None
        self._insert(paused.stage, "", manual=paused.manual)

    def mark(self, text: str) -> None:
        """During a stage without load, begin another, labelled `text`, for the rest of its time; else do nothing."""
        running = self._running
        if running is None or not running.stage.no_load:
            return
        marked = msgspec.structs.replace(running.stage, label=text, duration_s=running.left_s)
        self._insert(marked, "the operator set a mark", manual=self.manual)

    def next_stage(self) -> None:
        if self._running is None and self._paused is None:
            self._refuse("next", "nothing runs")
            return
        self._event("load", "next stage")
        self.advance("the operator moved on")

    def _refuse(self, what: str, why: str) -> None:
        self._event("error", f"{what} refused: {why}")
