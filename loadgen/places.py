"""Where vramp keeps what outlives one run: the XDG folders of the user, asked for anew each time.

Standard library only, because the guard imports it and must start fast.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder for what can be found out again, as `state_folder`; where it cannot be made, one goes without."""
    folder = xdg_path("XDG_CACHE_HOME", ".cache", name)
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def state_folder(name: str) -> Path:
    """The folder for what is true of this machine now; made if missing, for its owner's eyes only.

    What lies there decides which processes are ended: raises `PermissionError` where somebody else could have put it.
    """
    ours = xdg_path("XDG_STATE_HOME", ".local/state", "")
    ours.parent.mkdir(parents=True, exist_ok=True)
    for folder in ours.parent.resolve(), *ours.parent.resolve().parents:
        mode = folder.stat().st_mode
        # Whoever may rename what is in it can put another folder in the place of ours.
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise _untrusted(folder, f"everybody can write to it; chmod o-w {folder}")
    for part in ("", *Path(name).parts):
        ours /= part
        ours.mkdir(mode=0o700, exist_ok=True)
        found = ours.stat()
        if found.st_uid != os.geteuid():
            raise _untrusted(ours, f"it belongs to another user, {found.st_uid}")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _untrusted(ours, f"others can write to it; chmod go-w {ours}")
    return ours


def _untrusted(folder: Path, why: str) -> PermissionError:
    return PermissionError(errno.EPERM, why, str(folder))


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
