"""Sends a signal at the death of the parent, which a stopped child cannot notice in any other way.

Standard library only, because the guard imports it and must start fast.
"""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def signal_when_parent_dies(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the thread that started it ends, unless it has already."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
