"""Hosts take part, or one line says why not before anything is sent; nothing of them stays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import asyncssh
import distributed
import pytest
from msgspec.structs import replace

from loadgen.cluster import start
from loadgen.cluster.facts import host_facts
from loadgen.cluster.start import difference, require_reachable, started
from loadgen.errors import ClusterError
from loadgen.profile.schema import Cluster
from tests.cluster.ssh_server import SshServer, another_python, ssh_server
from tests.scripts import executable


@pytest.fixture
def http_port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


async def refusal(settings: Cluster, *urls: str) -> str:
    """Why the hosts cannot take part."""
    with pytest.raises(ClusterError) as caught:
        async with started(settings, urls):
            pytest.fail("they take part")
    return str(caught.value)


async def refused(server: SshServer, *urls: str, python: Path | None = None) -> str:
    """Why a host cannot: one line that begins with its name."""
    reported = await refusal(Cluster(hosts=[server.name], python=str(python) if python else None), *urls)
    assert reported.startswith(f"{server.name}: ")
    assert "\n" not in reported
    await nothing_is_left(server)
    return reported


async def nothing_is_left(*servers: SshServer) -> None:
    for process in (process for server in servers for process in server.processes):
        await asyncio.wait_for(process.wait(), 20)


async def test_a_host_takes_part_and_nothing_of_it_stays(server: SshServer, tmp_path: Path) -> None:
    server.environment["TMPDIR"] = str(tmp_path)
    before = _names(tmp_path)
    async with started(Cluster(hosts=[server.name])) as hosts:
        ((facts, address),) = hosts.workers
        assert hosts.owned
        assert facts == replace(host_facts(), name=server.name, address="127.0.0.1")
        assert address.startswith("tls://127.0.0.1:")
        assert await hosts.client.run(lambda: 2, workers=[address]) == {address: 2}
        (listening,) = (await hosts.client.run(_listening, workers=[address])).values()
        assert listening == [("127.0.0.1", int(address.rpartition(":")[2]))]
        assert _names(tmp_path) == before
    await nothing_is_left(server)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _listening() -> list[tuple[str, int]]:
    """Where this process listens. Runs on the host."""
    import psutil

    sockets = psutil.Process().net_connections("inet")
    return [(str(one.laddr.ip), int(one.laddr.port)) for one in sockets if one.status == psutil.CONN_LISTEN]


async def test_the_key_of_the_run_is_in_no_command_line_and_no_environment(server: SshServer) -> None:
    async with started(Cluster(hosts=[server.name])):
        assert server.commands
        assert not any("PRIVATE" in command or "BEGIN" in command for command in server.commands)
        for process in server.processes:
            if process.returncode is None:
                assert b"PRIVATE" not in _told_to(process.pid)


def _told_to(pid: int) -> bytes:
    """Its command line and environment, which others may read."""
    return Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()


async def test_a_stopped_process_is_ended_too(server: SshServer) -> None:
    async with started(Cluster(hosts=[server.name])):
        (running,) = [process for process in server.processes if process.returncode is None]
        os.kill(running.pid, signal.SIGSTOP)
        await asyncio.to_thread(os.waitpid, running.pid, os.WUNTRACED)
    assert await asyncio.wait_for(running.wait(), 20) == -signal.SIGKILL


_OPERATOR = """
import asyncio, sys
from loadgen.cluster.start import started
from loadgen.profile.schema import Cluster
async def main():
    async with started(Cluster(hosts=[sys.argv[1]])):
        print("started", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_a_killed_operator_leaves_nothing(server: SshServer) -> None:
    operator = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OPERATOR, server.name, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert operator.stdout is not None
    assert await operator.stdout.readline() == b"started\n"
    assert any(process.returncode is None for process in server.processes)
    operator.kill()
    await operator.wait()
    await nothing_is_left(server)


# Hosts that cannot take part.


async def test_an_unknown_host(home: Path) -> None:
    reported = await refusal(Cluster(hosts=["no-such-host.invalid"]))
    assert reported.startswith("no-such-host.invalid: cannot be reached by SSH: ")


async def test_a_closed_port(home: Path) -> None:
    assert "127.0.0.1:1: cannot be reached by SSH" in await refusal(Cluster(hosts=["127.0.0.1:1"]))


async def test_what_is_no_ssh_server(home: Path, http_port: int) -> None:
    assert f"127.0.0.1:{http_port}: SSH failed" in await refusal(Cluster(hosts=[f"127.0.0.1:{http_port}"]))


async def test_a_refused_key(server: SshServer, home: Path) -> None:
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(home / ".ssh" / "id_ed25519"))
    assert "SSH refused your keys" in await refused(server)


