"""Ports of servers: locks that say which vramp drives a server and which one runs it, free ports, and who listens.

The vramp that started a server runs it: it holds that lock until the server has ended or was left running. The vramp
that drives it, possibly another one, alone sends load. Each lock is an abstract unix socket named after the port.
Invariants: the kernel gives a name to one process, of any user, and frees it when that process ends, so a lock is never
stale and needs no file; a server on this machine is identified by its port, whatever host name was used. Abstract names
belong to a network namespace, as ports do: two containers with separate networks each have a port 8000 and locks for
it. Any user can take such a name from the others, just as any user can take the port.

Whoever listens on a port would get the API key of a server that is being started there. The kernel lists listening
sockets by inode, and the descriptors of each process name theirs. Another user's processes are hidden from anybody but
root: their sockets are found, and their pid is None.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import socket
import struct
from collections.abc import Collection
from datetime import datetime
from typing import Literal

import psutil

from loadgen.errors import ServerError
from loadgen.format import user_name
from loadgen.masking import shown_command
from loadgen.server.process.records import list_servers
from loadgen.server.process.tree import command_line

_BACKLOG = 4096  # identifying the holder takes a place in its queue; when that is full, the holder cannot be identified
_CREDENTIALS = struct.Struct("3i")  # pid, user, group


Right = Literal["drives", "runs"]  # `drives`: sends load to a server; `runs`: started it, and stops it


def drive_lock(host: str, port: int) -> socket.socket:
    """Become the one vramp that sends load to the server at `host` and `port`, our own or attached, until it is closed.

    Raises a `ServerError` that names the present driver. A process may take it more than once; the first handle counts.
    """
    held = _bound("drives", host, port)
    if held is None and (_holder("drives", host, port) or (0, 0))[0] != os.getpid():
        raise _taken("drives", host, port)
    return socket.socket(socket.AF_UNIX) if held is None else held


def claim_port(host: str, port: int) -> tuple[int, socket.socket]:
    """The port for our own server (0: any free one) and its lock; raises `ServerError` if it is not available."""
    if port == 0:
        for _ in range(100):
            port = free_port(host)
            held = None if holder_of("drives", host, port) else _bound("runs", host, port)
            if held is not None:  # otherwise another vramp chose it, and its server does not listen yet
                return port, held
        raise ServerError(f"found no free port on {host}; set server.port")
    if holder_of("drives", host, port):
        raise _taken("drives", host, port)
    held = _bound("runs", host, port)
    if held is None:
        raise _taken("runs", host, port)
    try:
        require_free_port(host, port)
    except ServerError as error:
        held.close()
        raise _explained(port, error) from None
    return port, held


def holder_of(right: Right, host: str, port: int) -> str:
    """Describe the process that has this right to a server now; empty if there is none."""
    holder = _holder(right, host, port)
    if holder is None:
        return ""
    pid, user = holder
    if not pid:
        return "a vramp that cannot be seen from here"
    since = ""
    try:
        started = datetime.fromtimestamp(psutil.Process(pid).create_time()).astimezone()
        since = f", since {started:%Y-%m-%d %H:%M:%S}"
    except psutil.Error:
        pass  # it has just ended, or is hidden: only the pid is known
    return f"a vramp ({shown_process(pid)} of user {user_name(user)}{since})"


def _taken(right: Right, host: str, port: int) -> ServerError:
    remedy = "wait until that one has ended, end it, or use another server"
    who = holder_of(right, host, port) or "a vramp"
    taken = "driven" if right == "drives" else "run"
    return ServerError(f"the server at {host} port {port} is already {taken} by {who}; {remedy}")


def _explained(port: int, error: ServerError) -> ServerError:
    record = next((record for record in list_servers() if record.port == port), None)
    if record is None:
        return error
    profile = f" (profile {record.profile})" if record.profile else ""
    return ServerError(
        f"port {port} is taken by a server{profile} that an earlier vramp started, pid {record.server.pid}; "
        f"end it with `vramp stop {port}`, attach to it with --url {record.url}, or set server.port = 0"
    )


def _bound(right: Right, host: str, port: int) -> socket.socket | None:
    """The socket that holds the lock, or None if the lock is taken."""
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(_lock_name(right, host, port))
        held.listen(_BACKLOG)
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise ServerError(f"the server at {host} port {port} cannot be locked: {error.strerror}") from error
    return held


def _holder(right: Right, host: str, port: int) -> tuple[int, int] | None:
    """Pid and user of the lock's holder, pid 0 if it is not visible; None if the lock is free."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(_lock_name(right, host, port))
        except ConnectionRefusedError:
            return None
        except BlockingIOError:
            return 0, 0
        return peer_of(asking)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Pid and user of the process at the other end of a unix socket, pid 0 if it is not visible."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(credentials)
    return pid, user


