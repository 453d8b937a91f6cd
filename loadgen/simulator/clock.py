"""A timer that is late by tens of microseconds, where the event loop's own is late by a millisecond.

libuv and asyncio round to milliseconds; a timerfd that the loop watches does not. `os.timerfd_create` came with Python
3.13, so before that it is two calls into libc. Without either (not Linux), the loop's own timer has to do.
"""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

_TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_ABSTIME = 0o4000, 0o2000000, 1


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


class Timer:
    """Calls `ring` once for each `set`, at an absolute CLOCK_MONOTONIC time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        except (OSError, AttributeError):
            self._fd = -1
        if self._fd >= 0:
            loop.add_reader(self._fd, self._rung)

    def set(self, at_ns: int) -> None:
        """Ring at `at_ns`, at once if that has passed."""
        if self._fd < 0:
            self._loop.call_later(max(0, at_ns - time.monotonic_ns()) / 1e9, self._ring)
            return
        # A zero value would disarm the timer.
        spec = _Itimerspec(value=_Timespec(*divmod(max(1, at_ns), 1_000_000_000)))
        self._libc.timerfd_settime(self._fd, _TFD_ABSTIME, ctypes.byref(spec), None)

    def _rung(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._ring()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
