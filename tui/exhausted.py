"""What ends vramp where the machine gives it no more memory, threads or descriptors: an orderly end needs them, too.

The journal holds the run so far, and the guard ends the server as soon as vramp is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import termios
from typing import TYPE_CHECKING, Any, NoReturn

from loadgen.errors import VrampError

if TYPE_CHECKING:
    import asyncio

_NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_OUT_OF_THE_SCREEN = b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l"


def lacks(error: object) -> str | None:
    """What an error says is missing; None if it is of another kind."""
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, OSError) and error.errno in _NO_MORE:
        return str(error.strerror)
    return "no more threads" if isinstance(error, RuntimeError) and str(error).startswith("can't start") else None


def give_up(what: str) -> NoReturn:
    """End the process at once."""
    words = f"vramp: {what}: see ulimit -a and the limits of the container; vramp recover last makes the result so far"
    with contextlib.suppress(OSError):
        os.write(2, words.encode() + b"\n")
    os._exit(VrampError.exit_code)


def give_up_where_callbacks_fail() -> None:
    """Have the running loop do so; it would go on without whatever failed. Leaves the terminal as it is now."""
    import asyncio  # here: the command line's help imports nothing that takes long

    terminal = termios.tcgetattr(0) if sys.stdin is not None and sys.stdin.isatty() else None

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        what = lacks(context.get("exception"))
        if what is None:
            loop.default_exception_handler(context)
            return
        if terminal is not None:
            with contextlib.suppress(OSError, termios.error):
                os.write(2, _OUT_OF_THE_SCREEN)
                termios.tcsetattr(0, termios.TCSANOW, terminal)
        give_up(what)

    asyncio.get_running_loop().set_exception_handler(handle)
