"""The command line, a contract: scripts depend on its options, its exit codes, and on stdout being data.

Imports are where they are used, so that `vramp --help` does not load a TOML validator or a terminal UI. Progress and
messages go to stderr; tables and nothing else go to stdout.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from loadgen.errors import ProfileError, VrampError
from loadgen.format import harmless
from tui.cli import run

_READER_GONE = (errno.EPIPE, errno.EIO)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command `vramp`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_what_is_closed()
    try:
        _require_a_folder()
        try:
            sys.exit(_dispatch(words))
        finally:
            sys.stdout.flush()
    except VrampError as error:
        print(harmless(f"vramp: {error}"), file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        # A file of ours that cannot be written has its name in a message of its own.
        if error.errno in _NO_ROOM and error.filename is None:
            print(f"vramp: standard output cannot be written: {error.strerror}", file=sys.stderr)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(VrampError.exit_code)
        if error.errno not in _READER_GONE:
            raise
        # Whoever read us has gone, or the terminal has: nobody is left to tell, and nothing may try to at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        sys.exit(run.INTERRUPTED)


def _require_a_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ProfileError("the current folder is gone: change to one that is there") from None


def _open_what_is_closed() -> None:
    """Whoever starts us without standard streams shall not have the journal in the place of one."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))


def _dispatch(words: list[str]) -> int:
    match words:
        case ["run", *rest]:
            return run.headless(rest)
        case ["bench", *rest]:
            from tui.cli import bench

            return bench.bench(rest)
        case ["sweep", *rest]:
            from tui.cli import sweep

            return sweep.sweep(rest)
        case ["check", *rest]:
            from tui.cli import check

            return check.check(rest)
        case ["doctor", *rest]:
            from tui.cli import doctor

            return doctor.doctor(rest)
        case ["report", *rest]:
            from tui.cli import report

            return report.report(rest)
        case ["recover", *rest]:
            from tui.cli import recover

            return recover.recover(rest)
        case ["baseline", *rest]:
            from tui.cli import baseline

            return baseline.baseline(rest)
        case ["compare", *rest]:
            from tui.cli import compare

            return compare.compare(rest)
        case ["stop", *rest]:
            from tui.cli import stop

            return stop.stop(rest)
        case ["replay", *rest]:
            from tui.cli import replay

            return replay.replay(rest)
        case ["watch", *rest]:
            from tui.cli import watch

            return watch.watch(rest)
        case ["web", *rest]:
            from tui.cli import web

            return web.web(rest)
        case ["simulate", *rest]:
            from loadgen.simulator.__main__ import main as simulate

            simulate(rest)
            return 0
        case _:
            return run.cockpit(words)


if __name__ == "__main__":
    main()
