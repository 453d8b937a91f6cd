"""A server that only this box reaches cannot take load from others."""

from typing import Any

import pytest

from loadgen.profile.document import build_profile
from loadgen.server.preflight.box_cluster import server_of_this_box_alone
from loadgen.server.preflight.facts import Box, Setup

LOOPBACK = {"engine": "attach", "url": "http://localhost:8000"}


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
    (told,) = found(server, cluster)
    assert seen in told


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
