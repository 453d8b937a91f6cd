"""`vramp accept`: whether a box may go into service, in the cockpit or without a screen."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import loadgen
from loadgen.criteria import PHASES
from loadgen.errors import ProfileError, ResultError, VrampError
from loadgen.format import duration
from loadgen.profile.accept import Accept, accept_doubts
from loadgen.report.certificate import criterion_line, headline
from loadgen.report.html.certificate import PAGE, verify_page
from loadgen.report.junit import certificate_suites, write_ctrf, write_junit
from loadgen.run.accept.acceptance import Acceptance, AcceptSettings, began_alike
from loadgen.run.accept.phases import identity_of, look_at_box, views
from loadgen.schema.accept_view import AcceptView
from loadgen.schema.certificate import AcceptBegan, AcceptResumed, Demand, Outcome
from loadgen.store.acceptance import CERTIFICATE, LINES, demands_of, read_certificate, verify
from loadgen.store.runs import RUNS, require_writable
from tui.cli.headless import Progress, drive
from tui.cli.options import (
    INTERRUPTED,
    add_profile_options,
    before_anything_runs,
    parser_of,
    print_output,
    print_status,
    print_text,
    printable,
    profile_of,
)
from tui.terminal import plain_reason

EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 1, "inconclusive": 4}
_EPILOG = """\
The folder runs/<time>-<profile>-accept/ keeps everything that was measured, and the certificate. Whatever ended an
acceptance, --resume FOLDER with the same profile goes on where it was; with more --starts or --hours it adds to what
there is.

exit codes: 0 PASS; 1 FAIL, or --verify found a difference; 2 usage or profile;
            3 the server could not be reached; 4 INCONCLUSIVE, also if the disk is full or a report cannot be
            written; 130 interrupted (what was measured is kept)
