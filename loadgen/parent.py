"""A signal at the death of the parent: a child that is stopped cannot notice it in any other way.

Standard library only, because the guard imports it and must start fast.
"""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def signal_when_parent_dies(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the thread that started it ends; one that is gone sends none."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
