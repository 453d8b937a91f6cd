"""Baselines: results kept under a name, to compare others with long after their runs have gone.

Each is a whole result, `NAME.json` in the user's state folder, so that it needs nothing else to be read.
"""

from __future__ import annotations

import re
from pathlib import Path

from loadgen.errors import ProfileError, ResultError
from loadgen.metrics.result import Result, write_result
from loadgen.places import state_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LAST = "last"  # names the newest run, and so no baseline
_SUFFIX = ".json"


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
