"""Finding a run that is over by the words of a person: a folder, a result, a name, its beginning, a baseline, `last`.

Used by everything that takes a RUN on the command line, so that all of them take the same words and fail with the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from loadgen.errors import ResultError
from loadgen.metrics.journal import journal_is_held
from loadgen.metrics.result import Result, read_result
from loadgen.store.baselines import LAST, baseline_path

RUNS = Path("runs")  # where runs leave their folders, below the current one
RESULT = "result.json"
JOURNAL = "journal.jsonl"
HISTOGRAMS = "histograms.hlog"
_NAMED = 8


class _End(msgspec.Struct, frozen=True):
    """All of a result that says whether its run has ended."""

    finished_at: str | None = None


def find_run(text: str) -> Path:
    """The folder of a run, or the file of a result, that `text` means.

    It is a path, or else the name of a folder in `runs/`, of a baseline, the beginning of only one folder's name, or
    `last`. Raises `ResultError`.
    """
    path = Path(text)
    try:
        found_there = path.is_file() or _is_run(path)
    except OSError as error:  # no name that a file can have, or nothing that we may look at
        raise ResultError(f"{text}: cannot be looked up: {error.strerror}") from error
    if found_there:
        return path
    if path.is_dir():
        raise ResultError(f"{path}: there is no run in this folder{_results_in(path)}")
    runs = run_folders()
    if text == LAST and runs:
        return runs[-1]
    exact = [run for run in runs if run.name == text]
    kept = baseline_path(text)
    if kept is not None and not exact:
        return kept
    found = exact or [run for run in runs if run.name.startswith(text)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ResultError(f"{text}: more than one run begins like this: {_names(found)}")
    raise ResultError(f"{text}: no such file, folder, baseline or run in {RUNS.absolute()}{_runs_there(runs)}")


def open_result(text: str) -> Result:
    """The result of the run that `text` means, as for `find_run`; raises `ResultError`, for a killed run too."""
    path = find_run(text)
    if path.is_file():
        return read_result(path)
    if (path / RESULT).is_file():
        return read_result(path / RESULT)
    if journal_is_held(path / JOURNAL):
        raise ResultError(f"{path}: this run goes on; its result is written when it ends")
    raise ResultError(f"{path}: this run was killed before it wrote its result: `vramp recover {path}` makes it")


def open_journal(text: str) -> Path:
    """The journal of the run that `text` means, as for `find_run`; raises `ResultError`."""
    path = find_run(text)
    journal = (path.parent if path.is_file() else path) / JOURNAL
    if not journal.is_file():
        raise ResultError(f"{journal}: there is no such file; without its journal a run is only its result")
    return journal


def was_killed(folder: Path) -> bool:
    """Whether the run of this folder ended without its result, so that `vramp recover` is due."""
    return (folder / JOURNAL).is_file() and not journal_is_held(folder / JOURNAL) and not has_result(folder)


def has_result(folder: Path) -> bool:
    """Whether there is the result of a whole run: one that was written while the operator might go on is not."""
    try:
        return msgspec.json.decode((folder / RESULT).read_bytes(), type=_End).finished_at is not None
    except (OSError, msgspec.DecodeError):
        return False


def run_folders() -> list[Path]:
    """The folders of runs below `runs/`, oldest first: their names begin with the time."""
    try:
        return sorted(folder for folder in RUNS.iterdir() if _is_run(folder))
    except OSError:
        return []


def _is_run(folder: Path) -> bool:
    return (folder / RESULT).is_file() or (folder / JOURNAL).is_file()


def _results_in(folder: Path) -> str:
    """What else somebody may have meant: a sweep's folder holds a result for each variant."""
    results = sorted(path for path in folder.glob("*.json") if path.name != "sweep.json")
    return f"; name one of its results: {_names(results)}" if results else ""


def _runs_there(runs: list[Path]) -> str:
    return f"; the newest there: {_names(runs)}" if runs else ", which holds none"


def _names(paths: Iterable[Path]) -> str:
    names = [path.name for path in paths][::-1]
    left = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {left} more" if left > 0 else "")
