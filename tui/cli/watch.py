"""`vramp watch`: the cockpit on a run that goes on elsewhere: in another terminal, or behind `vramp web`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from threading import Thread

from loadgen.errors import ProfileError, ResultError

_WEB_DRIVER = "TEXTUAL_DRIVER"  # set by textual-serve for the process of each browser, whose screen is a pipe
_PARENT_CHECK_S = 0.5


def watch(words: list[str]) -> int:
    """Show a run until the watcher leaves or the run does; the run does not notice either."""
    options = _parser().parse_args(words)
    folder = live_folder(options.run)
    if not sys.stdout.isatty() and _WEB_DRIVER not in os.environ:
        raise ProfileError(f"vramp watch: needs a terminal; {folder / 'journal.jsonl'} is the same for programs")

    if _WEB_DRIVER in os.environ:
        Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(_show(folder, steers=options.allow_control))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramp watch",
        description="The cockpit on a run that goes on elsewhere. Leaving it (q) never ends the run.",
        epilog="exit codes: 0 left, or the run is over; 1 there is no such run, or it is over already; 2 usage",
    )
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="a folder, a name in runs/ or its beginning (default: the newest live)"
    )
    parser.add_argument("--allow-control", action="store_true", help="let the keys change the load")
    return parser


def live_folder(text: str | None) -> Path:
    """The folder of the run that `text` means, or of the newest that goes on; raises `ResultError`."""
    from loadgen.run.remote import SOCKET
    from loadgen.store.files import JOURNAL, journal_is_held
    from loadgen.store.runs import RUNS, find_run, run_folders

    if text is not None:
        path = find_run(text)
        return path.parent if path.is_file() else path
    for folder in reversed(run_folders()):
        if (folder / SOCKET).is_socket() and journal_is_held(folder / JOURNAL):
            return folder
    raise ResultError(f"no run goes on in {RUNS.absolute()}: start one, or name the folder of another")


async def _show(folder: Path, *, steers: bool) -> None:
    from loadgen.run.remote import RemoteRun
    from tui.app import Cockpit
    from tui.config import config_path, read_config

    config = read_config(config_path())
    cockpit = Cockpit(RemoteRun(folder, steers=steers), watching=True, read_only=not steers, config=config)
    for number in (signal.SIGHUP, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, cockpit.exit)
    await cockpit.run_async()
    if cockpit.failure is not None:
        raise cockpit.failure


def _end_with_parent() -> None:
    """A web server that was killed tells nobody, and Textual does not end when its pipe breaks."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)
