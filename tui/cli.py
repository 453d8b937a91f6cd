"""The command line, a contract: scripts depend on its options, its exit codes, and on stdout being data.

Imports are where they are used, so that `vramp --help` does not load a TOML validator or a terminal UI. Progress and
messages go to stderr; tables and nothing else go to stdout.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loadgen
from loadgen.errors import ProfileError, ResultError, VrampError
from loadgen.text import harmless

if TYPE_CHECKING:
    from loadgen.profile import Profile
    from loadgen.run import Run

INTERRUPTED = 130
_DEFAULT_PROFILE = "simulator"

_EPILOG = """\
exit codes: 0 done; 1 the run happened and something in it failed; 2 usage or profile;
            3 the server could not be reached or started; 130 interrupted (the partial result is written)
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command `vramp`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.exit(_dispatch(words))
    except VrampError as error:
        print(harmless(f"vramp: {error}"), file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        # Whoever read us has gone, or the terminal has: nobody is left to tell, and nothing may try to at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        sys.exit(INTERRUPTED)


def _dispatch(words: list[str]) -> int:
    if words and words[0] == "simulate":
        from loadgen.simulator.__main__ import main as simulate

        simulate(words[1:])
        return 0
    if words and words[0] == "run":
        options = _run_parser().parse_args(words[1:])
        return _run_headless(options)
    options = _cockpit_parser().parse_args(words)
    if sys.stdout.isatty() and sys.stdin.isatty():
        return _run_cockpit(options)
    return _run_headless(options)


# Options.


def _cockpit_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramp",
        description="The operator's cockpit for bringing up an LLM inference box.",
        usage="vramp [PROFILE] [options]\n       vramp run [PROFILE] [options]     the same without a screen"
        "\n       vramp simulate [options]          the simulated engine alone",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"vramp {loadgen.__version__}")
    _add_options(parser)
    return parser


def _run_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramp run",
        description="A run without a screen: progress on stderr, tables on stdout.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(parser)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", nargs="?", metavar="PROFILE", help="a TOML file, or the name of a shipped profile")
    server = parser.add_argument_group("server")
    server.add_argument("--url", help="attach to a server that is already running")
    server.add_argument("--model", metavar="M", help="the served model (default: the first one served)")
    server.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the API key")
    load = parser.add_argument_group("load")
    load.add_argument("--endpoint", choices=("completions", "chat"))
    load.add_argument("--isl", metavar="N", help="input tokens of a request")
    load.add_argument("--osl", metavar="N", help="output tokens of a request")
    kind = load.add_mutually_exclusive_group()
    kind.add_argument("--concurrency", metavar="N[,N...]", help="closed loop, one stage each")
    kind.add_argument("--rate", metavar="R[,R...]", help="open loop, requests per second, one stage each")
    load.add_argument("--arrival", choices=("poisson", "constant"))
    load.add_argument("--requests", metavar="N", help="measured requests per stage")
    load.add_argument("--duration", metavar="30s", help="measured time per stage")
    load.add_argument("--warmup", metavar="N|5s", help="requests or time at the start of each stage to leave out")
    load.add_argument("--workers", metavar="N", help="worker processes")
    load.add_argument("--seed", metavar="N", help="makes the prompts and the schedule reproducible")
    load.add_argument("--slo", metavar="ttft_p99=2s,...", help="limits; a missed one makes the exit code 1")
    result = parser.add_argument_group("result")
    result.add_argument("--json", metavar="FILE", type=Path, help="write the result here too")
    result.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="override a profile key")


_LOAD_OPTIONS = (
    "endpoint",
    "isl",
    "osl",
    "concurrency",
    "rate",
    "arrival",
    "requests",
    "duration",
    "warmup",
    "workers",
)


def profile_of(options: argparse.Namespace) -> tuple[Profile, str]:
    """The profile that the options describe, and its name in messages; raises `ProfileError`."""
    from loadgen.profile import build_profile, load_document

    if options.url is not None and options.profile is None:
        document: dict[str, Any] = {"name": "attach"}
        where = "command line"
    else:
        path = find_profile(options.profile or _DEFAULT_PROFILE)
        document, where = load_document(path), str(path)
    if options.url is not None:
        document["server"] = {"engine": "attach", "url": options.url}
    _set_options(document, options)
    return build_profile(document, where=where, overrides=options.set), where


