"""Runs on disk: their folders and results, the results kept as baselines, and finding one by the words of a person.

Everything that takes a RUN on the command line looks it up here: all take the same words and fail with the same.
A baseline is a whole result, `NAME.json` in the user's state folder, so that it needs nothing else to be read.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from loadgen.errors import ProfileError, ResultError
from loadgen.masking import masked
from loadgen.metrics.result import SCHEMA, Result
from loadgen.places import PRIVATE, read_whole, state_folder, write_whole
from loadgen.store.files import JOURNAL, journal_is_held
from loadgen.store.foreign.read import TOOLS, read_foreign

RUNS = Path("runs")  # where runs leave their folders, below the current one
RESULT = "result.json"
LAST = "last"  # names the newest run, and so no baseline
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SUFFIX = ".json"
_NAMED = 8


class _Head(msgspec.Struct, frozen=True):
    """All of a result that says of which version it is and whether its run has ended."""

    schema: str = ""
    finished_at: str | None = None


class _Load(msgspec.Struct, frozen=True):
    endpoint: str | None = None


class _Profile(msgspec.Struct, frozen=True):
    """What is relied on in the profile of a result, whose other keys may be anything."""

    server: dict[str, Any] | None = None
    load: _Load | None = None
    slo: dict[str, Any] | None = None


class _Environment(msgspec.Struct, frozen=True):
    """The same in its environment."""

    model: str | None = None
    server_command: list[str] | None = None
    server_env: dict[str, str] | None = None


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
        # Somebody may have meant something else in it: a sweep's folder holds a result for each variant.
        results = sorted(result for result in path.glob("*.json") if result.name != "sweep.json")
        others = f"; name one of its results: {_names(results)}" if results else ""
        raise ResultError(f"{path}: there is no run in this folder{others}")
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
    there = f"; the newest there: {_names(runs)}" if runs else ", which holds none"
    raise ResultError(f"{text}: no such file, folder, baseline or run in {RUNS.absolute()}{there}")


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
        return msgspec.json.decode(read_whole(folder / RESULT), type=_Head).finished_at is not None
    except (OSError, msgspec.DecodeError, RecursionError):
        return False


def run_folders() -> list[Path]:
    """The folders of runs below `runs/`, oldest first: their names begin with the time."""
    try:
        return sorted(folder for folder in RUNS.iterdir() if _is_run(folder))
    except OSError:
        return []


def _is_run(folder: Path) -> bool:
    return (folder / RESULT).is_file() or (folder / JOURNAL).is_file()


def _names(paths: Iterable[Path]) -> str:
    names = [path.name for path in paths][::-1]
    left = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {left} more" if left > 0 else "")


def save_baseline(name: str, result: Result, *, replace: bool = False) -> Path:
    """Keep a result under a name.

    Raises `ProfileError` for a name that is none or is taken, `ResultError` where it cannot be written.
    """
    if _NAME.fullmatch(name) is None or name == LAST:
        allowed = f"take up to 64 letters, digits, dots and dashes, not: {LAST}"
        raise ProfileError(f"{name}: no name for a baseline; {allowed}")
    path = _folder() / f"{name}{_SUFFIX}"
    if path.exists() and not replace:
        raise ProfileError(f"{name}: there is a baseline of this name: {path}; --replace takes its place")
    write_result(result, path)
    return path


def baseline_path(name: str) -> Path | None:
    """Where the baseline of this name is; None if there is none."""
    return baselines().get(name)


def baselines() -> dict[str, Path]:
    try:
        paths = sorted(_folder().glob(f"*{_SUFFIX}"))
    except ResultError:
        return {}
    return {path.name.removesuffix(_SUFFIX): path for path in paths if not path.name.startswith(".")}


def remove_baseline(name: str) -> Path:
    """Forget a baseline; raises `ResultError` if there is none, or it stays."""
    path = require_baseline(name)
    try:
        path.unlink()
    except OSError as error:
        raise ResultError(f"{path}: cannot be removed: {error.strerror}") from error
    return path


def require_baseline(name: str) -> Path:
    """Where the baseline of this name is; raises `ResultError` if there is none."""
    path = baseline_path(name)
    if path is None:
        raise ResultError(f"{name}: no baseline of this name; there are {', '.join(baselines()) or 'none'}")
    return path


def _folder() -> Path:
    try:
        return state_folder("baselines")
    except OSError as error:
        raise ResultError(f"{error.filename}: no folder for baselines: {error.strerror}") from error


def claim_folder(name: str, started: datetime) -> Path:
    """Make `runs/<UTC time>-<name>/`; a second run in the same second gets a number. Raises `ResultError`."""
    stem = f"{started.astimezone(UTC):%Y%m%dT%H%M%SZ}-{name}"
    for attempt in range(1, 1000):
        folder = RUNS / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            if RUNS.is_dir():
                continue
            raise ResultError(f"{RUNS.absolute()}: is not a folder; results go there") from None
        except OSError as error:
            raise _unwritable(folder, error) from error
        return folder
    raise ResultError(f"{RUNS.absolute()}: cannot make a folder for {stem}")


def require_writable(path: Path) -> None:
    """Try that a file can be written where the result is to go; raises `ResultError`."""
    try:
        # From Python 3.14 `is_dir` does not tell what is wrong with a name that cannot be.
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(path.stat().st_mode):
                raise ResultError(f"{path}: is a folder; a file is wanted")
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".vramp-")
    except OSError as error:
        raise _unwritable(path, error) from error
    os.close(descriptor)
    Path(name).unlink()


def _unwritable(path: Path, error: OSError) -> ResultError:
    return ResultError(f"{path.absolute()}: the result cannot be written there: {error.strerror}; nothing was started")


def write_result(result: Result, path: Path, *, mode: int = PRIVATE) -> None:
    """Write a result whole or not at all; raises `ResultError`."""
    document = msgspec.json.format(msgspec.json.encode(result), indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, document + b"\n", mode=mode)
    except OSError as error:
        raise ResultError(f"{path}: the result cannot be written: {error.strerror}") from error


def read_result(path: Path) -> Result:
    """Read a result, of an older vramp or another tool too; raises `ResultError` for any other, and a newer schema."""
    try:
        document = read_whole(path)
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        result: Result = msgspec.json.decode(document, type=Result)
        msgspec.convert(result.profile, _Profile)
        msgspec.convert(result.environment, _Environment)
        for moment in (result.started_at, *(stage.started_at for stage in result.stages)):
            if datetime.fromisoformat(moment).tzinfo is None:
                raise ValueError(f"a time without its zone: {moment!r}")
        return masked(result)  # type: ignore[no-any-return]  # an older vramp may have left something in it
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        try:
            schema = msgspec.json.decode(document, type=_Head).schema
        except (msgspec.DecodeError, RecursionError):
            schema = ""
        if schema.startswith("vramp.result/") and schema != SCHEMA:
            raise ResultError(f"{path}: made by a newer vramp ({schema}; this one reads {SCHEMA})") from error
        if not schema:
            return _read_foreign(document, path, error)
        raise ResultError(f"{path}: not a result of vramp: {error}") from error


def _read_foreign(document: bytes, path: Path, error: Exception) -> Result:
    """A result of another tool; `error` is why it is none of vramp."""
    try:
        result = read_foreign(document, path.name)
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError) as wrong:
        raise ResultError(f"{path}: not a result of vramp, {TOOLS}: {wrong}") from wrong
    if result is None:
        raise ResultError(f"{path}: not a result of vramp, {TOOLS}: {error}") from error
    return masked(result)  # type: ignore[no-any-return]
