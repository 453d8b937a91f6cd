"""`vramp`, `vramp run` and `vramp monitor`: runs with the cockpit or without a screen, with load or without."""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from loadgen.errors import ProfileError, ServerError
from loadgen.places import TRUST
from loadgen.vendors import TelemetryMode
from tui.cli.headless import conclude, make_run, print_once, run_headless
from tui.cli.options import (
    RUN_EXIT_CODES,
    Calling,
    add_result_options,
    add_run_options,
    add_shared,
    document_of,
    parser_of,
    print_status,
    print_text,
    printable,
)
from tui.cli.verbs import usage
from tui.terminal import plain_reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from loadgen.run.run import Run
    from loadgen.server.process.records import ServerRecord
    from tui.app import Cockpit


def cockpit(options: argparse.Namespace) -> int:
    """Run `vramp [PROFILE]`: the cockpit, or the picker without a profile; if neither can be shown, `vramp run`."""
    if plain_reason() is not None:
        return show_cockpit(*document_of(options), options)
    name = options.profile or options.url
    if name is None:
        return _pick(options)
    with _opening(name):
        document, where = document_of(options)
    return show_cockpit(document, where, options)


def cockpit_parser() -> argparse.ArgumentParser:
    parser = parser_of("vramp", "The operator's cockpit for bringing up an LLM inference box.", RUN_EXIT_CODES)
    about = "show the version and its commit, and exit"
    parser.add_argument("--version", action=Calling, nargs=0, const=_show_version, help=about)
    parser.usage = usage()
    add_run_options(parser)
    return parser


def _show_version() -> NoReturn:
    from loadgen.build import version_words

    print_text(f"vramp {version_words()}")
    sys.exit(0)


def headless(options: argparse.Namespace) -> int:
    return run_headless(*document_of(options), options, spoken=options.plain_events)


def headless_parser() -> argparse.ArgumentParser:
    parser = parser_of("vramp run", "A run without a screen: progress on stderr, tables on stdout.", RUN_EXIT_CODES)
    add_run_options(parser)
    parser.add_argument(
        "--plain-events", action="store_true", help="report each change as a sentence, for a screen reader; no table"
    )
    return parser


_MONITOR_EPILOG = f"""\
vramp monitor URL [URL...]          what these engines do under the load of others
vramp monitor                       GPUs and host alone: a burn-in by other tools
vramp monitor --server PROFILE      starts the profile's server and sends nothing

With --duration there is no screen: progress lines, and a result in the end. In the cockpit the keys + and n send load,
0 ends it; m writes a note, at which a stage ends and the next begins.

{RUN_EXIT_CODES}"""
_AMOUNT_KEYS = (
    *(f"load.{name}" for name in "rate rate_points shapes passes requests duration warmup arrival".split()),
    "plan.completed",
)
"""Keys of a profile that set how much is sent and for how long; the others stay, for load by hand."""


def monitor(options: argparse.Namespace) -> int:
    document, where = _monitor_document(options)
    if options.once:
        return print_once(document, where, options)
    if options.duration is not None:
        return run_headless(document, where, options)
    return show_cockpit(document, where, options)


def monitor_parser() -> argparse.ArgumentParser:
    parser = parser_of("vramp monitor", "The cockpit without load.", _MONITOR_EPILOG)
    parser.add_argument("urls", nargs="*", metavar="URL", help="running engines; their figures are added up")
    parser.add_argument("--server", dest="profile", metavar="PROFILE", help="start the server of this profile")
    add_shared(parser, "--variant", "--model", "--api-key-env", "--set", "--unset", TRUST)
    group = parser.add_argument_group("run")
    group.add_argument("--duration", metavar="30m", help="run for this time, without a screen")
    group.add_argument("--every", metavar="10m", help="end a stage after this time and begin the next")
    group.add_argument("--telemetry", choices=get_args(TelemetryMode), help="what measures the GPUs (default: auto)")
    add_shared(group, "--exporter")
    group.add_argument(
        "--once", action="store_true", help="print the figures of the first seconds, with --json as JSON, and end"
    )
    add_result_options(group, json_alone="-")
    no_load = {"concurrency": "0", "rate": None, "ladder": None, "ramp": None, "search": None, "slo": None, "url": None}
    no_load |= {"hosts": None, "scheduler": None}
    parser.set_defaults(**no_load, without=_AMOUNT_KEYS, records=None, baseline=None, replay_telemetry=None)
    return parser


def _monitor_document(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The profile of a run that sends nothing, and its name in messages; raises `ProfileError`."""
    from loadgen.profile.document import load_document
    from tui.catalog import find_profile

    if options.profile is None:
        if options.variant is not None:
            raise ProfileError("--variant is one of a profile's: name that with --server")
        urls = {"url": options.urls[0]} if len(options.urls) == 1 else {"urls": options.urls}
        server = {"engine": "attach", **urls} if options.urls else {"engine": "none"}
        return {"name": "monitor", "server": server}, "command line"
    if options.urls:
        raise ProfileError("either a URL of what runs already, or --server for what vramp is to start")
    path = find_profile(options.profile)
    return load_document(path), str(path)


def show_cockpit(document: Mapping[str, Any], where: str, options: argparse.Namespace) -> int:
    """Run a document in the cockpit, or without a screen if it cannot be shown; return the exit code."""
    reason = plain_reason()
    if reason is not None:
        print_status(f"vramp: no cockpit, progress lines instead: {reason}")
        return run_headless(document, where, options)
    with _opening(document.get("name", where)):
        from tui.app import Cockpit
        from tui.config import read_config
        from tui.screens.cockpit import CockpitScreen

        run = make_run(document, where, options, hold_open=True)
        cockpit = Cockpit(CockpitScreen(run), orphans=_orphans(), config=read_config())
    return _open(cockpit)


def _pick(options: argparse.Namespace) -> int:
    with _opening("profiles"):
        from tui.app import Cockpit
        from tui.catalog import StartChoice
        from tui.config import read_config

    def chosen(choice: StartChoice) -> Run:
        changed = {"variant": choice.variant, "url": choice.url}
        return make_run(choice.document, choice.where, argparse.Namespace(**vars(options) | changed), hold_open=True)

    app = Cockpit(make_run=chosen, api_key_env=options.api_key_env, orphans=_orphans(), config=read_config())
    return _open(app)


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
