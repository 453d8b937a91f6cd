"""A worker's place among the processes of the machine: short slices, and realtime where that is asked for.

Where the machine's cores are busy a woken process waits for its turn. One that asks for short slices has it sooner,
and not more of the CPU; but where an engine fills all cores and yields in a loop, as vLLM does, even that one waits 100
ms now and then, and reads a whole stream at once. A realtime process never waits. But it takes the time from whoever
is on its core, which may be the engine although other cores are free, and no quota of a container holds it back. So
realtime is asked for (`load.realtime`), goes by a budget, and is only for workers.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import time
from pathlib import Path
from types import FrameType

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_FLAG_KEEP_POLICY = 0x08
_SLICE_NS = 100_000  # the shortest that Linux grants
_pack_sched_attr = struct.Struct("IIQiIQQQ").pack

_MOST_OF_CORES = 0.25  # for all workers together: the rest is the engine's
_MOST_OF_A_CORE = 0.7  # A worker that needs more than this is about to be too slow, realtime or not
_SMOOTHING_NS = 1_000_000_000  # shorter bursts do not count in full
_STUCK_US = 1_000_000
"""CPU time without once waiting for anything, after which the kernel sends SIGXCPU: the worker stops being realtime."""
_HOPELESS_US = 3_000_000  # and after this much, because not even the signal was handled, the kernel kills it


def ask_for_short_slices() -> None:
    """Ask the scheduler to let this process run soon after it wakes: of any user, from Linux 6.12; else nothing."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attr = _pack_sched_attr(48, 0, _SCHED_FLAG_KEEP_POLICY, nice, 0, _SLICE_NS, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attr, 0)


def realtime_budget(cores: float, workers: int) -> float:
    """How much of a core each of so many workers may take as a realtime process."""
    return min(_MOST_OF_A_CORE, _MOST_OF_CORES * cores / workers)


def within_budget(cpu_share: float, budget: float, *, realtime: bool) -> bool:
    """Whether a process that used so much of a core may be realtime; one that lost it must come well below first."""
    return cpu_share <= (budget if realtime else budget / 2)


def waited_ns() -> int:
    """How long this process (its main thread) was ready to run and had no core, since it began; 0 if nobody counts."""
    try:
        return int(Path("/proc/self/schedstat").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


class RealtimePriority:
    """Keeps this process realtime, where the system lets it, while it keeps to its budget: a share of a core.

    `look` decides anew and must be called often. A process that hangs never gets there: for that one there is
    RLIMIT_RTTIME. Budget 0: it never is.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._share = 0.0
        self._cpu_ns, self._wall_ns = time.process_time_ns(), time.monotonic_ns()
        self.realtime = False
        self._allowed = False
        if budget > 0:
            # Before it is realtime, or there would be a moment without the backstop.
            signal.signal(signal.SIGXCPU, self._stuck)
            _limit_stuck_time()
            self._allowed = self.realtime = set_realtime(True)

    def look(self) -> tuple[int, int]:
        """CPU since the last look, and for how long it was realtime, in nanoseconds."""
        cpu_before_ns, self._cpu_ns = self._cpu_ns, time.process_time_ns()
        wall_before_ns, self._wall_ns = self._wall_ns, time.monotonic_ns()
        used_ns, span_ns = self._cpu_ns - cpu_before_ns, self._wall_ns - wall_before_ns
        realtime_ns = span_ns if self.realtime else 0
        self._share += min(1.0, span_ns / _SMOOTHING_NS) * (used_ns / max(1, span_ns) - self._share)
        if self._allowed:
            self._become(within_budget(self._share, self._budget, realtime=self.realtime))
        return used_ns, realtime_ns

    def _become(self, realtime: bool) -> None:
        # Threads come and go: those that are new become what the others are.
        if realtime:
            _limit_stuck_time()
            set_realtime(True)
        elif self.realtime:
            set_realtime(False)
            ask_for_short_slices()
        self.realtime = realtime

    def _stuck(self, _signal: int, _frame: FrameType | None) -> None:
        self._share = 1.0
        self._become(False)


def set_realtime(wanted: bool) -> bool:
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


def _limit_stuck_time() -> None:
    """Set anew each time: the kernel raises the soft limit by a second whenever it sends the signal."""
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    most = _HOPELESS_US if hard == resource.RLIM_INFINITY else min(hard, _HOPELESS_US)
    resource.setrlimit(resource.RLIMIT_RTTIME, (min(_STUCK_US, most), most))
