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

_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_pack_itimerspec = struct.Struct("qqqq").pack

_LONGEST_LEAD_NS = 100_000  # what waking takes in nine of ten cases, on the machine where it was measured
_MOST_SPUN = 0.1  # of the time


_LATENESS_EVERY_NS = 10_000_000


def lead_for(rate: float) -> int:
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


class Lateness:
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
        self._due_ns = time.monotonic_ns() + _LATENESS_EVERY_NS
        self._timer.set(self._due_ns)