def _lock_name(right: Right, host: str, port: int) -> bytes:
    name = host.strip("[]").lower()
    # A host name may be longer than the name of a socket can be.
    where = "" if is_this_machine(name) else hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:32] + ":"
    return f"\0vramp-{right}:{where}{port}".encode()


def is_this_machine(name: str) -> bool:
    if name in ("", "localhost", socket.gethostname().lower()):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    try:
        interfaces = psutil.net_if_addrs()
    except OSError:  # not allowed in some sandboxes
        interfaces = {}
    own = {entry.address.partition("%")[0].lower() for entries in interfaces.values() for entry in entries}
    return address.is_loopback or address.is_unspecified or name in own


def free_port(host: str) -> int:
    """A port on which nothing listens at this moment; it is not reserved for the server."""
    return require_free_port(host, 0)


def require_free_port(host: str, port: int) -> int:
    """`port`, or for 0 any that is free; raises a `ServerError` that names the process listening there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:  # the latter for a name that no host can have
        reason = getattr(error, "strerror", None) or error
        raise ServerError(f"server.host = {host!r}: not an address of this machine: {reason}") from None
    with socket.socket(family, kind, protocol) as probe:
        # As servers do, so that a port whose old connections are in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise ServerError(_why_not(host, port, error)) from None
        return int(probe.getsockname()[1])


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        who = shown_listeners(listeners([port]))
        return f"port {port} on {host} is taken by {who}; stop it, or set server.port = 0 to take a free port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"server.host = {host!r}: not an address of this machine"
    return f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}"


def listeners(ports: Collection[int]) -> set[int]:
    """The processes that listen on one of these ports, on any address, as far as this user can see."""
    try:
        return {pid for _, pid in _listening(ports) if pid is not None}
    except ServerError:
        return set()


def holders(host: str, port: int) -> set[int | None]:
    """The processes that a connection to this address may reach; None stands for those of other users.

    Raises `ServerError` where the kernel does not say.
    """
    return {pid for address, pid in _listening([port]) if _is_reached(address, host)}


def _listening(ports: Collection[int]) -> set[tuple[str, int | None]]:
    """The address and the process of each socket that listens on one of these ports."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError) as error:  # not allowed in some sandboxes
        raise ServerError(f"the kernel does not say who listens on a port here: {error}") from error
    return {
        (connection.laddr.ip, connection.pid)
        for connection in connections
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port in ports
    }


def _is_reached(listening: str, host: str) -> bool:
    """Whether a socket on an address may answer connections to a host; if in doubt, it may."""
    addresses = []
    for text in (listening, host.strip("[]")):
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:  # a name, for which any of its addresses may be taken
            return True
        # A socket of both families has IPv4 addresses written as those of IPv6.
        addresses.append(getattr(address, "ipv4_mapped", None) or address)
    return any(address.is_unspecified for address in addresses) or addresses[0] == addresses[1]


def is_of_root_or_us(pid: int) -> bool:
    """Whether this process runs as root, as a container's daemon does, or as this user."""
    try:
        return psutil.Process(pid).uids().real in (0, os.geteuid())
    except psutil.Error:
        return False


def shown_listeners(pids: Collection[int | None]) -> str:
    """These processes in words, by pid and command."""
    known = ", ".join(shown_process(pid) for pid in sorted(pid for pid in pids if pid is not None))
    return known or "a process that only its owner or root can see"


def shown_process(pid: int) -> str:
    words = command_line(pid)
    return f"pid {pid} ({shown_command(words)})" if words else f"pid {pid}"
