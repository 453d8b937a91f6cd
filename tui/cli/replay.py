"""`vramp replay`: a run that is over, seen again in the cockpit at the operator's speed."""

from __future__ import annotations

import argparse
import sys

from loadgen.errors import ProfileError
from loadgen.format import harmless


def replay(words: list[str]) -> int:
    """Play the journal of a run; nothing is started, sent or written."""
    options = _parser().parse_args(words)
    import asyncio

    from loadgen.run.replay import FASTEST, SLOWEST, Replay
    from loadgen.store.runs import open_journal, was_killed
    from tui.terminal import plain_reason

    if not SLOWEST <= options.speed <= FASTEST:
        raise ProfileError(f"--speed {options.speed:g}: expected a number from {SLOWEST:g} to {FASTEST:g}")
    journal = open_journal(options.run)
    played = Replay(journal, options.speed)
    reason = plain_reason()
    if reason is not None:
        raise ProfileError(f"vramp replay: needs a terminal to show it on: {reason}; vramp report prints the tables")
    if was_killed(journal.parent):
        killed = f"vramp: this run was killed before it wrote its result: `vramp recover {journal.parent}` makes it"
        print(harmless(killed), file=sys.stderr)

    from tui.app import Cockpit, open_cockpit
    from tui.config import config_path, read_config

    cockpit = Cockpit(played, watching=True, config=read_config(config_path()))
    asyncio.run(open_cockpit(cockpit))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramp replay",
        description="A run that is over, seen again in the cockpit: ] and [ change the speed, space pauses, . steps.",
        epilog="exit codes: 0 left; 1 there is no such run; 2 usage, or no terminal",
    )
    parser.add_argument("run", metavar="RUN", help="a run's folder, its name in runs/ or the beginning of it, or: last")
    parser.add_argument("--speed", metavar="N", type=float, default=1.0, help="from 1 to 100 (default: %(default)g)")
    return parser