async def test_an_unknown_host_key(server: SshServer, home: Path) -> None:
    (home / ".ssh" / "known_hosts").write_text("")
    assert "its host key is unknown" in await refused(server)
    assert not server.commands


async def test_a_python_without_vramp(server: SshServer, tmp_path: Path) -> None:
    bare = executable(tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    reported = await refused(server, python=bare)
    assert f"{bare} has no vramp" in reported
    assert "pip install '.[cluster]' in a checkout of vramp " in reported
    assert "there is no such Python" in await refused(server, python=tmp_path / "none")


async def test_an_older_vramp_without_this_module(server: SshServer, tmp_path: Path) -> None:
    old_python = '#!/bin/sh\n[ "$1" = -c ] && echo 0.0.1 && exit\necho No module named loadgen.cluster >&2; exit 1\n'
    old = executable(tmp_path / "python", old_python)
    assert "has vramp 0.0.1, and this machine" in await refused(server, python=old)


async def test_another_build_of_the_same_version(server: SshServer, tmp_path: Path) -> None:
    other = another_python(tmp_path / "python", definitions="0123456789ab")
    assert "is another build" in await refused(server, python=other)


async def test_two_names_of_one_host_and_two_hosts(server: SshServer, home: Path, tmp_path: Path) -> None:
    async with ssh_server(home) as twin:
        reported = await refusal(Cluster(hosts=[server.name, twin.name]))
        assert (
            reported == f"{server.name}, {twin.name}: are names of one machine ({server.name}); name each machine once"
        )


async def test_two_hosts(server: SshServer, home: Path, tmp_path: Path) -> None:
    # Both are this machine: one of them tells another identity, by the Python that its `vramp` runs with.
    other = another_python(tmp_path / "python", identity="another")
    executable(tmp_path / "bin" / "vramp", f"#!{other}\n")
    async with ssh_server(home, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}") as twin:
        twin.without = sys.executable
        async with started(Cluster(hosts=[server.name, twin.name])) as hosts:
            assert [facts.name for facts, _ in hosts.workers] == [server.name, twin.name]
            assert len({address for _, address in hosts.workers}) == 2
        await nothing_is_left(server, twin)


async def test_the_errors_of_several_hosts_are_reported_together(server: SshServer) -> None:
    reported = await refusal(Cluster(hosts=[server.name, "127.0.0.1:1", "no-such-host.invalid"]))
    assert [line.split(": ")[0] for line in reported.splitlines()] == ["127.0.0.1:1", "no-such-host.invalid"]
    await nothing_is_left(server)


async def test_a_full_disk(server: SshServer, tmp_path: Path) -> None:
    # A limit of zero bytes a file: a disk that is really full takes root.
    full = executable(tmp_path / "python", f'#!/bin/sh\nulimit -f 0\nexec {sys.executable} "$@"\n')
    assert "cannot write to its temporary folder" in await refused(server, python=full)


async def test_a_python_that_dies(server: SshServer, tmp_path: Path) -> None:
    dies = 'if [ "$3" = loadgen.cluster.dask_worker ]; then echo out of luck >&2; exit 1; fi'
    broken = executable(tmp_path / "python", f'#!/bin/sh\n{dies}\nexec {sys.executable} "$@"\n')
    assert "its Dask worker ended at once: out of luck" in await refused(server, python=broken)


async def test_a_server_that_the_host_cannot_reach(server: SshServer) -> None:
    reported = await refused(server, "http://127.0.0.1:1/v1")
    assert "cannot connect to http://127.0.0.1:1/v1 (Connection refused)" in reported


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_host_that_is_lost_before_the_server_is_there(
    server: SshServer, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async with started(Cluster(hosts=[server.name])) as hosts:
        (running,) = [process for process in server.processes if process.returncode is None]
        os.kill(running.pid, number)
        monkeypatch.setattr(start, "_CALL_S", 0.1)  # Dask would try to connect for half a minute
        with pytest.raises(ClusterError, match=rf"^{server.name}: no longer answers \("):
            await require_reachable(hosts, ["http://127.0.0.1:1"])
    await nothing_is_left(server)


async def test_an_address_that_is_not_ours(server: SshServer) -> None:
    reported = await refusal(Cluster(hosts=[server.name], listen="203.0.113.7"))
    assert reported.startswith("cannot listen on 203.0.113.7, port any")
    await nothing_is_left(server)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vramp": "0.0.1"}, "has vramp 0.0.1"),
        ({"distributed": ""}, "has no distributed: pip install '.[cluster]' in a checkout of vramp "),
        ({"distributed": "2024.1.0"}, "pip install distributed=="),
        ({"python": "3.9.1"}, "has Python 3.9.1"),
        ({"definitions": "x"}, "is another build"),
    ],
)
def test_versions_that_differ(change: dict[str, str], words: str) -> None:
    ours = host_facts()
    reported = difference(replace(ours, name="b", **change), ours)
    assert reported is not None
    assert reported.startswith("b: ")
    assert words in reported


