"""Runs on disk: their folders and results, results kept as baselines, and the lookup of what a user names.

Every command with a RUN argument looks it up here, so all accept the same forms and fail with the same messages.
A baseline is a whole result, `NAME.json` in the user's state folder, and needs no other file.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from loadgen.errors import UNDECODABLE, ProfileError, ResultError, reported_as
from loadgen.masking import masked
from loadgen.places import read_whole, require_own_folder, state_folder, takes_bytes, write_named, write_whole
from loadgen.record.summary import summary_json, summary_of
from loadgen.schema.result import RESULT, SCHEMA, Result
from loadgen.schema.summary import SUMMARY_SCHEMA
from loadgen.store.foreign.read import TOOLS, read_foreign
from loadgen.store.journal import JOURNAL, journal_is_held

RUNS = Path("runs")  # the folder of all runs, in the current folder
SUMMARY = "summary.json"
LAST = "last"  # means the newest run, so it cannot name a baseline
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FOLDER = re.compile(r"(?P<time>[0-9]{8}T[0-9]{6}Z)-(?P<profile>.+)")  # see `claim_folder`
_SUFFIX = ".json"
_NAMED = 8
_STILL_RUNS = "the run still runs; these are its figures so far"


class Head(msgspec.Struct, frozen=True):
    """The parts of a result that give its schema version and whether its run has ended."""

    schema: str = ""
    finished_at: str | None = None


class _Load(msgspec.Struct, frozen=True):
    endpoint: str | None = None
    seed: int | None = None


class _Profile(msgspec.Struct, frozen=True):
    """The keys of a result's profile that vramp relies on; the others may be anything."""

    server: dict[str, Any] | None = None
    load: _Load | None = None
    slo: dict[str, Any] | None = None
    recipe: dict[str, str] | None = None


class _Environment(msgspec.Struct, frozen=True):
    """The keys of a result's environment that vramp relies on; the others may be anything."""

    model: str | None = None
    server_command: list[str] | None = None
    server_env: dict[str, str] | None = None
    server_instances: list[Any] | None = None
    engine: str | None = None
    vllm_version: str | None = None
    max_model_len: int | None = None
    host: str | None = None
    cpu: str | None = None
    kernel: str | None = None


def find_run(text: str) -> Path:
    """The folder of a run, or the file of a result, that `text` means.

    It is a path, the name of a folder in `runs/`, the name of a baseline, an unambiguous beginning of a folder's name,
    or `last`. Raises `ResultError`.
    """
    path = Path(text)
    with reported_as(f"{text}: cannot be looked up"):  # an impossible file name, or no permission
        if path.is_file() or _is_run(path):
            return path
    if path.exists() and not path.is_dir():
        raise ResultError(f"{text}: cannot be read: it is not a regular file")
    if path.is_dir():
        if not os.access(path, os.X_OK):
            raise ResultError(f"{path}: cannot be looked up: {os.strerror(errno.EACCES)}")
        # It may be the folder of a sweep, which holds a result per variant.
        results = sorted(result for result in path.glob("*.json") if result.name != "sweep.json")
        others = f"; name one of its results: {_names(results)}" if results else ""
        raise ResultError(f"{path}: there is no run in this folder{others}")
    runs = run_folders()
    if text == LAST and runs:
        return runs[-1]
    exact = [run for run in runs if run.name == text]
    kept = baselines().get(text)
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
    """The result of the run that `text` means, see `find_run`; raises `ResultError`, also for a killed run."""
    return result_at(find_run(text))


def result_at(path: Path) -> Result:
    """The result in a run's folder, or in a file; raises `ResultError`, which says what became of a run without one."""
    if not path.is_dir():
        return read_result(path)
    if (path / RESULT).is_file():
        try:
            return read_result(path / RESULT)
        except ResultError as error:
            remedy = f"; `vramp recover {path}` rebuilds it from the journal" if was_killed(path) else ""
            raise ResultError(f"{error}{remedy}") from error
    if not (path / JOURNAL).is_file():
        raise ResultError(f"{path}: there is no run in this folder")
    if journal_is_held(path / JOURNAL):
        raise ResultError(f"{path}: this run is still running; it writes its result when it ends")
    raise ResultError(f"{path}: this run ended without writing its result; make it with `vramp recover {path}`")


def open_journal(text: str) -> Path:
    """The journal of the run that `text` means, see `find_run`; raises `ResultError`."""
    path = find_run(text)
    journal = (path.parent if path.is_file() else path) / JOURNAL
    if not journal.is_file():
        raise ResultError(f"{journal}: there is no such file; a run can be replayed only with its journal")
    return journal


def was_killed(folder: Path) -> bool:
    """Whether the run in this folder ended without its result, so that `vramp recover` is needed."""
    return (folder / JOURNAL).is_file() and not journal_is_held(folder / JOURNAL) and not has_result(folder)


def has_result(folder: Path) -> bool:
    """Whether there is the result of a whole run, not an interim one that was written while the run continued."""
    try:
        return msgspec.json.decode(read_whole(folder / RESULT), type=Head).finished_at is not None
    except (OSError, *UNDECODABLE):
        return False


def run_folders() -> list[Path]:
    """The folders of runs in `runs/`, oldest first: their names begin with the time; first those that were renamed."""
    try:
        found = [folder for folder in RUNS.iterdir() if _is_run(folder)]
    except OSError:
        return []
    return sorted(found, key=lambda folder: (_FOLDER.match(folder.name) is not None, folder.name))


def profile_of(name: str) -> str:
    """The profile that a run's folder is named after, or the whole name if it has another form."""
    match = _FOLDER.fullmatch(name)
    return match["profile"] if match is not None else name


