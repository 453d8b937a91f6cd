"""Whether other machines that send the load could reach the server at all."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from urllib.parse import urlsplit

from loadgen.metrics.finding import Finding
from loadgen.server.preflight.facts import Setup


def server_of_this_box_alone(setup: Setup) -> Iterator[Finding]:
    """A loopback address is another machine on each host."""
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
    """Whether it means whichever machine uses it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
