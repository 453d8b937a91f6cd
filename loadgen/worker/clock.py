"""Whether the wall clock was stepped: kernel timestamps are of that clock, durations must not jump with it.

Only a step (`clock_settime`, `adjtimex` with ADJ_SETOFFSET, a leap second) moves CLOCK_REALTIME against
CLOCK_MONOTONIC: what NTP slews, by frequency or by `adjtime`, moves both alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

STEP_NS = 100_000  # what moves TTFT and gaps visibly; what is less is not looked for
_TIGHT_NS = 5_000  # A reading within so much time is as exact as one can be used; it takes 0.3 us undisturbed
_READINGS = 4
_MOST_READINGS = 100  # on a machine that interrupts all of them there is no verdict until the next look


class _Offset(NamedTuple):
    """CLOCK_REALTIME minus CLOCK_MONOTONIC is surely between these."""

    least_ns: int
    most_ns: int

    @property
    def width_ns(self) -> int:
        return self.most_ns - self.least_ns


class ClockWatch:
    """Tells of every step from `STEP_NS` on, also one made in parts, and of nothing else however busy the machine is.

    A reading of one clock between two of the other bounds the offset from both sides. A step is told when no offset
    that was possible before is possible now: an interruption can hide one until the next look, but never invent one.
    """

    def __init__(
        self, monotonic_ns: Callable[[], int] = time.monotonic_ns, realtime_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._realtime_ns = realtime_ns
        self._offset = self._measure()

    def stepped(self) -> bool:
        """Whether it was stepped since the last step that was told, or since the beginning."""
        now, before = self._measure(), self._offset
        # Between the two intervals; 0 or less where they overlap. The most that a true step of STEP_NS can shrink to.
        apart_ns = max(now.least_ns - before.most_ns, before.least_ns - now.most_ns)
        if apart_ns > 0 and apart_ns + now.width_ns + before.width_ns >= STEP_NS:
            self._offset = now
            return True
        if apart_ns <= 0 and now.width_ns < before.width_ns:
            self._offset = now
        return False

    def _measure(self) -> _Offset:
        best = self._read()
        for count in range(1, _MOST_READINGS):
            if count >= _READINGS and best.width_ns <= _TIGHT_NS:
                break
            best = min(best, self._read(), key=lambda offset: offset.width_ns)
        return best

    def _read(self) -> _Offset:
        before_ns = self._monotonic_ns()
        realtime_ns = self._realtime_ns()
        after_ns = self._monotonic_ns()
        return _Offset(realtime_ns - after_ns, realtime_ns - before_ns)
