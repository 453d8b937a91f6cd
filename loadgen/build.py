"""The version of this code with its commit, which is stored in a wheel when built, or read from git in a checkout.

Standard library only, because the build hook imports it. Nothing here runs unless it is called.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import loadgen

NOTE = "build.json"
"""The file next to this module in which a wheel and an sdist carry their build."""
_GIT_TIMEOUT_S = 10


class Build(NamedTuple):
    """The commit that something was built from, abbreviated, and its date as 2026-11-23."""

    commit: str
    date: str
    modified: bool  # tracked files differ from the commit


def version_words() -> str:
    """The version in words: `1.0.0rc1 (98fe7ef)`, or with `, modified`; without the commit if none is known."""
    build = this_build()
    if build is None:
        return loadgen.__version__
    return f"{loadgen.__version__} ({build.commit}{', modified' if build.modified else ''})"


def this_build(folder: Path = Path(__file__).parent) -> Build | None:
    """The build of the package in `folder`; None if unknown."""
    try:
        return Build(**json.loads((folder / NOTE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return from_git(folder.parent)


def from_git(checkout: Path) -> Build | None:
    """The build of a git checkout; None if it is none, or if there is no git."""
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return None
    try:
        commit, date = _said(git, checkout, "show", "--no-patch", "--format=%h %cs", "--abbrev=7").split()
        changed = _said(git, checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, ValueError, subprocess.SubprocessError):  # no commit yet, or a repository of another user
        return None
    return Build(commit, date, modified=bool(changed.strip()))


def _said(git: str, checkout: Path, *words: str) -> str:
    command = [git, "--no-optional-locks", "-C", str(checkout), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True)
    return done.stdout
