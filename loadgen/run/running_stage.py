"""The running stage: when its measurement begins, its load, and its end, which the operator may have changed.

A stage bounded by time is measured under its own load: once its warm-up is over, streams of a higher load before it
have ended, and streams that all begin at once, as into an idle engine, have their first tokens. One that settles waits
for the end of its whole transient. A stage that waits (`waits`) is measured from the opening of its window, and ends
when that has been long enough; any other ends by a timer if it is bounded by time. Times are seconds of the run's
clock.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from loadgen.distributions import REPLAY
from loadgen.fleet.fleet import FleetTick
from loadgen.plan.stage import Stage
from loadgen.record.stage import StageRecord
from loadgen.run.stage_end import OverloadDetector, Transient, enough, ttft_of
from loadgen.schema.journal import StageLoad, StageStarted

_WAVE_SHARE = 0.1  # of a stage's streams: if fewer begin at once, they are ordinary requests
MAX_FILL_S = 30.0
"""How long a stage without an end waits for its first wave at most; any other waits for as long as it is measured."""

MAX_SESSIONS_FILL_S = 120.0  # likewise for an answer to each live session, which may pause before it


class WaitingStage(NamedTuple):
    """A stage that will begin, set by the operator or from the plan."""

    stage: Stage
    manual: bool


class RunningStage:
    """From the beginning of a stage until `end`."""

    def __init__(
        self,
        stage: Stage,
        clock_s: Callable[[], float],
        *,
        open_streams: int,
        filled: int,
        settle_time_over: Callable[[], None],
        time_over: Callable[[], None],
    ) -> None:
        """Begin now, with `open_streams`, and `filled` once all workers have filled their shares.

        `settle_time_over` is called when a settling stage has used up its time for that, `time_over` when a stage
        bounded by time is over; both come from the loop, and never after `end`.
        """
        self.stage = stage
        self.answered = False  # whether all its requests were answered, so that none of its streams is open
        self.saturated: str | None = None  # why it should not continue, once that is known
        self.late = False  # its first wave takes so long that measurement began without it
        bounded_by_time = stage.requests is None and not stage.settle_s
        concurrency = stage.concurrency or 0
        self.first_wave_apart = stage.first_wave == "apart" and concurrency - open_streams > _WAVE_SHARE * concurrency
        """Whether many streams begin at once, whose figures are kept apart."""
        in_sessions = stage.work.sessions is not None
        self.first_wave_apart &= not in_sessions
        waits_for_answers = in_sessions and concurrency > 0 and stage.requests is None
        self._waits_for_first_wave = waits_for_answers or (self.first_wave_apart and bounded_by_time)
        drains = stage.concurrency is not None and filled > concurrency and not in_sessions
        self._waits_for_drain = bounded_by_time and drains
        self._ready = False  # neither has to be waited for any more
        self._transient = Transient(stage.concurrency) if stage.settle_s and not waits_for_answers else None
        self._max_fill_s = MAX_SESSIONS_FILL_S if waits_for_answers else MAX_FILL_S
        moves = stage.steps or stage.rate_points or stage.arrival == REPLAY
        self._overload = OverloadDetector(stage.rate) if stage.rate is not None and not moves else None
        self._clock_s = clock_s
        self._time_over = time_over
        self._before_hold: Stage | None = None  # the stage with its end, while the operator holds it open
        self._begun_s = clock_s()
        self._window_s: float | None = None  # when the window was opened, for a stage that waits for that
        self._max_duration_s = stage.max_duration_s
        self._timer: asyncio.TimerHandle | None = None
        if stage.settle_s:
            self._start_timer(stage.settle_s, settle_time_over)
        elif stage.duration_s is not None and not self.waits:
            self._start_timer(stage.warmup_s + stage.duration_s, time_over)

    def started(self, index: int, *, manual: bool, variant: str | None) -> StageStarted:
        """The line that begins it; `manual` if the operator requested it."""
        stage = self.stage
        load = {name: getattr(stage, name) for name in StageLoad.__struct_fields__}
        return StageStarted(
            **load | {"label": stage.title},
            t_s=self._begun_s,
            index=index,
            manual=manual,
            waits_for_drain=self._waits_for_drain,
            awaits_first_wave=self._waits_for_first_wave,
            variant=variant,
            thinks=stage.work.think_s > 0,
            in_sessions=stage.work.sessions is not None and not stage.no_load,
            random_prompts=stage.work.random_prompts and not stage.no_load,
            # Passes after the first repeat their prompts on purpose; without load, others' intentions are unknown.
            meant_hits=1.0 if stage.no_load or (stage.pass_number or 1) > 1 else stage.work.meant_hits,
        )

    def observe(self, tick: FleetTick, record: StageRecord) -> None:
        index, lasted_s = record.started.index, self._clock_s() - self._begun_s
        self.answered = tick.finished == index
        if self._transient is not None:
            self._transient.observe(
                held=tick.held, delta=tick.stages.get(index), output_tokens=tick.client.output_tokens
            )
        elif self.waits and lasted_s >= self.stage.warmup_s:
            filled = tick.first_wave_waiting == 0 or not self._waits_for_first_wave
            drained = tick.held <= (self.stage.concurrency or 0) or not self._waits_for_drain
            self._ready = self._ready or (tick.first_wave_waiting is not None and filled and drained)
            max_fill_s = self.stage.duration_s or self._max_fill_s
            is_late = lasted_s - self.stage.warmup_s > max_fill_s
            self.late = self._waits_for_first_wave and not self._ready and is_late
        if self._overload is not None and self.saturated is None:
            self.saturated = self._judge(self._overload, tick, record, lasted_s)

    def _judge(self, detector: OverloadDetector, tick: FleetTick, record: StageRecord, t_s: float) -> str | None:
        index = record.started.index
        still_open = tick.open_stages.get(index, 0)
        if not detector.observe(t_s, still_open, tick.queued, ttft_of(tick.stages.get(index))):
            return None
        ended = record.counters["warmup"] + record.counters["sent"] - still_open
        e2e_ms, ttft_ms, tpot_ms = (record.histogram(name).mean_ms() for name in ("e2e", "warmup_ttft", "warmup_tpot"))
        if e2e_ms is None and ttft_ms is not None and tpot_ms is not None:  # an estimate from the warm-up
            e2e_ms = ttft_ms + tpot_ms * (self.stage.osl - 1)
        return detector.verdict(ended=ended, e2e_mean_s=None if e2e_ms is None else e2e_ms / 1000)

    @property
    def waits(self) -> bool:
        """Whether the start of its measurement is not known in advance."""
        return self._waits_for_drain or self._waits_for_first_wave or self._transient is not None

    @property
    def settled(self) -> bool:
        """Whether its transient is over; never true for a stage that does not wait for that."""
        return self._ready or (self._transient is not None and self._transient.over)

    @property
    def own(self) -> Stage:
        """The stage with its own end, if it had one before the operator held it open."""
        return self._before_hold or self.stage

    @property
    def held_open(self) -> bool:
        """Whether the operator lets it continue past its end."""
        return self._before_hold is not None

    @property
    def present(self) -> Stage:
        """The present load; for a load that changes within its stage, the current step."""
        return self.stage.at(self.measured_s)

    @property
    def lasting(self) -> int:
        """How many streams of its closed loop are still open if it ends now."""
        # The last tick does not say: it may be older than the last change of the load.
        return 0 if self.answered else self.present.concurrency or 0

    @property
    def measured_s(self) -> float:
        """How long it has been measured; negative during its warm-up."""
        if self.waits:
            return self._clock_s() - self._window_s if self._window_s is not None else 0.0
        return self._clock_s() - self._begun_s - self.stage.warmup_s

    @property
    def left_s(self) -> float | None:
        """Its remaining time; None if it has no end."""
        return None if self.stage.duration_s is None else max(0.0, self.stage.duration_s - self.measured_s)

    @property
    def window_is_open(self) -> bool:
        """Whether its measurement has begun; never true for a stage that does not wait for that."""
        return self._window_s is not None

    def open_window(self) -> float:
        """Begin its measurement; returns the present time."""
        self.end()
        self._window_s = self._clock_s()
        return self._window_s

    def enough(self, record: StageRecord) -> str | None:
        """Why it should end, given the time measured in its own window; None if it should continue."""
        if self._window_s is None:
            return None
        return enough(self.stage, record, self._clock_s() - self._window_s, self._max_duration_s)

    def hold(self) -> None:
        self._before_hold = self.stage
        self.stage = msgspec.structs.replace(self.stage, duration_s=None, ends_saturated=False)
        if not self.waits:
            self.end()

    def extend(self, needs_s: float | None) -> float:
        """Extend it, held open or not, so that `needs_s` more are measured, or by its own length if that adds nothing.

        Returns the extension in seconds. Only a stage bounded by time can be extended.
        """
        length_s = self.own.duration_s
        assert length_s is not None
        # If it was held open, it ends that much from now; otherwise, that much later than planned.
        before_s = max(0.0, self.measured_s) if self.held_open else length_s
        # The rest of its length counts towards what it needs.
        more_s = math.ceil(10 * (self.measured_s + (needs_s or 0.0) - before_s)) / 10
        if more_s <= 0 or not needs_s:
            more_s = length_s
        self.stage, self._before_hold = msgspec.structs.replace(self.own, duration_s=before_s + more_s), None
        self._max_duration_s = before_s + max(self._max_duration_s, more_s)
        if not self.waits:
            self._start_timer(before_s + more_s - self.measured_s, self._time_over)
        return more_s

    def _start_timer(self, delay_s: float, call: Callable[[], None]) -> None:
        self.end()
        self._timer = asyncio.get_running_loop().call_later(delay_s, call)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
