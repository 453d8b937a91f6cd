"""The command line. Scripts depend on its options, its exit codes, and on stdout being data.

Progress and messages go to stderr; tables and nothing else go to stdout.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from loadgen.errors import ProfileError, VrampError
from loadgen.system import raise_open_files, start_lean
from tui.cli.options import INTERRUPTED, READER_GONE, discard_stdout, end_by_signals, print_status
from tui.cli.verbs import COCKPIT, VERBS
from tui.exhausted import exhausted_resource, give_up

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(arguments: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed_streams()
    end_by_signals()
    start_lean()
    raise_open_files()
    try:
        _require_current_folder()
        try:
            verb = next((verb for verb in VERBS if words[:1] == [verb.name]), None)
            sys.exit(COCKPIT(words) if verb is None else verb(words[1:]))
        finally:
            sys.stdout.flush()
    except VrampError as error:
        print_status(f"vramp: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        # Silently: the terminal may be gone, which may be the reason for the interrupt.
        _silence_output()
        sys.exit(INTERRUPTED)
    except (MemoryError, RuntimeError) as error:
        if (what := exhausted_resource(error)) is None:
            raise
        give_up(what)
    except OSError as error:
        if (what := exhausted_resource(error)) is not None:
            give_up(what)
        # Errors about our own files have a filename; without one, it is standard output.
        if error.errno in _DISK_FULL and error.filename is None:
            sys.exit(discard_stdout(error))
        if error.errno not in READER_GONE:
            raise
        # The reader of our output or the terminal is gone: nobody is left to read a message.
        _silence_output()
        sys.exit(INTERRUPTED)


def _silence_output() -> None:
    """Redirect stdout and stderr to /dev/null, so that nothing is written at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)


def _require_current_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ProfileError("the current folder no longer exists: change to another") from None


def _open_closed_streams() -> None:
    """Open /dev/null for each closed standard stream, or the journal could get its descriptor.

    Standard output takes any character, whatever its encoding.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a locale may lack a character


if __name__ == "__main__":
    main()
