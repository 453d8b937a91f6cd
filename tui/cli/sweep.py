"""`vramp sweep`: the same load on every variant of a server, one after another, in one table."""

from __future__ import annotations

import argparse
import asyncio
import secrets
from pathlib import Path

from loadgen.errors import ProfileError, VrampError, reported_as
from loadgen.profile import BASE
from loadgen.profile.document import load_document, variant_names
from loadgen.profile.schema import Profile
from loadgen.report.assessment import shortcomings
from loadgen.report.compare_document import sweep_json, sweep_ratios, sweep_rows, sweep_text
from loadgen.run.run import Run
from loadgen.run.settings import RunSettings
from loadgen.run.sweep import (
    Sweep,
    Variant,
    as_swept,
    begin_sweep,
    differing_load,
    note_variant,
    outcomes_of,
    result_path,
    resume_sweep,
)
from loadgen.store.runs import require_writable
from tui.catalog import find_profile
from tui.cli.headless import exit_code, follow
from tui.cli.options import (
    INTERRUPTED,
    add_profile_options,
    before_anything_runs,
    parser_of,
    print_output,
    print_status,
    printable,
    profile_of,
)

_ALL = "all"

_EPILOG = f"""\
A variant that does not start is a row with its reason. Ctrl-C keeps what is done; --resume FOLDER, with the other
options unchanged, continues with the variants that are not complete. "{BASE}" is the profile without a variant: it
runs first, and is the 100 %% that all others with the same load are compared with, unless --variants says otherwise.

exit codes: 0 every variant is complete; 1 at least one of them failed; 2 usage or profile;
            3 no server could be started; 130 interrupted
"""


def sweep(options: argparse.Namespace) -> int:
    """Run the variants and print the table; return 0 if all of them are complete and met their limits."""
    name, profiles = _profiles(options)
    with before_anything_runs():
        if options.json is not None:
            require_writable(options.json)
        if options.resume is not None:
            folder, state = options.resume, resume_sweep(options.resume, profiles)
        else:
            seeds = {profile.load.seed for profile in profiles.values()} - {None}
            folder, state = begin_sweep(name, profiles, seed=seeds.pop() or 0 if seeds else secrets.randbelow(2**31))
    state, codes = _run_all(folder, state, profiles, force=options.force)
    return max(_conclude(folder, state, options.json), _summed(codes))


def sweep_parser() -> argparse.ArgumentParser:
    about = "The same load on every variant of a server, one after another, in one table."
    parser = parser_of("vramp sweep", about, _EPILOG)
    add_profile_options(parser)
    group = parser.add_argument_group("sweep")
    group.add_argument("--variants", metavar="A,B,...", default=_ALL, help=f"run these in this order (default: {_ALL})")
    group.add_argument("--resume", metavar="FOLDER", type=Path, help="continue the sweep in this folder")
    group.add_argument("--json", metavar="FILE", type=Path, help="write the rows of the table here")
    group.add_argument("--force", action="store_true", help="start even if the preflight says that it will not work")
    return parser


def _profiles(options: argparse.Namespace) -> tuple[str, dict[str, Profile]]:
    """Return the name of the sweep and the profile of each variant, all valid; raises `ProfileError`."""
    if options.profile is None:
        raise ProfileError("vramp sweep: needs a profile; the variants are its [variants]")
    if options.url is not None or options.variant is not None:
        raise ProfileError("vramp sweep: starts each server itself: --variants names them; no --url, no --variant")
    document = load_document(find_profile(options.profile))
    offered = variant_names(document)
    if not offered and options.variants == _ALL:
        raise ProfileError(f"{options.profile}: has no [variants] to sweep over")
    # The first is the base with which the others are compared.
    names = dict.fromkeys([BASE, *offered] if options.variants == _ALL else options.variants.split(","))
    profiles = {}
    for name in names:
        options.variant = None if name == BASE and BASE not in offered else name
        profiles[name], _ = profile_of(options)
    if options.variants == _ALL:
        # Another load is another workload, which a sweep cannot compare.
        alike = {name: one for name, one in profiles.items() if not differing_load(profiles[BASE], one)}
        if left_out := [name for name in profiles if name not in alike]:
            print_status(f"left out, because their load is not that of {BASE}: {', '.join(left_out)}")
        if len(alike) == 1:
            raise ProfileError(
                f"no variant has the load of {BASE}: name some with --variants, or set one load with options"
            )
        profiles = alike
    return str(document["name"]), profiles


def _run_all(folder: Path, state: Sweep, profiles: dict[str, Profile], *, force: bool) -> tuple[Sweep, list[int]]:
    names = state.remaining
    complete = [outcome.result for outcome in outcomes_of(folder, state) if outcome.variant not in names]
    codes = [1 if result is None or shortcomings(result) else 0 for result in complete]
    print_status(f"sweep in {folder}: {len(names)} of {len(state.variants)} variants to run, seed {state.seed}")
    for number, name in enumerate(names, start=1):
        print_status(f"variant {number} of {len(names)}: {name}")
        variant, code = _run_one(folder, name, as_swept(profiles[name], state.seed), force=force)
        state = note_variant(folder, state, variant)
        codes.append(code)
        if code == INTERRUPTED:
            break
    return state, codes


def _run_one(folder: Path, name: str, profile: Profile, *, force: bool) -> tuple[Variant, int]:
    """Run a variant; a failure ends this variant only."""
    path = result_path(folder, name)
    try:
        run = Run(RunSettings(profile, where=f"variant {name}", json_path=path, force=force))
        interrupted = asyncio.run(follow(run))
    except VrampError as error:
        print_status(f"vramp: {error}")
        return Variant(name=name, state="failed", reason=str(error), result=None), error.exit_code
    except KeyboardInterrupt:
        # It came before the run had its own handler, or after.
        return Variant(name=name, state="stopped", reason="stopped by the operator", result=None), INTERRUPTED
    assert run.result is not None
    reason = run.result.reason if run.error is None else str(run.error)
    for line in shortcomings(run.result) if run.error is None else [reason]:
        print_status(f"vramp: {line}")
    variant = Variant(name=name, state=run.result.state, reason=reason, result=path.name if path.exists() else None)
    return variant, INTERRUPTED if interrupted else exit_code(run, interrupted=False)


def _conclude(folder: Path, state: Sweep, json_path: Path | None) -> int:
    """Write the rows and print the table; return the exit code, if no variant has another."""
    outcomes = outcomes_of(folder, state)
    rows, ratios = sweep_rows(outcomes), sweep_ratios(outcomes)
    if json_path is not None:
        with reported_as(f"{json_path}: cannot be written"):
            json_path.write_text(sweep_json(state.profile, state.seed, rows, ratios), encoding="utf-8")
    code = print_output(f"{printable(sweep_text(rows, ratios))}\n")
    print_status(f"sweep: {folder}")
    if state.remaining:
        print_status(f"not complete: {', '.join(state.remaining)}; --resume {folder} continues with them")
    return code


def _summed(codes: list[int]) -> int:
    if INTERRUPTED in codes:
        return INTERRUPTED
    if not any(codes):
        return 0
    # If every variant failed in the same way, that is the exit code.
    return codes[0] if len(set(codes)) == 1 else 1
