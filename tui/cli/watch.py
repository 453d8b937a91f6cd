"""The cockpit on a run that is not started here: `vramp watch`, `vramp replay`, and `vramp web` for browsers."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from socket import socket

from loadgen.errors import ProfileError, ResultError
from loadgen.places import TRUST
from loadgen.run.remote import SOCKET, RemoteRun
from loadgen.run.replay import FASTEST, SLOWEST, Replay
from loadgen.run.run import Run
from loadgen.store.journal import JOURNAL, journal_is_held
from loadgen.store.runs import RUNS, find_run, open_journal, run_folders, was_killed
from loadgen.system import signal_when_parent_dies
from tui.cli.headless import conclude, follow, make_run
from tui.cli.options import (
    RUN_WORDS,
    add_run_options,
    add_shared,
    document_of,
    is_loopback,
    parser_of,
    port_of,
    print_status,
)
from tui.config import read_config
from tui.terminal import plain_reason

_WEB_DRIVER = "TEXTUAL_DRIVER"  # set by textual-serve for the process of each browser, whose screen is a pipe


def watch(options: argparse.Namespace) -> int:
    """Show a run until it ends or the watcher leaves, which does not affect it."""
    folder = live_folder(options.run)
    reason = plain_reason() if _WEB_DRIVER not in os.environ else None
    if reason is not None:
        instead = f"programs can read {folder / JOURNAL}"
        raise ProfileError(f"vramp watch: needs a terminal to show it on: {reason}; {instead}")

    if _WEB_DRIVER in os.environ:
        # A killed web server cannot say so, and Textual does not exit when its pipe breaks.
        signal_when_parent_dies(signal.SIGKILL)
    asyncio.run(_watch(folder, steers=options.allow_control))
    return 0


def watch_parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "vramp watch",
        "The cockpit on a run in another process. Leaving it (q) never ends the run.",
        "exit codes: 0 left, or the run is over; 1 no such run, or it was over already; 2 usage",
    )
    run = "a folder, or a name in runs/ or its beginning (default: the newest live run)"
    parser.add_argument("run", nargs="?", metavar="RUN", help=run)
    parser.add_argument("--allow-control", action="store_true", help="let the keys change the load")
    add_shared(parser, TRUST)
    return parser


def live_folder(text: str | None) -> Path:
    """Return the folder of the run that `text` names, or of the newest live run; raises `ResultError`."""
    if text is not None:
        path = find_run(text)
        return path.parent if path.is_file() else path
    for folder in reversed(run_folders()):
        if (folder / SOCKET).is_socket() and journal_is_held(folder / JOURNAL):
            return folder
    raise ResultError(f"no run is live in {RUNS.absolute()}: start one, or name the folder of another")


async def _watch(folder: Path, *, steers: bool) -> None:
    from tui.app import Cockpit
    from tui.screens.cockpit import CockpitScreen

    screen = CockpitScreen(RemoteRun(folder, steers=steers), watching=True, read_only=not steers)
    cockpit = Cockpit(screen, config=read_config())
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, cockpit.exit)
    await cockpit.run_async()
    if cockpit.failure is not None:
        raise cockpit.failure


def replay(options: argparse.Namespace) -> int:
    """Play the journal of a run; nothing is started, sent or written."""
    if not SLOWEST <= options.speed <= FASTEST:
        raise ProfileError(f"--speed {options.speed:g}: expected a number from {SLOWEST:g} to {FASTEST:g}")
    journal = open_journal(options.run)
    played = Replay(journal, options.speed)
    reason = plain_reason()
    if reason is not None:
        raise ProfileError(f"vramp replay: needs a terminal to show it on: {reason}; vramp report prints the tables")
    if was_killed(journal.parent):
        print_status(
            f"vramp: this run was killed before it wrote its result: `vramp recover {journal.parent}` writes it"
        )
    from tui.app import Cockpit, open_cockpit
    from tui.screens.cockpit import CockpitScreen

    open_cockpit(Cockpit(CockpitScreen(played, watching=True), config=read_config()))
    return 0


def replay_parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "vramp replay",
        "A finished run, played again in the cockpit: ] and [ change the speed, space pauses, . steps.",
        "exit codes: 0 left; 1 there is no such run; 2 usage, or no terminal",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_WORDS)
    parser.add_argument("--speed", metavar="N", type=float, default=1.0, help="from 1 to 100 (default: %(default)g)")
    return parser


_WEB_EPILOG = """\
The address contains a token, without which nothing is shown. From another machine:
  ssh -L 8000:127.0.0.1:8000 THE-BOX      and open the address there, or use --host on a network that you trust

exit codes: as vramp run; with --watch 0
"""


def web(options: argparse.Namespace) -> int:
    """Start a run, or take a live one, and serve the cockpit to browsers until Ctrl+C."""
    if options.watch is not None and options.profile is not None:
        raise ProfileError("vramp web: either a PROFILE for a new run, or --watch RUN for a live one")
    if find_spec("textual_serve") is None:
        raise ProfileError("vramp web: needs the extra `web`: pip install '.[web]' in a checkout of vramp")
    from tui.web.server import listen

    # Before anything else: if the port is taken, no run must have been started.
    with listen(options.host, options.port) as listening:
        if options.watch is not None:
            asyncio.run(_show(live_folder(options.watch), listening, options))
            return 0
        run = make_run(*document_of(options), options, hold_open=True)
        interrupted = asyncio.run(_show_run(run, listening, options))
    return conclude(run, interrupted=interrupted)


def web_parser() -> argparse.ArgumentParser:
    about = "The cockpit in a browser: starts a run and serves it until Ctrl+C, which ends the run in order."
    parser = parser_of("vramp web", about, _WEB_EPILOG)
    add_run_options(parser)
    group = parser.add_argument_group("web")
    group.add_argument("--watch", metavar="RUN", help="show a run in progress; Ctrl+C does not end it")
    group.add_argument("--allow-control", action="store_true", help="let keys in the browser change the load")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    group.add_argument("--port", type=port_of, default=8000, help="(default: %(default)s)")
    return parser


async def _show_run(run: Run, listening: socket, options: argparse.Namespace) -> bool:
    """Drive and serve a run; one that ends by itself is served until Ctrl+C. Return True if it was cut short."""
    async with _shown(run.folder, listening, options):
        interrupted = await follow(run)
        if not interrupted:
            print_status("the run is over: browsers keep showing its last state until Ctrl+C")
            await _until_interrupted()
    return interrupted and run.result is not None and run.result.state != "complete"


async def _show(folder: Path, listening: socket, options: argparse.Namespace) -> None:
    async with _shown(folder, listening, options):
        await _until_interrupted()


@contextlib.asynccontextmanager
async def _shown(folder: Path, listening: socket, options: argparse.Namespace) -> AsyncIterator[None]:
    """Serve the run in this folder to browsers."""
    from tui.web.server import serving

    command = [sys.executable, "-P", "-m", "tui.cli", "watch", str(folder)]
    if options.allow_control:
        command.append("--allow-control")
    can = "see and steer" if options.allow_control else "see"
    if not is_loopback(options.host):
        print_status(
            f"warning: {options.host} is open to other machines: anyone who can sniff that network can {can} this run"
        )
    async with serving(command, listening, host=options.host) as address:
        # Unmasked: its token is the one secret that must be shown.
        print(f"whoever opens this address can {can} the run: {address}", file=sys.stderr, flush=True)
        yield


async def _until_interrupted() -> None:
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    await interrupted.wait()