def test_versions_that_do_not_matter() -> None:
    ours = host_facts()
    major, minor, _ = ours.python.split(".")
    assert difference(ours, ours) is None
    assert difference(replace(ours, python=f"{major}.{minor}.99", kernel="5.0"), ours) is None


# A cluster that runs already.


_WORKER = """
import sys
from distributed.cli.dask_worker import main
sys.argv = ["dask worker", sys.argv[1], "--no-nanny", "--no-dashboard"]
main()
"""
_WITHOUT_ACTOR = "import sys\nsys.modules['loadgen.fleet.host'] = None\n" + _WORKER
_BROKEN = "import sys, loadgen.fleet.host\ndel loadgen.fleet.host.LocalPipe\n" + _WORKER
_WITHOUT_VRAMP = "import sys\nsys.modules['loadgen'] = None\n" + _WORKER


def local_scheduler() -> distributed.Scheduler:
    return distributed.Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0")


@contextlib.asynccontextmanager
async def dask_worker(scheduler: distributed.Scheduler, code: str) -> AsyncIterator[None]:
    """A Dask worker in a process of its own: in this one, pickles are restricted."""
    before = len(scheduler.workers)
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, scheduler.address, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with distributed.Client(scheduler.address, asynchronous=True) as client:
            await client.wait_for_workers(before + 1)
        yield
    finally:
        worker.kill()
        await worker.wait()


async def test_a_scheduler_gives_one_worker_of_each_machine_and_keeps_running() -> None:
    async with (
        local_scheduler() as scheduler,
        dask_worker(scheduler, _WORKER),
        dask_worker(scheduler, _WORKER),
    ):
        both = set(scheduler.workers)
        async with started(Cluster(scheduler=scheduler.address)) as hosts:
            ((facts, address),) = hosts.workers
            assert not hosts.owned
            assert facts == replace(host_facts(), address="127.0.0.1")
            assert address in both
        assert set(scheduler.workers) == both
        assert len(both) == 2


async def test_a_scheduler_without_workers() -> None:
    async with local_scheduler() as scheduler:
        assert "has no workers yet" in await refusal(Cluster(scheduler=scheduler.address))


async def test_nothing_listens_where_a_scheduler_should() -> None:
    reported = await refusal(Cluster(scheduler="tcp://127.0.0.1:1"))
    assert reported.startswith("tcp://127.0.0.1:1: cannot be reached: ")


@pytest.mark.parametrize("protocol", ["tcp", "tls"])
async def test_what_listens_there_is_no_scheduler(http_port: int, protocol: str) -> None:
    address = f"{protocol}://127.0.0.1:{http_port}"
    reported = await refusal(Cluster(scheduler=address))
    assert reported.startswith(f"{address}: what listens there is no Dask scheduler")
    assert "\n" not in reported


async def test_workers_that_cannot_load_vramp() -> None:
    async with local_scheduler() as scheduler, dask_worker(scheduler, _WITHOUT_VRAMP):
        reported = await refusal(Cluster(scheduler=scheduler.address))
    assert reported.startswith("127.0.0.1: its Dask worker cannot load vramp")
    assert "pip install" in reported


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (_WITHOUT_ACTOR, "ModuleNotFoundError: import of loadgen.fleet.host halted; None in sys.modules"),
        (_BROKEN, "ImportError: cannot import name 'LocalPipe' from 'loadgen.fleet.host'"),
    ],
)
async def test_a_worker_that_cannot_import_the_actor_says_why_and_lives_on(code: str, why: str) -> None:
    async with local_scheduler() as scheduler, dask_worker(scheduler, code):
        workers = set(scheduler.workers)
        reported = await refusal(Cluster(scheduler=scheduler.address))
        assert set(scheduler.workers) == workers
    assert reported.startswith(f"{host_facts().hostname}: its Dask worker cannot load vramp ({why}")
    assert "pip install" in reported and "\n" not in reported
