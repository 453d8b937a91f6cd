"""The user's XDG folders; reading and writing of files that nobody can swap; and who is trusted.

A folder may come from someone else: only regular files are read, and nothing is written through a link. What decides
which programs vramp starts, or where it writes, must belong to a trusted user; `trust_all_users` lifts that.

Standard library only, because the guard imports it and must start fast.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PRIVATE = 0o600
TRUST = "--trust"
"""The option that calls `trust_all_users`."""
_MAX_BYTES = 256 << 20  # of a file that is read whole
_trusts_all_users = False


def trust_all_users() -> None:
    """Use profiles, folders and sockets of any user, because the operator says so."""
    global _trusts_all_users  # noqa: PLW0603 - set once, as the command line is read
    _trusts_all_users = True


def is_trusted(user: int) -> bool:
    """Whether this user may decide what vramp runs: root, ourselves, who called sudo, and who owns vramp's code."""
    if _trusts_all_users or user in (0, os.geteuid()):
        return True
    return str(user) == os.environ.get("SUDO_UID") or user == Path(__file__).stat().st_uid


def require_trusted(found: os.stat_result, path: Path) -> None:
    """Raise `PermissionError` if another user can change what was found at this path."""
    if not is_trusted(found.st_uid):
        raise _untrusted(path, f"it belongs to another user, {found.st_uid}; {TRUST} uses it all the same")
    everybody_writes = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
    if everybody_writes and not stat.S_ISLNK(found.st_mode) and not _trusts_all_users:
        raise _untrusted(path, f"everybody can write to it; chmod o-w {path}")


def require_own_folder(folder: Path) -> None:
    """Raise `PermissionError` if another user can replace this folder, which may be missing, or one above it."""
    there, target = folder.absolute(), folder.resolve()
    for part in dict.fromkeys((there, *there.parents, target, *target.parents)):
        with contextlib.suppress(FileNotFoundError):
            require_trusted(part.lstat(), part)


def open_private(path: str | Path, flags: int) -> int:
    """Open a file for its owner alone: the `opener` of `open`.

    Raises `OSError` for a link, a pipe, and a file of another user or with another name.
    """
    safe = flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, safe, mode=PRIVATE)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISFIFO(found.st_mode) or found.st_nlink > 1 or not is_trusted(found.st_uid):
            raise OSError(errno.EPERM, "it is a pipe, has a second name, or belongs to another user", str(path))
        if flags & os.O_TRUNC and stat.S_ISREG(found.st_mode):
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def expanded(text: str) -> str:
    """The path with a leading `~` or `~user` expanded; left as it is if there is no such user."""
    return os.path.expanduser(text)  # noqa: PTH111 - `Path.expanduser` raises where nobody has that name


def home_folder() -> Path:
    """The user's home; a folder that does not exist if it is unknown: HOME is not set, and the user has no name."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/unknown-home")


def cache_folder(name: str) -> Path:
    """The folder for what can be recomputed, see `state_folder`; it may be missing if it cannot be created."""
    ours = xdg_path("XDG_CACHE_HOME", ".cache", "")
    with contextlib.suppress(OSError):
        ours.parent.mkdir(parents=True, exist_ok=True)
        ours.mkdir(mode=0o700, exist_ok=True)
        (ours / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    return ours / name


def state_folder(name: str) -> Path:
    """The folder for the present state of this machine; created if missing, readable only by its owner.

    Its contents decide which processes are ended: raises `PermissionError` if another user could have put them there.
    """
    ours = xdg_path("XDG_STATE_HOME", ".local/state", "")
    ours.parent.mkdir(parents=True, exist_ok=True)
    require_own_folder(ours.parent)  # a user who may rename entries of a parent folder can replace ours
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
    """vramp's path `name` below an XDG folder: the one in `variable`, or else `default` in the user's home."""
    base = Path(os.environ.get(variable, ""))
    if not base.is_absolute():  # the XDG specification: a relative path there is to be ignored
        base = home_folder() / default
    return base / "vramp" / name


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading; raises `OSError`, also for a device or a pipe, which might block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_whole(path: Path) -> bytes:
    """Read a whole file; raises `OSError`, also for one that is larger than any that vramp writes."""
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size > _MAX_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {_MAX_BYTES >> 20} MiB", str(path))
        return file.read(_MAX_BYTES)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = PRIVATE) -> Iterator[Path]:
    """Provide a new file that replaces `path`, a file or a link, at the end of the block.

    Raises `OSError`; then, and if the block raises, `path` is left as it was.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".vramp-")
    os.close(descriptor)
    new = Path(name)
    try:
        yield new
        new.chmod(mode)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def write_whole(path: Path, data: bytes, *, mode: int = PRIVATE) -> None:
    """Write a file whole or not at all; raises `OSError`."""
    with replacing(path, mode=mode) as new, new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_named(path: Path, data: bytes) -> None:
    """Write a file that the user named: whole, with the mode of any such file; what is no file takes the bytes.

    Raises `OSError`.
    """
    if takes_bytes(path):
        with path.open("ab") as there:
            there.write(data)
    else:
        write_whole(path, data, mode=stat.S_IMODE(path.stat().st_mode) if path.exists() else named_mode())


def takes_bytes(path: Path) -> bool:
    """Whether what is there is written to and never replaced: a device, a pipe, or a name of an open file.

    Raises `OSError`, also for a folder, but not where nothing is.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # Standard output may be a file, but /dev/stdout, which leads to it, belongs to everybody.
    is_open_file = path.is_symlink() and path.absolute().parts[1] in ("dev", "proc")
    return is_open_file or not stat.S_ISREG(mode)


def named_mode() -> int:
    """The mode for a file that the user named: 0666 without the bits of the umask, as for any program."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
