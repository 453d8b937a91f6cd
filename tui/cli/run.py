"""`vramp` and `vramp run`: the same run, with the cockpit or without a screen."""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from loadgen.errors import ProfileError, ResultError, ServerError
from loadgen.profile import BASE
from loadgen.vendors import TelemetryMode
from tui.cli.options import (
    INTERRUPTED,
    RUN_EXIT_CODES,
    add_profile_options,
    add_result_options,
    document_of,
    end_by_signals,
    end_soon,
    is_loopback,
    parser_of,
    print_output,
    print_status,
    print_text,
    printable,
    profile_from,
    variants_from,
    write_junit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from loadgen.profile.schema import Profile
    from loadgen.run.run import Run
    from loadgen.schema.result import Result
    from loadgen.server.process.records import ServerRecord
    from tui.app import Cockpit

    Table = Callable[[Result], str]


def cockpit(words: list[str], usage: str) -> int:
    """Run `vramp [PROFILE]`: the cockpit, or the picker without a profile; if neither can be shown, `vramp run`."""
    parser = cockpit_parser()
    parser.usage = usage
    options = parser.parse_args(words)
    from tui.terminal import plain_reason

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
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and its commit, and exit")
    add_run_options(parser)
    return parser


class _ShowVersion(argparse.Action):
    """Looks for the commit only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        from loadgen.build import version_words

        print_text(f"vramp {version_words()}")
        parser.exit()


def headless(words: list[str]) -> int:
    options = headless_parser().parse_args(words)
    if options.plain_events:
        return run_spoken(*document_of(options), options)
    return run_headless(*document_of(options), options)


def headless_parser() -> argparse.ArgumentParser:
    parser = parser_of("vramp run", "A run without a screen: progress on stderr, tables on stdout.", RUN_EXIT_CODES)
    add_run_options(parser)
    parser.add_argument(
        "--plain-events", action="store_true", help="report each change as a sentence, for a screen reader; no table"
    )
    return parser


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run: its profile, where the result goes, what measures the GPUs."""
    add_profile_options(parser)
    group = parser.add_argument_group("run")
    add_result_options(group)
    group.add_argument(
        "--records",
        nargs="?",
        const="jsonl",
        choices=("jsonl", "parquet"),
        help="keep a row for each stream: records.jsonl (default) or records.parquet",
    )
    group.add_argument("--baseline", metavar="RUN", help="show each stage beside that of an earlier run or a baseline")
    telemetry = parser.add_argument_group("telemetry").add_mutually_exclusive_group()
    telemetry.add_argument(
        "--telemetry", choices=get_args(TelemetryMode), help="what measures the GPUs (default: the profile's)"
    )
    telemetry.add_argument(
        "--replay-telemetry", metavar="FILE", type=Path, help="play a capture of vramp doctor --dump instead"
    )


def make_run(document: Mapping[str, Any], where: str, options: argparse.Namespace, *, hold_open: bool) -> Run:
    """Make the run of a document under the options; raises `ProfileError`."""
    from loadgen.record.baseline import baseline_of
    from loadgen.store.runs import open_result
    from loadgen.telemetry.capture import replay_options

    profile = profile_from(document, where, options)
    variants = variants_from(document, where, options)
    try:
        baseline = None if options.baseline is None else baseline_of(options.baseline, open_result(options.baseline))
    except ResultError as error:
        raise ProfileError(str(error)) from error
    return open_run(
        profile,
        where,
        options,
        hold_open=hold_open,
        variant=options.variant or (BASE if variants else None),
        variants=variants,
        records=options.records,
        baseline=baseline,
        replay=None if options.replay_telemetry is None else replay_options(options.replay_telemetry),
    )


def open_run(profile: Profile, where: str, options: argparse.Namespace, **settings: Any) -> Run:  # noqa: ANN401
    """Make the run of a profile, with the `add_result_options` and the other settings; raises `ProfileError`."""
    from loadgen.run.run import Run
    from loadgen.run.settings import RunSettings

    address = None if options.metrics_port is None else (options.metrics_host, options.metrics_port)
    settings |= {"json_path": options.json, "junit_path": options.junit, "force": options.force}
    try:
        run = Run(RunSettings(profile, where=where, metrics_address=address, **settings))
    except ResultError as error:
        # Nothing has run yet, so a path that cannot be written is a usage error.
        raise ProfileError(str(error)) from error
    if run.metrics_port is not None:
        print_status(f"metrics: {run.metrics_port.url}")
        if not is_loopback(options.metrics_host):
            print_status(
                f"warning: {options.metrics_host} is open to other machines: anyone who reaches it can read the figures"
            )
    return run


def run_headless(document: Mapping[str, Any], where: str, options: argparse.Namespace) -> int:
    """Run a document without a screen; return the exit code."""
    import asyncio

    from tui.cli.progress import follow

    run = make_run(document, where, options, hold_open=False)
    interrupted = asyncio.run(follow(run))
    return conclude(run, interrupted=interrupted)


def run_spoken(document: Mapping[str, Any], where: str, options: argparse.Namespace) -> int:
    """Run a document and report in sentences; return the exit code, which is reported too."""
    import asyncio

    from tui.cli.progress import follow
    from tui.cli.spoken import result_words

    run = make_run(document, where, options, hold_open=False)
    interrupted = asyncio.run(follow(run, spoken=True))
    code = conclude(run, interrupted=interrupted, table=result_words)
    print_status(f"vramp ends with exit code {code}.")
    return code


def show_cockpit(document: Mapping[str, Any], where: str, options: argparse.Namespace) -> int:
    """Run a document in the cockpit, or without a screen if it cannot be shown; return the exit code."""
    from tui.terminal import plain_reason

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


def conclude(run: Run, *, interrupted: bool, table: Table | None = None) -> int:
    """Print the figures of a finished run, as `table` formats them, and its files; return the exit code."""
    from loadgen.report.assessment import shortcomings
    from loadgen.report.junit import run_suite

    end_by_signals()
    if interrupted:
        end_soon()
    offered = 0
    if run.result is not None:
        if run.settings.junit_path is not None:
            write_junit(run.settings.junit_path, [run_suite(run.result)])
        offered = print_output(_measured_words(run.result, table))
        for path in run.result_paths:
            if path.exists():
                print_status(f"result: {path}")
    for line in [str(run.error)] if run.error is not None else shortcomings(run.result) if run.result else []:
        print_status(f"vramp: {line}")
    return max(offered, exit_code(run, interrupted=interrupted))


def _measured_words(result: Result, table: Table | None) -> str:
    from loadgen.report.text import text_report

    return f"{printable((table or text_report)(result))}\n" if result.stages else ""


def exit_code(run: Run, *, interrupted: bool) -> int:
    """Return the exit code of a finished run."""
    if run.error is not None:
        return run.error.exit_code
    if interrupted:
        return INTERRUPTED
    from loadgen.report.assessment import shortcomings

    return 1 if run.result is None or shortcomings(run.result) else 0
