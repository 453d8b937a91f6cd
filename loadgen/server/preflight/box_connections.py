"""Checks what the load's connections need: open files, local ports, addresses, and a route to the server."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from loadgen.format import counted
from loadgen.plan.stage import SLOW_TOKEN_S, most_workers, streams_of
from loadgen.schema.finding import Finding, Severity
from loadgen.server.preflight.facts import Setup, read_setting

_SPARE_FILES = 64  # files that a process has open besides its connections
_SPARE_FILES_OF_SERVER = 256
_TOKEN_S = (0.0005, SLOW_TOKEN_S)


def open_files(setup: Setup) -> Iterator[Finding]:
    """The limit of open files, against the connections of the plan: for the workers, then for the server."""
    certain, peak = _streams(setup)
    workers = most_workers(setup.profile.load.workers, servers=setup.server.instances)
    of_server = -(-certain // setup.server.instances)
    # Workers and servers raise their soft limit as far as allowed; containers have separate limits.
    hard = setup.box.open_files
    limits_server = setup.server.engine in ("vllm", "simulator")
    if hard < -(-certain // workers) + _SPARE_FILES:
        yield _too_few_files("blocks", setup, peak, f"{certain} streams cannot all be opened")
    elif limits_server and hard < of_server + _SPARE_FILES_OF_SERVER:
        yield _too_few_files("blocks", setup, peak, f"the server cannot take {of_server} of them")
    elif hard < peak // (setup.profile.load.workers or 1) + _SPARE_FILES:
        yield _too_few_files("warns", setup, peak, f"a worker may get many of {peak} streams")


def _streams(setup: Setup) -> tuple[int, int]:
    """The most streams that are open at once: on even the fastest server, and on a slow one."""
    certain, peak = (max((streams_of(stage, token_s) for stage in setup.plan), default=0) for token_s in _TOKEN_S)
    return certain, peak


def _too_few_files(severity: Severity, setup: Setup, peak: int, consequence: str) -> Finding:
    hard = setup.box.open_files
    wanted = max(65_536, 2 ** (peak + _SPARE_FILES_OF_SERVER).bit_length())
    command = f"sudo prlimit --pid $$ --nofile={wanted}:{wanted}"
    seen = f"a process may have {hard} files open"
    why = f"each stream is an open file, and {consequence}: what exceeds the limit fails with Too many open files"
    return Finding("open-files", severity, seen, why, f"{command}, in the shell that starts vramp")


def local_ports(setup: Setup) -> Iterator[Finding]:
    """The ports for connections to one server from each source address, against the connections of the plan."""
    first, last = map(int, (setup.box.proc / "sys/net/ipv4/ip_local_port_range").read_text().split())
    reserved = read_setting(setup.box.proc / "sys/net/ipv4/ip_local_reserved_ports") or ""
    each = last - first + 1 - _reserved_ports(reserved, first, last)
    sources = len(setup.profile.load.source_addresses) or 1
    certain, peak = (-(-streams // (setup.server.servers or 1)) for streams in _streams(setup))
    if peak <= each * sources:
        return
    severity: Severity = "blocks" if certain > each * sources else "warns"
    seen = f"{counted(each, 'local port')} for connections to one server" + (
        f" from each of {sources} source addresses" if sources > 1 else ""
    )
    why = f"each stream needs a port of its own, and one server gets up to {peak} streams: the rest cannot connect"
    wanted = -(-(certain if severity == "blocks" else peak) // each)
    examples = ", ".join(f'"127.0.0.{number}"' for number in range(1, min(wanted, 3) + 1))
    more = ", ..." if wanted > 3 else ""
    fix = (
        f"load.source_addresses with {wanted} addresses of this machine, such as [{examples}{more}] for a server on "
        "loopback; or sudo sysctl -w net.ipv4.ip_local_port_range='1024 65535'"
    )
    yield Finding("local-ports", severity, seen, why, fix)


def _reserved_ports(text: str, first: int, last: int) -> int:
    """How many ports between `first` and `last` are in a list such as `8080,9000-9100`."""
    count = 0
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        count += max(0, min(last, int(high or low)) - max(first, int(low)) + 1)
    return count


def source_addresses(setup: Setup) -> Iterator[Finding]:
    for address in setup.profile.load.source_addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            try:
                sock.bind((address, 0))
            except OSError as error:
                seen = f"load.source_addresses: {address}: {error.strerror}"
                why = "connections cannot be opened from an address that this machine does not have"
                fix = f"sudo ip address add {address}/32 dev DEVICE, if the network routes it here, or take it out"
                yield Finding("no-source-address", "blocks", seen, why, fix)


def server_of_this_box_alone(setup: Setup) -> Iterator[Finding]:
    """A server at a loopback address, which on each host of a cluster is that host itself."""
    cluster, server = setup.profile.cluster, setup.server
    others = [host for host in cluster.hosts if not _is_own(_name_of(host))]
    if not others and (cluster.scheduler is None or _is_own(urlsplit(cluster.scheduler).hostname or "")):
        return
    where = ", ".join(others) or f"the workers of {cluster.scheduler}"
    why = "the load comes from there, and 127.0.0.1 is each machine's own"
    for url in server.attached:
        if _is_own(urlsplit(url).hostname or ""):
            fix = "give a URL with an address of this machine that they can reach"
            yield Finding("server-of-this-box-alone", "blocks", f"{url} cannot be reached from {where}", why, fix)
    if not server.attached and _is_own(server.host):
        seen = f"the server will listen on {server.host}, which cannot be reached from {where}"
        fix = 'give server.host = "an address of this machine that they can reach"'
        yield Finding("server-of-this-box-alone", "blocks", seen, why, fix)


def _name_of(host: str) -> str:
    """`user@name:port` without user and port."""
    name = host.rpartition("@")[2]
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]


def _is_own(host: str) -> bool:
    """Whether a host name means the machine that uses it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
