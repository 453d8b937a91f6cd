"""Where vramp keeps what outlives one run: the XDG folders of the user, asked for anew each time.

Standard library only, because the guard imports it and must start fast.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder for what can be found out again; made if missing, for its owner's eyes only."""
    return _folder("XDG_CACHE_HOME", ".cache", name)


def state_folder(name: str) -> Path:
    """The folder for what is true of this machine now; made if missing, for its owner's eyes only."""
    return _folder("XDG_STATE_HOME", ".local/state", name)


def _folder(variable: str, default: str, name: str) -> Path:
    base = Path(os.environ.get(variable, ""))
    if not base.is_absolute():  # the XDG specification: a relative path there is to be ignored
        base = Path.home() / default
    folder = base / "vramp" / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
