"""`vramp monitor`: the cockpit without load, on engines, GPUs and host that others use."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, get_args

from loadgen.errors import ProfileError
from loadgen.places import TRUST
from loadgen.vendors import TelemetryMode
from tui.cli.headless import run_headless
from tui.cli.options import RUN_EXIT_CODES, add_result_options, add_shared, parser_of
from tui.cli.run import show_cockpit

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPILOG = f"""\
vramp monitor URL [URL...]          what these engines do under the load of others
vramp monitor                       GPUs and host alone: a burn-in by other tools
vramp monitor --server PROFILE      starts the profile's server and sends nothing

With --duration there is no screen: progress lines, and a result in the end. In the cockpit the keys + and n send load,
0 ends it; m writes a note, at which a stage ends and the next begins.

{RUN_EXIT_CODES}"""
_LOADS = (
    *(f"load.{name}" for name in "rate rate_points shapes passes requests duration warmup arrival".split()),
    "plan.completed",
)
"""Keys of a profile that set how much is sent and for how long; the others stay, for load by hand."""


def monitor(words: list[str]) -> int:
    options = monitor_parser().parse_args(words)
    document, where = _document(options)
    if options.duration is not None:
        return run_headless(document, where, options)
    return show_cockpit(document, where, options)


def monitor_parser() -> argparse.ArgumentParser:
    parser = parser_of("vramp monitor", "The cockpit without load.", _EPILOG)
    parser.add_argument("urls", nargs="*", metavar="URL", help="running engines; their figures are added up")
    parser.add_argument("--server", dest="profile", metavar="PROFILE", help="start the server of this profile")
    add_shared(parser, "--variant", "--model", "--api-key-env", "--set", "--unset", TRUST)
    group = parser.add_argument_group("run")
    group.add_argument("--duration", metavar="30m", help="run for this time, without a screen")
    group.add_argument("--every", metavar="10m", help="end a stage after this time and begin the next")
    group.add_argument("--telemetry", choices=get_args(TelemetryMode), help="what measures the GPUs (default: auto)")
    add_result_options(group)
    no_load = {"concurrency": "0", "rate": None, "ladder": None, "ramp": None, "search": None, "slo": None, "url": None}
    no_load |= {"hosts": None, "scheduler": None}
    parser.set_defaults(**no_load, without=_LOADS, records=None, baseline=None, replay_telemetry=None)
    return parser


def _document(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The profile of a run that sends nothing, and its name in messages; raises `ProfileError`."""
    from loadgen.profile.document import load_document
    from tui.catalog import find_profile

    if options.profile is None:
        if options.variant is not None:
            raise ProfileError("--variant is one of a profile's: name that with --server")
        document: dict[str, Any] = {"name": "monitor", "server": _server(options.urls)}
        where = "command line"
    else:
        if options.urls:
            raise ProfileError("either a URL of what runs already, or --server for what vramp is to start")
        path = find_profile(options.profile)
        document, where = load_document(path), str(path)
    return document, where


def _server(urls: Sequence[str]) -> dict[str, Any]:
    if not urls:
        return {"engine": "none"}
    return {"engine": "attach", **({"url": urls[0]} if len(urls) == 1 else {"urls": list(urls)})}
