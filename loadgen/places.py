"""Where vramp keeps what outlives one run: the XDG folders of the user, asked for anew each time.

Standard library only, because the guard imports it and must start fast.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder for what can be found out again, as `state_folder`; where it cannot be made, one goes without."""
    folder = xdg_path("XDG_CACHE_HOME", ".cache", name)
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def state_folder(name: str) -> Path:
    """The folder for what is true of this machine now; made if missing, for its owner's eyes only."""
    folder = xdg_path("XDG_STATE_HOME", ".local/state", name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def xdg_path(variable: str, default: str, name: str) -> Path:
    """Something of ours below a folder that the user may have moved, or else below its default in his home."""
    base = Path(os.environ.get(variable, ""))
    if not base.is_absolute():  # the XDG specification: a relative path there is to be ignored
        base = Path.home() / default
    return base / "vramp" / name


def write_whole(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a file whole or not at all; raises `OSError`."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
