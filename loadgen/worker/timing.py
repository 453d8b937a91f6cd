"""What is on time: a timerfd under `add_reader`, and a spin over its last stretch.

asyncio's own timers round up to a millisecond; a timerfd wakes a sleeping process late by 50 us at the median. That is
little beside a TTFT and much beside a short gap: two requests wanted 30 us apart would leave together, and the arrivals
would not be Poisson's. So the timer wakes `lead_ns` early and spins until its time. `os.timerfd_create` is in Python
from 3.13; before, the same two calls go through libc.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_pack_itimerspec = struct.Struct("qqqq").pack

_LONGEST_LEAD_NS = 100_000  # what waking takes in nine of ten cases, on the machine where it was measured
_MOST_SPUN = 0.1  # of the time
_LAG_EVERY_NS = 10_000_000


def timer_lead_ns(rate: float) -> int:
    """How long before its time to wake, in nanoseconds, for so many times a second."""
    return min(_LONGEST_LEAD_NS, int(_MOST_SPUN * 1e9 / rate))


class PreciseTimer:
    """Calls back at an absolute CLOCK_MONOTONIC time, never before; setting it again replaces what was set."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self.lead_ns = 0  # how long before its time to wake and spin
        self._loop = loop
        self._call = call
        self._at_ns: int | None = None
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        loop.add_reader(self._descriptor, self._woken)

    def set(self, at_ns: int) -> None:
        """Call back at this time, or at once if it has passed."""
        self._at_ns = at_ns
        # A zero time would disarm the timer.
        seconds, nanoseconds = divmod(max(1, at_ns - self.lead_ns), 1_000_000_000)
        spec = _pack_itimerspec(0, 0, seconds, nanoseconds)
        self._libc.timerfd_settime(self._descriptor, _TFD_TIMER_ABSTIME, spec, None)

    def cancel(self) -> None:
        self._at_ns = None
        self._libc.timerfd_settime(self._descriptor, 0, _pack_itimerspec(0, 0, 0, 0), None)

    def check(self) -> None:
        """Call back if the time has come or is near: for those who hold the loop, before each piece of their work."""
        if self._at_ns is not None and self.reached(self._at_ns):
            self._at_ns = None
            self._call()

    def reached(self, at_ns: int) -> bool:
        """Whether it is so late; a time that is near is waited for."""
        if at_ns - time.monotonic_ns() > self.lead_ns:
            return False
        while time.monotonic_ns() < at_ns:
            pass
        return True

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _woken(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return
        self.check()


class LoopLag:
    """How late the loop comes to what is ready, a hundred times a second: for connections that no kernel stamps.

    A timer that is due waits in the loop as bytes on a socket do.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, record_ns: Callable[[int], None]) -> None:
        self._record_ns = record_ns
        self._timer = PreciseTimer(loop, self._due)
        self._due_ns = 0
        self._set()

    def close(self) -> None:
        self._timer.close()

    def _due(self) -> None:
        self._record_ns(time.monotonic_ns() - self._due_ns)
        self._set()

    def _set(self) -> None:
        self._due_ns = time.monotonic_ns() + _LAG_EVERY_NS
        self._timer.set(self._due_ns)


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
