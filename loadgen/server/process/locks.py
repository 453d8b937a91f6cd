"""Who drives which server: a lock for each, so that two vramps never fight over one, and the list of those that run.

Invariants: the kernel holds the lock (flock) and ends it with its process, so that none is ever stale; a server on
this machine is known by its port, under whatever name it was called; a lock file is removed only by who holds it, and
a record only by its guard or by who holds the lock of its port.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import psutil

from loadgen.errors import ServerError
from loadgen.server.process.ports import free_port, require_free_port
from loadgen.server.process.records import ServerRecord, read_record, record_path, servers_folder

_TRIES = 100


class _Holder(msgspec.Struct, frozen=True):
    """What the holder of a lock says about itself, for whom it shuts out."""

    pid: int
    since_unix_s: float
    profile: str

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_unix_s).astimezone()
        profile = f", profile {self.profile}" if self.profile else ""
        return f" (pid {self.pid}, since {since:%Y-%m-%d %H:%M:%S}{profile})"


@dataclass(slots=True)
class DriveLock:
    """The right to drive one server, until `release` or the end of the process."""

    path: Path
    descriptor: int | None  # none if this process holds the lock already, through another handle

    def release(self) -> None:
        """Let others drive it; may be called more than once."""
        if self.descriptor is not None:
            self.path.unlink(missing_ok=True)  # still locked: who opened it meanwhile sees that it is no longer there
            os.close(self.descriptor)
            self.descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def drive_lock(host: str, port: int, *, profile: str = "") -> DriveLock:
    """Become the one vramp that drives the server at `host` and `port`, ours or attached.

    Raises `ServerError` with who drives it now. One process may take it more than once; the first handle counts.
    """
    path = _lock_path(host, port)
    lock = _lock(path, profile)
    if lock is not None:
        return lock
    holder = _holder(path)
    if holder is not None and holder.pid == os.getpid():
        return DriveLock(path, None)
    raise _driven(host, port, holder)


def claim_port(host: str, port: int, *, profile: str = "") -> tuple[int, DriveLock]:
    """The port for a server of our own (0 takes a free one) and its lock; raises `ServerError` if it cannot be had."""
    if port == 0:
        return _claim_free_port(host, profile)
    path = _lock_path(host, port)
    lock = _lock(path, profile)
    if lock is None:
        raise _driven(host, port, _holder(path))
    try:
        require_free_port(host, port)
    except ServerError as error:
        lock.release()
        raise _explained(port, error) from None
    return port, lock


def list_servers() -> list[ServerRecord]:
    """The servers on this machine that vramp started and that still run; the records of others are removed."""
    found: list[ServerRecord] = []
    for path in sorted(servers_folder().glob("*.json")):
        record = read_record(path)
        if record is not None and record.live:
            found.append(record)
        else:
            _remove_stale(path)
    return found


def _claim_free_port(host: str, profile: str) -> tuple[int, DriveLock]:
    for _ in range(_TRIES):
        port = free_port(host)
        lock = _lock(_lock_path(host, port), profile)
        if lock is not None:  # else another vramp chose it, and its server does not listen yet
            return port, lock
    raise ServerError(f"found no port on {host} that is free; set server.port")


def _driven(host: str, port: int, holder: _Holder | None) -> ServerError:
    return ServerError(
        f"the server at {host} port {port} is already driven by a vramp{holder or ''}; "
        "wait until that one has ended, end it, or take another server"
    )


def _explained(port: int, error: ServerError) -> ServerError:
    record = read_record(record_path(port))
    if record is None or not record.live:
        return error
    profile = f" (profile {record.profile})" if record.profile else ""
    return ServerError(
        f"port {port} is taken by a server{profile} that an earlier vramp started, pid {record.server.pid}; "
        f"end it with `vramp stop {port}`, attach to it with --url {record.url}, or set server.port = 0"
    )


def _remove_stale(path: Path) -> None:
    lock = _lock(path.with_suffix(".lock"), "")
    if lock is None:  # a server is being started there, and its guard replaces the record
        return
    with lock:
        record = read_record(path)
        if record is None or not record.live:
            path.unlink(missing_ok=True)


def _lock(path: Path, profile: str) -> DriveLock | None:
    """The lock, or None if somebody has it."""
    try:
        descriptor = _locked_file(path)
        if descriptor is not None:
            holder = _Holder(os.getpid(), time.time(), profile)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, msgspec.json.encode(holder), 0)
    except OSError as error:
        raise ServerError(
            f"{path}: cannot be locked: {error.strerror}; set XDG_STATE_HOME to a local folder"
        ) from error
    return None if descriptor is None else DriveLock(path, descriptor)


def _locked_file(path: Path) -> int | None:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if not _locked(descriptor):
            os.close(descriptor)
            return None
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)  # its holder removed it while it was opened here


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _holder(path: Path) -> _Holder | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Holder)
    except (FileNotFoundError, msgspec.DecodeError):  # let go just now, or its holder has not said yet who it is
        return None


def _lock_path(host: str, port: int) -> Path:
    name = host.strip("[]").lower()
    where = "" if _is_this_machine(name) else re.sub(r"[^a-z0-9.-]", "_", name)[:100] + "_"
    return servers_folder() / f"{where}{port}.lock"


def _is_this_machine(name: str) -> bool:
    if name in ("", "localhost", socket.gethostname().lower()):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified:
        return True
    own = (entry.address for entries in psutil.net_if_addrs().values() for entry in entries)
    return any(text.partition("%")[0].lower() == name for text in own)
