"""`vramp` and `vramp run`: the same run, with the cockpit or without a screen."""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from typing import TYPE_CHECKING, Any

from loadgen.errors import ServerError
from tui.cli.headless import conclude, make_run, run_headless
from tui.cli.options import (
    RUN_EXIT_CODES,
    add_run_options,
    cockpit_parser,
    document_of,
    parser_of,
    print_status,
    printable,
)
from tui.terminal import plain_reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from loadgen.run.run import Run
    from loadgen.server.process.records import ServerRecord
    from tui.app import Cockpit


def cockpit(words: list[str], usage: str) -> int:
    """Run `vramp [PROFILE]`: the cockpit, or the picker without a profile; if neither can be shown, `vramp run`."""
    parser = cockpit_parser()
    parser.usage = usage
    options = parser.parse_args(words)
    if plain_reason() is not None:
        return show_cockpit(*document_of(options), options)
    name = options.profile or options.url
    if name is None:
        return _pick(options)
    with _opening(name):
        document, where = document_of(options)
    return show_cockpit(document, where, options)


def headless(words: list[str]) -> int:
    options = headless_parser().parse_args(words)
    return run_headless(*document_of(options), options, spoken=options.plain_events)


def headless_parser() -> argparse.ArgumentParser:
    parser = parser_of("vramp run", "A run without a screen: progress on stderr, tables on stdout.", RUN_EXIT_CODES)
    add_run_options(parser)
    parser.add_argument(
        "--plain-events", action="store_true", help="report each change as a sentence, for a screen reader; no table"
    )
    return parser


def show_cockpit(document: Mapping[str, Any], where: str, options: argparse.Namespace) -> int:
    """Run a document in the cockpit, or without a screen if it cannot be shown; return the exit code."""
    reason = plain_reason()
    if reason is not None:
        print_status(f"vramp: no cockpit, progress lines instead: {reason}")
        return run_headless(document, where, options)
    with _opening(document.get("name", where)):
        from tui.app import Cockpit
        from tui.config import config_path, read_config

        run = make_run(document, where, options, hold_open=True)
        cockpit = Cockpit(run, orphans=_orphans(), config=read_config(config_path()))
    return _open(cockpit)


def _pick(options: argparse.Namespace) -> int:
    """Open the cockpit on its list of profiles."""
    with _opening("profiles"):
        from tui.app import Cockpit
        from tui.catalog import StartChoice
        from tui.config import config_path, read_config

    def chosen(choice: StartChoice) -> Run:
        changed = {"variant": choice.variant, "url": choice.url}
        return make_run(choice.document, choice.where, argparse.Namespace(**vars(options) | changed), hold_open=True)

    config = read_config(config_path())
    cockpit = Cockpit(make_run=chosen, api_key_env=options.api_key_env, orphans=_orphans(), config=config)
    return _open(cockpit)


@contextlib.contextmanager
def _opening(name: object) -> Iterator[None]:
    """Show a line while the modules that draw are loaded, which takes half a second.

    Garbage collection would take a sixth of that; the cockpit turns it on again.
    """
    gc.disable()
    first, *_ = printable(str(name)).splitlines() or [""]
    sys.stderr.write(f"\r\x1b[2Kvramp  {first}  opening")
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()


def _open(cockpit: Cockpit) -> int:
    from tui.app import open_cockpit

    interrupted = open_cockpit(cockpit)
    codes = [conclude(run, interrupted=interrupted) for run in cockpit.runs]
    return codes[-1] if codes else 0


def _orphans() -> list[ServerRecord]:
    from loadgen.server.process.records import list_servers

    try:
        return [record for record in list_servers() if record.orphaned]
    except ServerError:  # the preflight reports what is wrong with the folder
        return []