def _set_options(document: dict[str, Any], options: argparse.Namespace) -> None:
    server = document.setdefault("server", {})
    load = document.setdefault("load", {})
    if options.model is not None:
        server["model"] = options.model
    if options.api_key_env is not None:
        server["api_key_env"] = options.api_key_env
    chosen = {name: getattr(options, name) for name in (*_LOAD_OPTIONS, "seed") if getattr(options, name) is not None}
    if chosen.keys() & {"concurrency", "rate"}:
        # The stages of the profile are another plan; this one is asked for by name.
        document.pop("stages", None)
        load.pop("rate", None)
    for stage in document.get("stages", []):
        for name in chosen.keys() | ({"requests", "duration"} if chosen.keys() & {"requests", "duration"} else set()):
            stage.pop(name, None)
    if chosen.keys() & {"requests", "duration"}:
        load.pop("requests", None)
        load.pop("duration", None)
    load.update({name: _parse_option(name, text) for name, text in chosen.items()})
    if options.slo is not None:
        document["slo"] = dict(_parse_slo(entry) for entry in options.slo.split(","))


def _parse_option(name: str, text: str) -> object:
    try:
        if name == "concurrency":
            return [int(part) for part in text.split(",")]
        if name == "rate":
            return [float(part) for part in text.split(",")]
        if name in ("isl", "osl", "requests", "workers", "seed"):
            return int(text)
    except ValueError:
        raise ProfileError(
            f"--{name} {text}: expected a number{' or a list of them' if name in ('concurrency', 'rate') else ''}"
        ) from None
    return int(text) if name == "warmup" and text.isdigit() else text


def _parse_slo(entry: str) -> tuple[str, str]:
    name, separator, limit = entry.partition("=")
    if not separator:
        raise ProfileError(f"--slo {entry}: expected metric_statistic=time, such as ttft_p99=2s")
    return name.strip(), limit.strip()


def find_profile(name: str) -> Path:
    """A path as given, or the profile of that name which ships with vramp."""
    path = Path(name)
    if path.exists() or path.suffix == ".toml":
        return path
    for folder in (Path("profiles"), Path(__file__).with_name("profiles"), Path(__file__).parents[1] / "profiles"):
        shipped = folder / f"{name}.toml"
        if shipped.exists():
            return shipped
    return path


# Runs.


def _make_run(options: argparse.Namespace, *, hold_open: bool) -> Run:
    from loadgen.run import Run

    profile, where = profile_of(options)
    try:
        return Run(profile, where=where, json_path=options.json, hold_open=hold_open)
    except ResultError as error:
        # Nothing has run yet: where the result shall go is a matter of usage.
        raise ProfileError(str(error)) from error


def _run_headless(options: argparse.Namespace) -> int:
    import asyncio

    from tui.plain import follow

    run = _make_run(options, hold_open=False)
    interrupted = asyncio.run(follow(run))
    return _conclude(run, interrupted=interrupted)


def _run_cockpit(options: argparse.Namespace) -> int:
    import asyncio

    from tui.app import open_cockpit

    run = _make_run(options, hold_open=True)
    interrupted = asyncio.run(open_cockpit(run))
    return _conclude(run, interrupted=interrupted)


def _conclude(run: Run, *, interrupted: bool) -> int:
    from loadgen.report.table import result_table

    if run.result is not None:
        if run.result.stages:
            print(harmless(result_table(run.result)))
        for path in run.result_paths:
            if path.exists():
                print(f"result: {path}", file=sys.stderr)
    if run.error is not None:
        print(harmless(f"vramp: {run.error}"), file=sys.stderr)
        return run.error.exit_code
    if interrupted:
        return INTERRUPTED
    return 1 if run.result is None or _something_failed(run) else 0


def _something_failed(run: Run) -> bool:
    assert run.result is not None
    stages = run.result.stages
    missed = any(not check.met for stage in stages for check in stage.slo.values() if stage.requests.sent)
    nothing = bool(stages) and not any(stage.requests.completed for stage in stages) and run.result.state == "complete"
    return missed or nothing


if __name__ == "__main__":
    main()
