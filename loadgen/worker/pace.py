"""What is on time: a timerfd under `add_reader`, a spin over its last stretch, and a place at the front of the cores.

asyncio's own timers round up to a millisecond; a timerfd wakes a sleeping process late by 50 us at the median. That is
little beside a TTFT and much beside a short gap: two requests wanted 30 us apart would leave together, and the arrivals
would not be Poisson's. So the timer wakes `lead_ns` early and spins until its time. `os.timerfd_create` is in Python
from 3.13; before, the same two calls go through libc.

Where the machine's cores are busy a woken process waits for its turn. One that asks for short slices has it sooner,
and not more of the CPU; but where an engine fills all cores and yields in a loop, as vLLM does, even that one waits 100
ms now and then, and reads a whole stream at once. A realtime process never waits. It takes the time from the others,
so a worker, and vramp itself while it drives load, is one only while it takes little.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import struct
import time
from collections.abc import Callable
from pathlib import Path

_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_pack_itimerspec = struct.Struct("qqqq").pack

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_FLAG_KEEP_POLICY = 0x08
_SLICE_NS = 100_000
"""The shortest that Linux grants."""
_pack_sched_attr = struct.Struct("IIQiIQQQ").pack

_MOST_REALTIME = 0.25
"""Of all cores, for all workers, and as much for the process that leads them: the rest is the engine's."""

_OVER_NS = 1_000_000_000
"""A burst that is shorter does not count in full: whoever goes back in the line may wait long for the next look."""

_LONGEST_LEAD_NS = 100_000
"""What waking takes in nine of ten cases, on the machine where it was measured."""
_MOST_SPUN = 0.1
"""Of the time."""


def lead_for(rate: float) -> int:
    """How long before its time to wake, in nanoseconds, for so many times a second."""
    return min(_LONGEST_LEAD_NS, int(_MOST_SPUN * 1e9 / rate))


def ask_for_short_slices() -> None:
    """Ask the scheduler to let this process run soon after it wakes: of any user, from Linux 6.12; else nothing."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attr = _pack_sched_attr(48, 0, _SCHED_FLAG_KEEP_POLICY, nice, 0, _SLICE_NS, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attr, 0)


def realtime_share(cores: int, processes: int) -> float:
    """How much of a core each of so many processes may take before the others."""
    return min(1.0, _MOST_REALTIME * cores / processes)


class Precedence:
    """Keeps this process before all others, where it may be and while it takes little.

    One that went back in the line has to come well below before it is realtime again.
    `most` is how much of a core it may take, 0 for nothing; `otherwise` is called whenever it goes back.
    """

    def __init__(self, most: float, otherwise: Callable[[], None] = lambda: None) -> None:
        self._most = most
        self._otherwise = otherwise
        self._may = most > 0 and run_before_others(True)
        self.realtime = self._may
        self._share = 0.0
        self._cpu_ns, self._wall_ns = time.process_time_ns(), time.monotonic_ns()

    def look(self) -> tuple[int, int]:
        """CPU since the last look, and for how long it was realtime, in nanoseconds; goes on as the CPU allows."""
        cpu_before_ns, self._cpu_ns = self._cpu_ns, time.process_time_ns()
        wall_before_ns, self._wall_ns = self._wall_ns, time.monotonic_ns()
        used_ns, span_ns = self._cpu_ns - cpu_before_ns, self._wall_ns - wall_before_ns
        realtime_ns = span_ns if self.realtime else 0
        self._share += min(1.0, span_ns / _OVER_NS) * (used_ns / max(1, span_ns) - self._share)
        if self._may:
            self._be(takes_little(self._share, self._most, realtime=self.realtime))
        return used_ns, realtime_ns

    def end(self) -> None:
        """Be one among the others again."""
        self._be(False)
        self._may = False

    def _be(self, realtime: bool) -> None:
        """Threads come and go: those that are new become what the others are."""
        before, self.realtime = self.realtime, realtime
        if realtime or before:
            run_before_others(realtime)
        if before and not realtime:
            self._otherwise()


def run_before_others(wanted: bool) -> bool:
    """Make all threads of this process realtime, or ordinary ones; whether they are realtime, as not all may be."""
    policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK if wanted else os.SCHED_OTHER
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(int(wanted)))
        except ProcessLookupError:  # it has just ended
            continue
        except OSError:
            return False
    return wanted


def takes_little(cpu_share: float, most: float, *, realtime: bool) -> bool:
    """Whether a process that used so much of a core may be realtime."""
    return cpu_share <= (most if realtime else most / 2)


class PreciseTimer:
    """Calls back at an absolute CLOCK_MONOTONIC time, never before; setting it again replaces what was set."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self.lead_ns = 0
        """How long before its time to wake and spin."""
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
        """Do not call back."""
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
        """Give the descriptor back."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _woken(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return
        self.check()
