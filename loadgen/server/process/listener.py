"""Who listens on a port: whoever does would get the API key of a server that is being started there.

The kernel lists listening sockets by inode, and the descriptors of each process name theirs. Another user's processes
are hidden from anybody but root: their sockets are found, and their pid is None.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection

import psutil

from loadgen.errors import ServerError
from loadgen.masking import shown_command
from loadgen.server.process.tree import command_line


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
    try:
        address, wanted = (
            _plain(ipaddress.ip_address(text.partition("%")[0])) for text in (listening, host.strip("[]"))
        )
    except ValueError:  # a name, for which any of its addresses may be taken
        return True
    if address.is_unspecified or wanted.is_unspecified:
        return True
    return address == wanted


def _plain(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An IPv4 address that is written as one of IPv6, as a socket of both families has it."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


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
