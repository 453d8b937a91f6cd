"""Who drives which server: a lock for each, its port, and the records of the servers that vramp started.

A record is a small file that another vramp finds a server by, to list it or to stop it. The guard writes it, keeps its
tree up to date, and removes it when nothing of the tree is left, so that it outlives vramp. Invariants: the kernel
holds the lock (flock) and ends it with its process, so that none is ever stale; a server on this machine is known by
its port, under whatever name it was called; a lock file is removed only by who holds it, and a record only by its guard
or by who holds the lock of its port; a record is replaced as a whole, and its processes are known by pid and start
time, so that one which outlived them is recognised as stale and nobody else's process is meant.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import re
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

import msgspec
import psutil

from loadgen.errors import ServerError
from loadgen.masking import shown_command
from loadgen.places import state_folder
from loadgen.server.process.tree import ProcessId, lives


class ServerRecord(msgspec.Struct, frozen=True):
    guard: ProcessId
    server: ProcessId  # its main process
    tree: tuple[ProcessId, ...]  # all of its processes that were seen last
    port: int
    url: str
    profile: str
    model: str | None
    command: list[str]  # as started, secrets masked
    kill_command: list[str] | None  # what ends it if the processes are not all there is to it: a container
    log_path: str
    started_unix_s: float
    left: bool  # left running on purpose by the vramp that started it

    @property
    def live(self) -> bool:
        return any(lives(process) for process in (self.guard, self.server, *self.tree))


def servers_folder() -> Path:
    """Where records and locks of this machine's servers are; raises `ServerError` if it cannot be made."""
    # A home on the network is shared by machines that cannot see each other's processes.
    machine = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
    try:
        return state_folder(f"servers/{machine}")
    except OSError as error:
        raise ServerError(
            f"{error.filename}: cannot keep locks and records of servers there: {error.strerror}; "
            "set XDG_STATE_HOME to a folder that can be written"
        ) from error


def record_path(port: int) -> Path:
    return servers_folder() / f"{port}.json"


def read_record(path: Path) -> ServerRecord | None:
    """The record, or None if it is gone or is no record of this version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServerRecord)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


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


def _remove_stale(path: Path) -> None:
    lock = _lock(path.with_suffix(".lock"), "")
    if lock is None:  # a server is being started there, and its guard replaces the record
        return
    with lock:
        record = read_record(path)
        if record is None or not record.live:
            path.unlink(missing_ok=True)


class _Holder(msgspec.Struct, frozen=True):
    pid: int
    since_unix_s: float
    profile: str


@dataclass(slots=True)
class DriveLock:
    """The right to drive one server, until `release` or the end of the process."""

    path: Path
    descriptor: int | None  # none if this process holds the lock already, through another handle

    def release(self) -> None:
        if self.descriptor is not None:
            self.path.unlink(missing_ok=True)  # still locked: who opened it meanwhile sees that it is no longer there
            os.close(self.descriptor)
            self.descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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


def _claim_free_port(host: str, profile: str) -> tuple[int, DriveLock]:
    for _ in range(100):
        port = free_port(host)
        lock = _lock(_lock_path(host, port), profile)
        if lock is not None:  # else another vramp chose it, and its server does not listen yet
            return port, lock
    raise ServerError(f"found no port on {host} that is free; set server.port")


def _driven(host: str, port: int, holder: _Holder | None) -> ServerError:
    who = "a vramp"
    if holder is not None:
        since = datetime.fromtimestamp(holder.since_unix_s).astimezone()
        profile = f", profile {holder.profile}" if holder.profile else ""
        who = f"a vramp (pid {holder.pid}, since {since:%Y-%m-%d %H:%M:%S}{profile})"
    remedy = "wait until that one has ended, end it, or take another server"
    return ServerError(f"the server at {host} port {port} is already driven by {who}; {remedy}")


def _explained(port: int, error: ServerError) -> ServerError:
    record = read_record(record_path(port))
    if record is None or not record.live:
        return error
    profile = f" (profile {record.profile})" if record.profile else ""
    return ServerError(
        f"port {port} is taken by a server{profile} that an earlier vramp started, pid {record.server.pid}; "
        f"end it with `vramp stop {port}`, attach to it with --url {record.url}, or set server.port = 0"
    )


def _lock(path: Path, profile: str) -> DriveLock | None:
    """The lock, or None if somebody has it."""
    try:
        descriptor = _locked_file(path)
        if descriptor is None:
            return None
        holder = _Holder(os.getpid(), time.time(), profile)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, msgspec.json.encode(holder), 0)
    except OSError as error:
        raise ServerError(
            f"{path}: cannot be locked: {error.strerror}; set XDG_STATE_HOME to a local folder"
        ) from error
    return DriveLock(path, descriptor)


def _locked_file(path: Path) -> int | None:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        os.close(descriptor)  # its holder removed it while it was opened here


def _holder(path: Path) -> _Holder | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Holder)
    except (FileNotFoundError, msgspec.DecodeError):  # let go just now, or its holder has not said yet who it is
        return None


def _lock_path(host: str, port: int) -> Path:
    name = host.strip("[]").lower()
    where = "" if is_this_machine(name) else re.sub(r"[^a-z0-9.-]", "_", name)[:100] + "_"
    return servers_folder() / f"{where}{port}.lock"


def is_this_machine(name: str) -> bool:
    if name in ("", "localhost", socket.gethostname().lower()):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    own = {entry.address.partition("%")[0].lower() for entries in psutil.net_if_addrs().values() for entry in entries}
    return address.is_loopback or address.is_unspecified or name in own


def free_port(host: str) -> int:
    """A port that nothing listens on at this moment; nobody holds it until the server takes it."""
    return require_free_port(host, 0)


def require_free_port(host: str, port: int) -> int:
    """`port`, or for 0 any that is free; a `ServerError` names who listens there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ServerError(f"server.host = {host!r}: not an address of this machine: {error.strerror}") from None
    with socket.socket(family, kind, protocol) as probe:
        # As servers do: a port whose old connections are still in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise ServerError(_why_not(host, port, error)) from None
        return int(probe.getsockname()[1])


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken{_listener(port)}; stop it, or set server.port = 0 to take a free port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"server.host = {host!r}: not an address of this machine"
    return f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}"


def _listener(port: int) -> str:
    pids = {
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
    }
    known = ", ".join(_described(pid) for pid in sorted(pid for pid in pids if pid is not None))
    return f" by {known or 'a process that only its owner or root can see'}"


def _described(pid: int) -> str:
    try:
        return f"pid {pid} ({shown_command(psutil.Process(pid).cmdline())})"
    except psutil.Error:
        return f"pid {pid}"
