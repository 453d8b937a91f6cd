"""Punctual timers (a timerfd under `add_reader`, with a short spin at the end), and a watch for steps of the clock.

asyncio's own timers round up to a millisecond; a timerfd wakes a sleeping process 50 us late at the median. That is
small next to a TTFT but large next to a gap: two requests due 30 us apart would leave together, and arrivals would
no longer be Poisson. So the timer wakes `lead_ns` early and spins until its time. `os.timerfd_create` exists from
Python 3.13; for older versions the same two calls go through libc.
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

_MAX_LEAD_NS = 100_000  # the 90th percentile of wake-up latency on the machine where it was measured
_MAX_SPUN = 0.1  # the largest share of time spent spinning
_LAG_EVERY_NS = 10_000_000


def timer_lead_ns(rate: float) -> int:
    """How early to wake, in nanoseconds, at this many wake-ups a second."""
    return min(_MAX_LEAD_NS, int(_MAX_SPUN * 1e9 / rate))


class PreciseTimer:
    """Calls back at an absolute CLOCK_MONOTONIC time, never before; setting it again replaces what was set."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self.lead_ns = 0  # how early to wake, and then spin
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
        """Call back if the time has come or is near; call it before each longer piece of work on the loop."""
        if self._at_ns is not None and self.reached(self._at_ns):
            self._at_ns = None
            self._call()

    def reached(self, at_ns: int) -> bool:
        """Whether it is `at_ns` or later; spins if that is at most `lead_ns` away."""
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
    """Samples the event loop's lag a hundred times a second, for connections without kernel timestamps.

    A due timer waits for the loop just as bytes on a socket do.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, record_ns: Callable[[int], None]) -> None:
        self._record_ns = record_ns
        self._timer = PreciseTimer(loop, self._due)
        self._due_ns = 0
        self._set()

    def _due(self) -> None:
        self._record_ns(time.monotonic_ns() - self._due_ns)
        self._set()

    def _set(self) -> None:
        self._due_ns = time.monotonic_ns() + _LAG_EVERY_NS
        self._timer.set(self._due_ns)


MIN_STANDSTILL_NS = 1_000_000_000


def standstill_ns(due_ns: int, busy_ns: int) -> int:
    """How long this process stood still before a timer that was due at `due_ns` came; 0 if it did not.

    It was stopped, frozen or suspended, or its machine was: the timer came more than a second late, and in that second
    the process neither ran nor waited for a core. `busy_ns` is how long it did either, since before the timer was due.
    """
    still_ns = time.monotonic_ns() - due_ns - busy_ns
    return still_ns if still_ns > MIN_STANDSTILL_NS else 0


STEP_NS = 100_000  # a step that visibly moves TTFT and gaps; smaller ones are not detected
_TIGHT_NS = 5_000  # precise enough to stop trying; an undisturbed reading takes 0.3 us
_READINGS = 4
_MAX_READINGS = 100  # if the machine interrupts them all, detection waits for the next call


class _Offset(NamedTuple):
    """Bounds of CLOCK_REALTIME minus CLOCK_MONOTONIC."""

    least_ns: int
    most_ns: int

    @property
    def width_ns(self) -> int:
        return self.most_ns - self.least_ns


class ClockWatch:
    """Detects every clock step of at least `STEP_NS`, even one made in parts, without false alarms on a busy machine.

    Reading one clock between two readings of the other bounds the offset from both sides. A step is reported when the
    bounds before and now do not overlap: an interruption can hide a step until the next call, but never invent one.
    """

    def __init__(
        self, monotonic_ns: Callable[[], int] = time.monotonic_ns, realtime_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._realtime_ns = realtime_ns
        self._offset = self._measure()

    def stepped(self) -> bool:
        """Whether the clock was stepped since the last reported step, or since the beginning."""
        now, before = self._measure(), self._offset
        # The gap between the intervals (0 or less: they overlap); their widths are the most it can understate a step.
        apart_ns = max(now.least_ns - before.most_ns, before.least_ns - now.most_ns)
        if apart_ns > 0 and apart_ns + now.width_ns + before.width_ns >= STEP_NS:
            self._offset = now
            return True
        if apart_ns <= 0 and now.width_ns < before.width_ns:
            self._offset = now
        return False

    def _measure(self) -> _Offset:
        best = self._read()
        for count in range(1, _MAX_READINGS):
            if count >= _READINGS and best.width_ns <= _TIGHT_NS:
                break
            best = min(best, self._read(), key=lambda offset: offset.width_ns)
        return best

    def _read(self) -> _Offset:
        before_ns = self._monotonic_ns()
        realtime_ns = self._realtime_ns()
        after_ns = self._monotonic_ns()
        return _Offset(realtime_ns - after_ns, realtime_ns - before_ns)
