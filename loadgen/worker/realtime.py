"""A worker's scheduling on the machine: short time slices, and realtime priority if requested.

On busy cores a woken process waits for its turn. One that asks for short slices gets its turn sooner, without more CPU.
But where an engine fills all cores and yields in a loop, as vLLM does, even that process sometimes waits 100 ms and
then reads a whole stream at once. A realtime process never waits, but it preempts whatever is on its core, possibly
the engine although other cores are idle, and a container's CPU quota does not limit it. So realtime is opt-in
(`load.realtime`), has a budget, and is only for workers.
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

_MAX_OF_CORES = 0.25  # for all workers together: the rest is the engine's
_MAX_OF_A_CORE = 0.7  # a worker that needs more than this is about to be too slow, realtime or not
_SMOOTHING_NS = 1_000_000_000  # time constant of the CPU share: shorter bursts do not count in full
_STUCK_US = 1_000_000
"""CPU time without blocking after which the kernel sends SIGXCPU, upon which the worker gives up realtime priority."""
_HOPELESS_US = 3_000_000  # and after which the kernel kills it, because it did not even handle the signal


def ask_for_short_slices() -> None:
    """Ask the scheduler to run this process soon after it wakes; needs no privilege, ignored before Linux 6.12."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attr = _pack_sched_attr(48, 0, _SCHED_FLAG_KEEP_POLICY, nice, 0, _SLICE_NS, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attr, 0)


def realtime_budget(cores: float, workers: int) -> float:
    """The share of a core that each of `workers` may use at realtime priority."""
    return min(_MAX_OF_A_CORE, _MAX_OF_CORES * cores / workers)


def within_budget(cpu_share: float, budget: float, *, realtime: bool) -> bool:
    """Whether a process with this CPU share may be realtime; one that lost it must first fall well below the budget."""
    return cpu_share <= (budget if realtime else budget / 2)


def waited_ns() -> int:
    """How long the main thread was runnable without a core since it started; 0 if the kernel does not count it."""
    try:
        return int(Path("/proc/self/schedstat").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


class RealtimePriority:
    """Gives this process realtime priority, where allowed, while it stays within its budget: a share of a core.

    `update` re-evaluates that and must be called often; RLIMIT_RTTIME handles a process that hangs and cannot call it.
    With a budget of 0 it is never realtime.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._share = 0.0
        self._cpu_ns, self._wall_ns = time.process_time_ns(), time.monotonic_ns()
        self.realtime = False
        self._allowed = False
        if budget > 0:
            # First, or there would be a moment of realtime without this backstop.
            signal.signal(signal.SIGXCPU, self._stuck)
            _limit_stuck_time()
            self._allowed = self.realtime = set_realtime(True)

    def update(self) -> tuple[int, int]:
        """Re-evaluate the priority; returns the CPU time and the realtime since the last call, in nanoseconds."""
        cpu_before_ns, self._cpu_ns = self._cpu_ns, time.process_time_ns()
        wall_before_ns, self._wall_ns = self._wall_ns, time.monotonic_ns()
        used_ns, span_ns = self._cpu_ns - cpu_before_ns, self._wall_ns - wall_before_ns
        realtime_ns = span_ns if self.realtime else 0
        self._share += min(1.0, span_ns / _SMOOTHING_NS) * (used_ns / max(1, span_ns) - self._share)
        if self._allowed:
            self._become(within_budget(self._share, self._budget, realtime=self.realtime))
        return used_ns, realtime_ns

    def _become(self, realtime: bool) -> None:
        # Threads may have started since: give them the same priority as the others.
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
    """Make all threads of this process realtime or ordinary; returns whether they are realtime now."""
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
    """Set RLIMIT_RTTIME; needed after every SIGXCPU, because the kernel then raises the soft limit by a second."""
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    most = _HOPELESS_US if hard == resource.RLIM_INFINITY else min(hard, _HOPELESS_US)
    resource.setrlimit(resource.RLIMIT_RTTIME, (min(_STUCK_US, most), most))
