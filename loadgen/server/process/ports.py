"""The port a server will listen on: a free one, or the one asked for if nobody has it."""

from __future__ import annotations

import errno
import os
import socket

import psutil

from loadgen.errors import ServerError
from loadgen.server.process.masking import masked_command


def free_port(host: str) -> int:
    """A port that nothing listens on at this moment; nobody holds it until the server takes it."""
    return _bindable(host, 0)


def require_free_port(host: str, port: int) -> int:
    """`port`, or a `ServerError` that names who listens there."""
    return _bindable(host, port)


def _bindable(host: str, port: int) -> int:
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
    known = sorted(pid for pid in pids if pid is not None)
    if not known:
        return " by a process that only its owner or root can see"
    return " by " + ", ".join(_described(pid) for pid in known)


def _described(pid: int) -> str:
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return f"pid {pid}"
    line = " ".join(masked_command(words))
    return f"pid {pid} ({line[:117]}...)" if len(line) > 120 else f"pid {pid} ({line})"
