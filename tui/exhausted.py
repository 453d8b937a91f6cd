"""Ends vramp at once when memory, threads or descriptors run out: an orderly shutdown would need them, too.

The journal holds the run so far, and the guard ends the server as soon as vramp is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import termios
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from loadgen.errors import VrampError

if TYPE_CHECKING:
    import asyncio

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_LEAVE_SCREEN = b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l"


def exhausted_resource(error: object) -> str | None:
    """Return which resource an error says has run out; None for any other error."""
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        return str(error.strerror)
    return "no more threads" if isinstance(error, RuntimeError) and str(error).startswith("can't start") else None


def give_up(what: str) -> NoReturn:
    """Report what has run out, and end the process at once."""
    words = f"vramp: {what}: see ulimit -a and the limits of the container; vramp recover last writes the result so far"
    with contextlib.suppress(OSError):
        os.write(2, words.encode() + b"\n")
    os._exit(VrampError.exit_code)


def give_up_where_callbacks_fail() -> None:
    """Make the running loop give up on such errors, which asyncio would only log; the terminal is restored first."""
    import asyncio  # imported here to keep `vramp --help` fast

    terminal = termios.tcgetattr(0) if sys.stdin is not None and sys.stdin.isatty() else None

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)] if error is not None else []
        if frames and frames[-1].f_code is socket.socket.accept.__code__:
            # Others may open connections until none is left, and close them: asyncio tries again in a second.
            return
        what = exhausted_resource(error)
        if what is None:
            loop.default_exception_handler(context)
            return
        if terminal is not None:
            with contextlib.suppress(OSError, termios.error):
                os.write(2, _LEAVE_SCREEN)
                termios.tcsetattr(0, termios.TCSANOW, terminal)
        give_up(what)

    asyncio.get_running_loop().set_exception_handler(handle)