"""


def accept(options: argparse.Namespace) -> int:
    """Carry an acceptance out, and print a line for each criterion; return the exit code of its verdict."""
    if options.verify is not None:
        return _verify(options.verify)
    settings = _settings(options)
    unfinished = _unfinished(settings) if options.resume is None else None
    if unfinished is not None:
        print_status(f"an acceptance without a verdict is in {unfinished}; --resume {unfinished} goes on there")
    with before_anything_runs():
        for path in filter(None, (options.junit, options.ctrf)):
            require_writable(path)
        acceptance = Acceptance(settings, options.resume)
    print_status(f"acceptance: {acceptance.folder}")
    doubts = accept_doubts(acceptance.accept, settings.profile.server.engine).values()
    for line in doubts:
        print_status(line)
    began = [line.vramp_version for line in acceptance.lines if isinstance(line, AcceptBegan | AcceptResumed)]
    others = ", ".join(version for version in dict.fromkeys(began) if version != loadgen.__version__)
    if others:
        print_status(f"vramp {others} began it; this is {loadgen.__version__}, which judges all of it")
    try:
        if options.headless or plain_reason() is not None:
            interrupted = asyncio.run(drive(views(acceptance), acceptance.apply, _progress))
        else:
            from tui.app import Cockpit, open_cockpit
            from tui.config import read_config
            from tui.screens.accept import AcceptScreen

            screen = AcceptScreen(acceptance.folder, views(acceptance), acceptance.apply)
            interrupted = open_cockpit(Cockpit(screen, config=read_config()))
    except ResultError as error:
        # Not its own exit code, 1, which would say that the box failed.
        print_status(f"vramp: {error}\nwhat was measured is kept; --resume {acceptance.folder} goes on")
        return EXIT_CODES["inconclusive"]
    return _conclude(acceptance.folder, options, doubts, interrupted=interrupted)


def accept_parser() -> argparse.ArgumentParser:
    about = "May this box go into service? PASS, FAIL or INCONCLUSIVE, with reasons and a certificate."
    parser = parser_of("vramp accept", about, _EPILOG)
    add_profile_options(parser)
    group = parser.add_argument_group("acceptance")
    group.add_argument(
        "--phase", action="append", choices=tuple(PHASES), help="only this phase, even if it failed before; repeatable"
    )
    group.add_argument("--starts", type=int, metavar="N", help="starts of the server (default: accept.starts)")
    group.add_argument("--hours", type=float, metavar="H", help="burn-in in all (default: accept.burn_in)")
    group.add_argument(
        "--like", nargs="+", type=Path, metavar="FOLDER", help="acceptances of boxes that passed: bounds"
    )
    group.add_argument("--by", metavar="NAME", help="who accepts it; written into the certificate")
    group.add_argument("--resume", type=Path, metavar="FOLDER", help="continue the acceptance in this folder")
    group.add_argument("--verify", type=Path, metavar="FOLDER", help="only make the certificate again and compare it")
    group.add_argument("--force", action="store_true", help="start even if the preflight says that it will not work")
    group.add_argument("--headless", action="store_true", help="progress lines, though there is a terminal")
    group.add_argument("--junit", type=Path, metavar="FILE", help="write the criteria as tests for CI systems")
    group.add_argument("--ctrf", type=Path, metavar="FILE", help="the same as a CTRF report")
    return parser


def _settings(options: argparse.Namespace) -> AcceptSettings:
    """What the options ask for; raises `ProfileError`."""
    if options.profile is None and options.url is None:
        raise ProfileError("vramp accept: needs a profile, which says what the box must show")
    requested = {"starts": options.starts, "burn_in": options.hours and f"{options.hours}h", "phases": options.phase}
    options.set = [
        *options.set,
        *(f"accept.{key}={json.dumps(value)}" for key, value in requested.items() if value is not None),
    ]
    profile, where = profile_of(options)
    if profile.server.engine == "none":
        raise ProfileError(f'{where}: server.engine = "none": there is no server to accept')
    if profile.server.engine == "attach" and options.starts is not None:
        raise ProfileError(f"{where}: --starts {options.starts}: an attached server has one start; leave it out")
    profile = profile.model_copy(update={"accept": profile.accept or Accept()})
    demands: tuple[Demand, ...] = ()
    not_tested: tuple[str, ...] = ()
    like: tuple[str, ...] = ()
    if options.resume is None:
        # The boxes of --like must have the GPUs of this one.
        box = identity_of(asyncio.run(look_at_box(profile)), profile) if options.like else None
        demands, not_tested, like = demands_of(profile, options.like or [], box)
    return AcceptSettings(
        profile=profile,
        where=where,
        repeats=options.phase is not None,
        demands=demands,
        not_tested=not_tested,
        like=like,
        by=options.by,
        force=options.force,
    )


def _unfinished(settings: AcceptSettings) -> Path | None:
    """The newest acceptance of a profile, if it has no verdict yet and can go on with these settings."""
    newest = max((path.parent for path in RUNS.glob(f"*Z-{settings.profile.name}-accept*/{LINES}")), default=None)
    if newest is None:
        return None
    try:
        is_open = not (newest / CERTIFICATE).exists() or read_certificate(newest).verdict == "inconclusive"
        same = began_alike(settings, newest).phases == tuple((settings.profile.accept or Accept()).phases)
    except VrampError:  # damaged, of another version, or of another profile: no reason not to begin a new one
        return None
    return newest if is_open and same else None


def _progress(print_line: Callable[[str], None]) -> Callable[[AcceptView], None]:
    """What prints phases as they begin, and the progress of the run that goes on."""
    phase, run, progress = None, "", Progress(print_line)

    def update(view: AcceptView) -> None:
        nonlocal phase, run, progress
        if view.phase not in (None, phase):
            phase = view.phase
            left = f"; at least {duration(view.left_s)} left" if view.left_s else ""
            print_line(f"phase {phase}: {PHASES[phase]}{left}")
        if view.run not in ("", run):
            run, progress = view.run, Progress(print_line)
            print_line(f"run {run}")
        if view.snapshot is not None:
            progress.update(view.snapshot)

    return update


def _conclude(folder: Path, options: argparse.Namespace, doubts: Iterable[str], *, interrupted: bool) -> int:
    """Print what was judged and where it is; return the exit code, 4 for a pass that was not written everywhere."""
    certificate = read_certificate(folder)
    lines = [criterion_line(criterion) for criterion in certificate.criteria]
    lines += [f"{'NOT TESTED':<12}  {words}" for words in certificate.not_tested]
    lines += [headline(certificate), *(f"  {why}" for why in certificate.reasons)]
    unwritten = print_output(printable("\n".join(lines)) + "\n") != 0
    print_status(f"certificate: {folder / PAGE}")
    if certificate.verdict == "inconclusive":
        for line in (f"vramp accept ... --resume {folder} goes on, and adds to it", *doubts):
            print_status(line)
    try:
        if options.junit is not None:
            write_junit(options.junit, certificate_suites(certificate))
        if options.ctrf is not None:
            write_ctrf(options.ctrf, certificate)
    except ResultError as error:
        print_status(f"vramp: {error}; vramp accept ... --resume {folder} writes it again")
        unwritten = True
    if interrupted:
        return INTERRUPTED
    return EXIT_CODES["inconclusive" if unwritten and certificate.verdict == "pass" else certificate.verdict]


def _verify(folder: Path) -> int:
    """Make a certificate again from the evidence in its folder; return 1 if anything differs."""
    if not (folder / CERTIFICATE).is_file():
        raise ProfileError(f"--verify {folder}: there is no {CERTIFICATE}; name the folder of an acceptance")
    certificate = read_certificate(folder)
    if certificate.vramp_version != loadgen.__version__:
        print_status(
            f"vramp {certificate.vramp_version} made it, this is {loadgen.__version__}: other words need not be "
            f"an edit, and {PAGE} is not compared"
        )
    differences = [*verify(folder), *verify_page(folder, certificate)]
    print_text("\n".join(differences) if differences else f"{folder}: the certificate follows from its evidence")
    return 1 if differences else 0
