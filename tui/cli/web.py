"""`vramp web`: the cockpit of a run in a browser on this machine; to look at, and with `--allow-control` to steer."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import ProfileError
from loadgen.format import harmless
from tui.cli.options import port_of
from tui.cli.run import add_run_options, conclude, make_run
from tui.cli.watch import live_folder

if TYPE_CHECKING:
    from socket import socket

    from loadgen.run.run import Run

_EPILOG = """\
The address has a token: who does not know it sees nothing. From another machine:
  ssh -L 8000:127.0.0.1:8000 THE-BOX      and open the address there, or --host for a network that you trust

exit codes: as vramp run; with --watch 0
"""


def web(words: list[str]) -> int:
    """Start a run, or take one that goes on, and show it to browsers until Ctrl+C."""
    options = _parser().parse_args(words)
    if options.watch is not None and options.profile is not None:
        raise ProfileError("vramp web: either a PROFILE for a new run, or --watch RUN for one that goes on")
    _require_extra()
    from tui.web.server import listen

    # Before anything else: a port that is taken shall cost nothing.
    with listen(options.host, options.port) as listening:
        if options.watch is not None:
            asyncio.run(_show_other(live_folder(options.watch), listening, options))
            return 0
        run = make_run(options, hold_open=True)
        interrupted = asyncio.run(_show_run(run, listening, options))
    return conclude(run, interrupted=interrupted)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramp web",
        description="The cockpit in a browser: starts a run and serves it until Ctrl+C, which ends the run in order.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(parser)
    group = parser.add_argument_group("web")
    group.add_argument("--watch", metavar="RUN", help="show a run that goes on already; Ctrl+C leaves it alone")
    group.add_argument("--allow-control", action="store_true", help="let keys in the browser change the load")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    group.add_argument("--port", type=port_of, default=8000, help="(default: %(default)s)")
    return parser


def _require_extra() -> None:
    if find_spec("textual_serve") is None:
        raise ProfileError("vramp web: needs the extra `web`: pip install 'vramp[web]'")


async def _show_run(run: Run, listening: socket, options: argparse.Namespace) -> bool:
    """Drive a run and show it; one that ends by itself stays on the screens until Ctrl+C. True if it was cut short."""
    from tui.cli.progress import follow

    async with _shown(run.folder, listening, options):
        interrupted = await follow(run)
        if not interrupted:
            _say("the run is over: browsers that watch keep its last state until Ctrl+C")
            await _until_interrupted()
    return interrupted and run.result is not None and run.result.state != "complete"


async def _show_other(folder: Path, listening: socket, options: argparse.Namespace) -> None:
    async with _shown(folder, listening, options):
        await _until_interrupted()


@contextlib.asynccontextmanager
async def _shown(folder: Path, listening: socket, options: argparse.Namespace) -> AsyncIterator[None]:
    """Browsers may watch the run in this folder."""
    from tui.web.server import is_loopback, serving

    command = [sys.executable, "-P", "-m", "tui.cli", "watch", str(folder)]
    if options.allow_control:
        command.append("--allow-control")
    can = "see and steer" if options.allow_control else "see"
    if not is_loopback(options.host):
        _say(f"warning: {options.host} is not this machine alone: who can listen on that network can {can} this run")
    async with serving(command, listening, host=options.host) as address:
        _say(f"who opens this can {can} the run: {address}")
        yield


async def _until_interrupted() -> None:
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    await interrupted.wait()


def _say(text: str) -> None:
    print(harmless(text), file=sys.stderr, flush=True)
