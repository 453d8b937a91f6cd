"""`vramp check --hosts`: what each host can bring, and what keeps it from taking part."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import distributed
import pytest
from msgspec.structs import replace

from loadgen.cluster import check
from loadgen.cluster.check import check_hosts, limit_findings
from loadgen.cluster.facts import host_facts
from loadgen.cluster.start import ask
from loadgen.profile.document import build_profile
from loadgen.profile.schema import Cluster, Profile
from tests.cluster.ssh_server import SshServer


def profile_of(url: str, *hosts: str) -> Profile:
    document = {"server": {"engine": "attach", "url": url}, "cluster": {"hosts": list(hosts)}}
    return build_profile(document, where="p.toml")


async def test_a_host_that_can_take_part(server: SshServer) -> None:
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    (found,) = await check_hosts(profile_of(f"http://127.0.0.1:{port}", server.name), [])
    listener.close()
    assert (found.id, found.severity) == ("host", "info")
    assert found.seen.startswith(f"{server.name} (127.0.0.1): ")
    for words in (
        "cores",
        "open files",
        "round trip",
        "MB/s through Dask",
        "clock ",
        f"connects to http://127.0.0.1:{port}",
    ):
        assert words in found.seen


async def test_a_server_that_it_cannot_reach(server: SshServer) -> None:
    blocked, host = await check_hosts(profile_of("http://127.0.0.1:1", server.name), [])
    assert (blocked.id, blocked.severity) == ("host-server", "blocks")
    assert "(Connection refused)" in blocked.seen
    assert host.severity == "info"


async def test_a_host_that_is_lost_meanwhile(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:

    async def ends(client: distributed.Client, address: str, kind: type, name: str, *words: Any) -> Any:
        if name == "connect":  # in the place of what connects to the server from there
            await client.run(os._exit, 1, workers=[address])
        return await ask(client, address, kind, name, *words)

    monkeypatch.setattr(check, "ask", ends)
    (found,) = await check_hosts(profile_of("http://127.0.0.1:1", server.name), [])
    assert (found.id, found.severity) == ("host", "blocks")
    assert found.seen.startswith(f"{server.name}: answered at first, and no longer does (")


async def test_hosts_that_cannot_take_part(server: SshServer) -> None:
    found = await check_hosts(profile_of("http://10.0.0.1", server.name, "127.0.0.1:1", "127.0.0.1:2"), [])
    assert [(one.id, one.severity, one.seen.split(": ")[0]) for one in found] == [
        ("host", "blocks", "127.0.0.1:1"),
        ("host", "blocks", "127.0.0.1:2"),
    ]


def test_limits_that_a_share_of_the_streams_exceeds() -> None:
    facts = replace(host_facts(), open_files=1024, ports=1000)
    assert limit_findings(facts, 900) == []
    assert [one.id for one in limit_findings(facts, 2000)] == ["host-open-files", "host-ports"]


@pytest.mark.parametrize(
    ("scheduler", "exposed"),
    [
        ("tcp://10.0.0.1:8786", True),
        ("tcp://[fd00::1]:8786", True),
        ("tcp://127.0.0.1:8786", False),
        ("tcp://[::1]:8786", False),
        ("tls://10.0.0.1:8786", False),
        (None, False),
    ],
)
def test_a_scheduler_without_encryption_is_warned_of_beyond_the_loopback(
    scheduler: str | None, *, exposed: bool
) -> None:
    assert (Cluster(scheduler=scheduler).exposed is not None) is exposed
