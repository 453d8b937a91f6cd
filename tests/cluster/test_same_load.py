"""Schedule and prompts do not depend on how many hosts send them: the server sees the same requests."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.cluster.figures import tell
from tests.cluster.machines import Cluster, cluster
from tests.cluster.operating import run_to_end, wait_until_nothing_is_left, write_profile

pytestmark = pytest.mark.cluster


def bodies(path: Path) -> Counter[str]:
    """The bodies of the requests for tokens that the relay wrote down."""
    connections: defaultdict[int, str] = defaultdict(str)
    for line in path.read_text().splitlines():
        number, text = json.loads(line)
        connections[number] += text
    found: Counter[str] = Counter()
    for text in connections.values():
        while text:
            head, _, rest = text.partition("\r\n\r\n")
            fields = dict(field.lower().split(": ", 1) for field in head.split("\r\n")[1:])
            length = int(fields.get("content-length", 0))
            if "/completions" in head.split("\r\n")[0]:
                found[rest[:length]] += 1
            text = rest[length:]
    return found


def seen_by_the_server(it: Cluster, folder: Path, hosts: int, load: dict[str, object]) -> Counter[str]:
    """What arrives from so many hosts, or from the operator's own machine for 0."""
    folder.mkdir()
    names = [host.name for host in it.hosts[:hosts]]
    write_profile(it, folder, load, {"hosts": names} if hosts else None)
    machines = [host.machine for host in it.hosts[:hosts]] or [it.operator]
    with it.relayed(*machines, seen=folder / "seen"):
        run, code = run_to_end(it, folder)
    assert code == 0, run.said()
    wait_until_nothing_is_left(it)
    return bodies(folder / "seen")


@pytest.mark.parametrize(
    ("load", "requests"),
    [({"concurrency": [6, 12], "requests": 60}, 120), ({"rate": 40.0, "requests": 80}, 80)],
    ids=["closed", "open"],
)
def test_the_server_sees_the_same_requests_from_any_number_of_hosts(
    tmp_path: Path, load: dict[str, object], requests: int
) -> None:
    load |= {"isl": "uniform:8:64", "osl": "uniform:2:12"}
    with cluster() as it:
        here, *there = [seen_by_the_server(it, tmp_path / str(hosts), hosts, load) for hosts in (0, 1, 2, 3)]
    assert there[0] == there[1] == there[2]
    assert there[0].total() == requests
    # The operator's own machine asks before the load whether the server takes such requests.
    assert there[0] <= here
    assert here.total() - requests <= 2
    tell(f"{load}: {requests} requests, the same from this machine and from 1, 2 and 3 hosts")