def started_of(name: str) -> datetime | None:
    """When a run started, by the name of its folder."""
    match = _FOLDER.fullmatch(name)
    try:
        return datetime.strptime(match["time"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) if match is not None else None
    except ValueError:
        return None


def _is_run(folder: Path) -> bool:
    return any(os.path.isfile(folder / name) for name in (RESULT, JOURNAL))  # noqa: PTH113 - a folder may be denied


def _names(paths: Iterable[Path]) -> str:
    names = [path.name for path in paths][::-1]
    left = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {left} more" if left > 0 else "")


def save_baseline(name: str, result: Result, *, replace: bool = False) -> Path:
    """Keep a result as a baseline.

    Raises `ProfileError` if the name is invalid or taken, `ResultError` if it cannot be written, or measured nothing.
    """
    if result.kind == "load" and not any(stage.requests.completed for stage in result.stages):
        raise ResultError(f"run {result.run_id}: no request was completed, so there is nothing to compare with")
    if _NAME.fullmatch(name) is None or name == LAST:
        allowed = f"use up to 64 letters, digits, dots and dashes, but not: {LAST}"
        raise ProfileError(f"{name}: not a valid name for a baseline; {allowed}")
    path = _folder() / f"{name}{_SUFFIX}"
    if path.exists() and not replace:
        raise ProfileError(f"{name}: there is a baseline of this name: {path}; --replace overwrites it")
    write_result(result, path)
    return path


def baselines() -> dict[str, Path]:
    try:
        paths = sorted(_folder().glob(f"*{_SUFFIX}"))
    except ResultError:
        return {}
    return {path.name.removesuffix(_SUFFIX): path for path in paths if not path.name.startswith(".")}


def remove_baseline(name: str) -> Path:
    """Delete a baseline; raises `ResultError` if there is none, or it cannot be removed."""
    path = require_baseline(name)
    with reported_as(f"{path}: cannot be removed"):
        path.unlink()
    return path


def require_baseline(name: str) -> Path:
    """The file of a baseline; raises `ResultError` if there is none."""
    path = baselines().get(name)
    if path is None:
        raise ResultError(f"{name}: no baseline of this name; there are {', '.join(baselines()) or 'none'}")
    return path


def _folder() -> Path:
    try:
        return state_folder("baselines")
    except OSError as error:
        raise ResultError(f"{error.filename}: no folder for baselines: {error.strerror}") from error


def claim_folder(name: str, started: datetime) -> Path:
    """Make `runs/<UTC time>-<name>/`; a second run in the same second gets a number.

    Raises `ResultError`, also where another user could replace the folder and have files written elsewhere.
    """
    try:
        require_own_folder(RUNS)
    except PermissionError as error:
        raise ResultError(f"{error.filename}: results go below it, but {error.strerror}") from None
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
    """Check that the result can be written there; raises `ResultError`."""
    try:
        if takes_bytes(path):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".vramp-")
    except IsADirectoryError:
        raise ResultError(f"{path}: is a folder; expected a file") from None
    except OSError as error:
        raise _unwritable(path, error) from error
    os.close(descriptor)
    Path(name).unlink()


def _unwritable(path: Path, error: OSError) -> ResultError:
    return ResultError(f"{path.absolute()}: the result cannot be written there: {error.strerror}; nothing was started")


def write_result(result: Result, path: Path, *, named: bool = False) -> None:
    """Write a result whole or not at all, to a path that the user `named` or to one of ours; raises `ResultError`."""
    document = msgspec.json.format(msgspec.json.encode(result), indent=1)
    _write(document + b"\n", path, "result", named=named)


def write_summary(result: Result, folder: Path) -> None:
    """Write the summary of a result into the folder of its run; raises `ResultError`."""
    _write(summary_json(summary_of(result)), folder / SUMMARY, "summary")


def _write(document: bytes, path: Path, what: str, *, named: bool = False) -> None:
    with reported_as(f"{path}: the {what} cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        (write_named if named else write_whole)(path, document)


def read_result(path: Path) -> Result:
    """Read a result of vramp or of another tool; raises `ResultError` for anything else.

    A run writes its result also while it still runs, as the result that it leaves if it is killed.
    """
    with reported_as(f"{path}: cannot be read"):
        document = read_whole(path)
    try:
        result: Result = msgspec.json.decode(document, type=Result)
        msgspec.convert(result.profile, _Profile)
        msgspec.convert(result.environment, _Environment)
        for moment in (result.started_at, *(stage.started_at for stage in result.stages)):
            if datetime.fromisoformat(moment).tzinfo is None:
                raise ValueError(f"a time without its zone: {moment!r}")
        if result.finished_at is None and journal_is_held(path.parent / JOURNAL):
            return msgspec.structs.replace(result, state="stopped", reason=_STILL_RUNS)
        return result
    except UNDECODABLE as error:
        try:
            schema = msgspec.json.decode(document, type=Head).schema
        except UNDECODABLE:
            schema = ""
        for known in (SCHEMA, SUMMARY_SCHEMA):
            if schema != known and schema.startswith(f"{known.partition('/')[0]}/"):
                raise ResultError(f"{path}: made by a newer vramp ({schema}; this one reads {known})") from error
        if schema == SUMMARY_SCHEMA:
            raise ResultError(f"{path}: the summary of a run; its figures in full are in its {RESULT}") from error
        if schema:
            raise ResultError(f"{path}: not a result of vramp: {error}") from error
        not_ours = error
    try:
        foreign = read_foreign(document, path.name)
    except (*UNDECODABLE, OverflowError) as error:
        raise ResultError(f"{path}: not a result of vramp, {TOOLS}: {error}") from error
    if foreign is None:
        raise ResultError(f"{path}: not a result of vramp, {TOOLS}: {not_ours}") from not_ours
    return masked(foreign)  # type: ignore[no-any-return]
