"""The harness itself: machines that reach each other, differ in their clocks, lose each other, and leave nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.machines import SERVER_PORT, Cluster, Host, cluster, dask, require_nothing_left
from tests.cluster.network import bandwidth, loss, network, partition, wait_until_gone

pytestmark = pytest.mark.cluster

CLOCK = "import time; print(time.monotonic_ns())"


def by_ssh(it: Cluster, host: Host, *words: str) -> str:
    config = it.operator.home / ".ssh" / "config"
    return it.operator.run("ssh", "-F", str(config), "-o", "BatchMode=yes", host.name, *words).stdout


def connects(host: Host, it: Cluster, timeout_s: float = 1.0) -> bool:
    def connect() -> bool:
        with contextlib.suppress(TimeoutError):
            socket.create_connection((it.server.address, SERVER_PORT), timeout=timeout_s).close()
            return True
        return False

    return host.machine.within(connect)


def round_trip_s(it: Cluster, length: int = 1) -> float:
    """How long a request takes on an open connection; to be called within a machine."""
    body = json.dumps({"prompt": "a" * length}).encode()
    head = f"POST /tokenize HTTP/1.1\r\nhost: server\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((it.server.address, SERVER_PORT)) as connection:
        before_s = time.perf_counter()
        connection.sendall(head.encode() + body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        return time.perf_counter() - before_s


def test_ssh_reaches_each_host_and_each_host_the_server() -> None:
    with cluster(clocks_s=(-3, 0, 1000)) as it:
        for host, ahead_s in zip(it.hosts, (-3, 0, 1000), strict=True):
            before_ns = time.monotonic_ns()
            clock_ns = int(by_ssh(it, host, sys.executable, "-c", f"'{CLOCK}'"))
            assert before_ns < clock_ns - ahead_s * 10**9 < time.monotonic_ns()
            assert by_ssh(it, host, "echo $HOME $TMPDIR").split() == [str(host.machine.home), str(host.machine.tmp)]
            assert connects(host, it)
        assert it.truth()["requests"]["received"] == 0
        require_nothing_left(it)


def test_a_clock_is_moved_while_its_process_runs() -> None:
    with cluster(clocks_s=(0,), movable_clocks=True) as it:
        (host,) = it.hosts
        reader = "import sys, time\nfor _ in sys.stdin: print(time.monotonic_ns(), flush=True)"
        words = ("ssh", "-F", str(it.operator.home / ".ssh" / "config"), host.name, sys.executable, "-c", f"'{reader}'")
        with it.operator.start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1) as remote:
            assert remote.stdin is not None and remote.stdout is not None
            for step_s in (0, 5, -10):
                host.step_clock(step_s)
                before_ns = time.monotonic_ns()
                remote.stdin.write("now\n")
                moved_ns = int(remote.stdout.readline()) - {0: 0, 5: 5, -10: -5}[step_s] * 10**9
                assert before_ns < moved_ns < time.monotonic_ns()
            assert host.pids()
        wait_until_gone(host.pids())
        require_nothing_left(it)


def test_network_faults_affect_one_host() -> None:
    with cluster() as it:
        first, second, third = it.hosts
        with partition(first.machine):
            assert not connects(first, it)
            assert connects(second, it)
        assert connects(first, it)
        with loss(second.machine, 1.0):
            assert not connects(second, it)
            assert connects(third, it)
        assert connects(second, it)
        with bandwidth(third.machine, 8.0):
            # A megabyte a second: a lower bound that no busy machine can break.
            assert third.machine.within(lambda: round_trip_s(it, length=300_000)) >= 0.2
        third.machine.within(lambda: round_trip_s(it, length=300_000))


def test_a_relay_delays_one_host_and_keeps_what_it_sent(tmp_path: Path) -> None:
    with cluster() as it:
        first, second, _ = it.hosts
        with it.relayed(first.machine, delay_ms=50.0, seen=tmp_path / "seen"):
            # The delay is the relay's own timer: a lower bound that no busy machine can break.
            assert first.machine.within(lambda: round_trip_s(it)) >= 0.1
            second.machine.within(lambda: round_trip_s(it))
        first.machine.within(lambda: round_trip_s(it))
        assert (tmp_path / "seen").read_text().count("POST /tokenize") == 1


def test_everything_is_gone_afterwards_also_when_a_test_fails() -> None:
    with pytest.raises(ZeroDivisionError), cluster() as it:
        it.hosts[0].machine.run("sh", "-c", "sleep 600 >/dev/null 2>&1 &")
        assert it.hosts[0].pids()
        namespace, folder = it.operator.namespace, it.operator.folder.parent
        1 / 0  # noqa: B018
    assert namespace not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not folder.exists()
    assert str(folder) not in Path("/proc/mounts").read_text()


def test_what_a_killed_run_left_is_removed_at_the_next_start() -> None:
    hanging = (
        "from tests.cluster.network import network\n"
        "with network(['one']) as (one,):\n"
        "    one.start('sleep', '600')\n"
        "    print(one.namespace, one.folder, flush=True)\n"
        "    input()\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", hanging], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        namespace, folder = process.stdout.readline().split()
        with network(["two"]):
            assert Path(folder).exists()
        process.kill()
    assert Path("/run/netns", namespace).exists()
    with network(["three"]):
        assert not Path(folder).exists()
        assert not Path("/run/netns", namespace).exists()


def test_a_dask_cluster_of_others_is_on_its_hosts() -> None:
    import distributed

    with cluster() as it, dask(it) as address:

        def workers() -> int:
            with distributed.Client(address) as client:
                return len(client.scheduler_info()["workers"])

        assert it.operator.within(workers) == 3
        require_nothing_left(it)
