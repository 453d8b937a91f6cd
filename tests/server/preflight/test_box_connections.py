"""Connections of the load: what limits them here, and what other machines cannot reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.profile.document import build_profile
from loadgen.schema.finding import Severity
from loadgen.server.preflight.box_connections import server_of_this_box_alone
from loadgen.server.preflight.facts import Box, Setup
from tests.server.gpu_trees import write
from tests.server.preflight.boxes import check, healthy_box, only, profile_of

CLOSED = "load.concurrency=1000"
ATTACHED = ("server.engine=attach", "server.url=http://127.0.0.1:1")
LOOPBACK = {"engine": "attach", "url": "http://localhost:8000"}


@pytest.mark.parametrize(
    ("overrides", "hard", "severity"),
    [
        ([CLOSED, "load.workers=1"], 1256, None),
        ([CLOSED, "load.workers=1"], 1255, "blocks"),
        ([CLOSED, "load.workers=1", "server.instances=4"], 1063, "warns"),
        ([CLOSED, "load.workers=4", "server.instances=4"], 506, None),
        ([CLOSED, "load.workers=4", "server.instances=4"], 505, "blocks"),
        ([CLOSED, *ATTACHED, "load.workers=1"], 1064, None),
        ([CLOSED, *ATTACHED, "load.workers=1"], 1063, "blocks"),
        ([CLOSED, *ATTACHED, "load.workers=4"], 314, None),
        ([CLOSED, *ATTACHED, "load.workers=4"], 313, "blocks"),
        (["load.rate=100", "load.osl=100", "load.workers=1"], 564, None),
        (["load.rate=100", "load.osl=100", "load.workers=1"], 563, "warns"),
        (["load.rate=100", "load.osl=100", "load.workers=1", "load.requests=20"], 276, None),
        # Even with half a millisecond a token, 2,000 streams a second of 1,000 tokens are 1,000 at once.
        (["load.rate=2000", "load.osl=1000", "load.workers=1", *ATTACHED], 1063, "blocks"),
        (["load.rate=2000", "load.osl=1000", "load.workers=1", *ATTACHED], 1064, "warns"),
    ],
)
def test_open_files_against_the_plan(
    tmp_path: Path, overrides: list[str], hard: int, severity: Severity | None
) -> None:
    findings = check(healthy_box(tmp_path, open_files=hard), profile_of(tmp_path, *overrides))
    assert [each.severity for each in findings if each.id == "open-files"] == ([severity] if severity else [])


@pytest.mark.parametrize(("streams", "hard", "wanted"), [(100, 50, 65536), (27_000, 1024, 65536)])
def test_the_fix_is_enough(tmp_path: Path, streams: int, hard: int, wanted: int) -> None:
    box = healthy_box(tmp_path, open_files=hard)
    finding = only(box, profile_of(tmp_path, f"load.concurrency={streams}", "load.workers=1"))
    assert finding.fix == f"sudo prlimit --pid $$ --nofile={wanted}:{wanted}, in the shell that starts vramp"
    assert finding.seen == f"a process may have {hard} files open"


@pytest.mark.parametrize(
    ("overrides", "severity"),
    [
        (["load.concurrency=28231"], None),
        (["load.concurrency=28232"], "blocks"),
        (["load.concurrency=28232", 'load.source_addresses=["127.0.0.1", "127.0.0.2"]'], None),
        (["load.concurrency=56463", 'load.source_addresses=["127.0.0.1", "127.0.0.2"]'], "blocks"),
        (["load.concurrency=56462", "server.instances=2"], None),
        (["load.rate=1000", "load.osl=1000"], "warns"),
    ],
)
def test_local_ports_against_the_plan(tmp_path: Path, overrides: list[str], severity: Severity | None) -> None:
    box = healthy_box(tmp_path, open_files=2**20)
    write(box.proc / "sys/net/ipv4/ip_local_reserved_ports", "8000,40000,60990-61010\n")
    write(box.proc / "sys/net/ipv4/ip_local_port_range", "32758\t60999\n")
    findings = check(box, profile_of(tmp_path, *overrides, "load.workers=1"))
    assert [(finding.id, finding.severity) for finding in findings] == ([("local-ports", severity)] if severity else [])


def test_too_few_local_ports_are_made_up_by_source_addresses(tmp_path: Path) -> None:
    box = healthy_box(tmp_path, open_files=2**20)
    finding = only(box, profile_of(tmp_path, "load.concurrency=100000", "load.workers=1"))
    assert finding.seen == "28,232 local ports for connections to one server"
    assert finding.fix.startswith(
        'load.source_addresses with 4 addresses of this machine, such as ["127.0.0.1", "127.0.0.2", "127.0.0.3", ...]'
    )


def test_a_source_address_that_is_not_of_this_machine(tmp_path: Path) -> None:
    addresses = 'load.source_addresses=["127.0.0.2", "192.0.2.1"]'
    finding = only(healthy_box(tmp_path), profile_of(tmp_path, addresses))
    assert (finding.id, finding.severity) == ("no-source-address", "blocks")
    assert finding.seen == "load.source_addresses: 192.0.2.1: Cannot assign requested address"


def found(server: dict[str, Any], cluster: dict[str, Any]) -> list[str]:
    profile = build_profile({"server": server, "cluster": cluster}, where="p.toml")
    return [finding.seen for finding in server_of_this_box_alone(Setup(profile, [], Box(), None))]


@pytest.mark.parametrize(
    ("server", "cluster", "seen"),
    [
        (LOOPBACK, {"hosts": ["a", "127.0.0.1"]}, "http://localhost:8000 cannot be reached from a"),
        (LOOPBACK, {"scheduler": "tcp://b:8786"}, "cannot be reached from the workers of tcp://b:8786"),
        ({"engine": "simulator"}, {"hosts": ["me@a:22"]}, "will listen on 127.0.0.1"),
        ({"engine": "simulator", "host": "0.0.0.0"}, {"hosts": ["a"]}, "will listen on 0.0.0.0"),
    ],
)
def test_what_hosts_cannot_reach(server: dict[str, Any], cluster: dict[str, Any], seen: str) -> None:
    (reported,) = found(server, cluster)
    assert seen in reported


@pytest.mark.parametrize(
    ("server", "cluster"),
    [
        (LOOPBACK, {}),
        (LOOPBACK, {"hosts": ["me@localhost:22", "[::1]:2222", "127.0.0.1:22"]}),
        (LOOPBACK, {"scheduler": "tcp://127.0.0.1:8786"}),
        ({"engine": "simulator", "host": "10.0.0.1"}, {"hosts": ["a"]}),
    ],
)
def test_what_hosts_can_reach(server: dict[str, Any], cluster: dict[str, Any]) -> None:
    assert found(server, cluster) == []
