"""The running stage: its load, its times, and its end, which the operator may have changed.

A stage that waits (`StageWatch.waits`) is measured from the opening of its window, and ends when that has been long
enough; any other is measured once its warm-up is over, and ends by a timer if it is bounded by time. Times are seconds
of the run's clock.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from loadgen.plan.stage import Stage
from loadgen.record.stage import StageRecord
from loadgen.run.stage_watch import StageWatch, enough


class WaitingStage(NamedTuple):
    """A stage that will begin, set by the operator or from the plan."""

    stage: Stage
    manual: bool


class RunningStage:
    """From the beginning of a stage until `end`."""

    def __init__(
        self,
        stage: Stage,
        watch: StageWatch,
        clock_s: Callable[[], float],
        *,
        settle_time_over: Callable[[], None],
        time_over: Callable[[], None],
    ) -> None:
        """Begin now. `settle_time_over` is called when a settling stage has used up its time for that, `time_over`
        when a stage bounded by time is over; both come from the loop, and never after `end`."""
        self.stage = stage
        self.watch = watch
        self.answered = False  # whether all its requests were answered, so that none of its streams is open
        self._clock_s = clock_s
        self._time_over = time_over
        self._before_hold: Stage | None = None  # the stage with its end, while the operator holds it open
        self._begun_s = clock_s()
        self._window_s: float | None = None  # when the window was opened, for a stage that waits for that
        self._max_duration_s = stage.max_duration_s
        self._timer: asyncio.TimerHandle | None = None
        if stage.settle_s:
            self._start_timer(stage.settle_s, settle_time_over)
        elif stage.duration_s is not None and not watch.waits:
            self._start_timer(stage.warmup_s + stage.duration_s, time_over)

    def end(self) -> None:
        self._cancel_timer()

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
    def lasted_s(self) -> float:
        return self._clock_s() - self._begun_s

    @property
    def measured_s(self) -> float:
        """How long it has been measured; negative during its warm-up."""
        if self.watch.waits:
            return self._clock_s() - self._window_s if self._window_s is not None else 0.0
        return self.lasted_s - self.stage.warmup_s

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
        self._cancel_timer()
        self._window_s = self._clock_s()
        return self._window_s

    def enough(self, record: StageRecord) -> str | None:
        """Why it should end, given the time measured in its own window; None if it should continue."""
        if self._window_s is None:
            return None
        return enough(self.stage, record, self._clock_s() - self._window_s, self._max_duration_s)

    def hold(self) -> None:
        """Let it continue without an end."""
        self._before_hold = self.stage
        self.stage = msgspec.structs.replace(self.stage, duration_s=None, ends_saturated=False)
        if not self.watch.waits:
            self._cancel_timer()

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
        if not self.watch.waits:
            self._start_timer(before_s + more_s - self.measured_s, self._time_over)
        return more_s

    def _start_timer(self, delay_s: float, call: Callable[[], None]) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(delay_s, call)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
