"""A managed server over real processes: its states, its deaths, and that nothing is left."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from loadgen.errors import ServerError
from loadgen.profile.schema import Docker, Server
from loadgen.server.process.guard_client import ServerExit, stop_server
from loadgen.server.process.ports import claim_port, drive_lock, require_free_port
from loadgen.server.process.records import list_servers
from loadgen.server.supervisor import ManagedServer
from tests.scripts import executable
from tests.server.fakes import PATIENCE_S, FakeDocker, FakeServer, eventually, fake_docker, is_gone, wait_until

ROOT = Path(__file__).parents[2]
PARENT = """
import asyncio, sys
from pathlib import Path
from loadgen.profile.schema import Server
from loadgen.server.supervisor import ManagedServer

async def main():
    server = ManagedServer(Server.model_validate_json(sys.argv[1]), log_path=Path(sys.argv[2]))
    await server.start()
    await server.wait_ready()
    print(*(process.pid for process in server.processes), flush=True)
    if sys.argv[3] == "raises":
        raise RuntimeError("without stop")
    await asyncio.Event().wait()

asyncio.run(main())
"""


def managed(fake: FakeServer, habits: str = "", *, stop_timeout_s: float = 0.3) -> ManagedServer:
    return ManagedServer(fake.profile(habits, stop_timeout_s=stop_timeout_s), log_path=fake.log)


def contained(fake: FakeServer, docker: FakeDocker, *, stop_timeout_s: float = PATIENCE_S) -> ManagedServer:
    settings = Docker(image="vllm", executable=str(docker.executable))
    profile = Server(engine="docker", model="m", docker=settings, stop_timeout_s=stop_timeout_s)
    return ManagedServer(profile, log_path=fake.log)


def guard_of(process: psutil.Process) -> psutil.Process:
    guard = process.parent()
    assert guard is not None
    return guard


async def test_start_ready_stop(fake: FakeServer) -> None:
    server = managed(fake, stop_timeout_s=20)
    async with server:
        states = [server.state]
        await server.wait_ready(PATIENCE_S)
        states.append(server.state)
        assert server.command[1:] == ["serve", "m", "--host", "127.0.0.1", "--port", str(server.port)]
        assert [milestone.state for milestone in server.milestones] == ["done"] * 7
        tree = fake.processes(1)
        assert [process.pid for process in tree] == [server.pid]
    assert [*states, server.state] == ["starting", "ready", "stopped"]
    assert server.exit == ServerExit(signal=signal.SIGTERM)
    assert not server.died.is_set()
    assert server.log.lines[-1].endswith("Application startup complete.")
    report = await server.stop()
    assert (report.killed, report.left) == ((), ())
    fake.assert_gone(tree)


async def test_stop_kills_what_does_not_end(fake: FakeServer) -> None:
    server = managed(fake, "deaf children escape")
    await server.start()
    tree = fake.processes(3)
    report, same = await asyncio.gather(server.stop(), server.stop())
    assert report is same
    assert {process.pid for process in report.killed} == {process.pid for process in tree}
    assert server.waiting_for == ()
    fake.assert_gone(tree)


async def test_dying_during_the_start_is_explained(fake: FakeServer) -> None:
    fake.log.write_text("ValueError: of an earlier run\n")
    server = managed(fake, "crash")
    await server.start()
    with pytest.raises(ServerError) as caught:
        await server.wait_ready(PATIENCE_S)
    first, proof, remedy, log = str(caught.value).splitlines()
    assert first.startswith("the server ended with exit code 3 before it was ready: ")
    assert proof == "  ValueError: max_model_len (99999999) is too large"
    assert remedy.startswith("  -> ")
    assert log == f"  its log is {fake.log}"
    assert (server.state, server.exit, server.died.is_set()) == ("died", ServerExit(code=3), True)
    assert (await server.stop()).left == ()
    assert server.state == "died"


async def test_never_ready_within_the_deadline(fake: FakeServer) -> None:
    async with managed(fake, "mute") as server:
        tree = fake.processes(1)
        with pytest.raises(ServerError, match=r"did not become ready within 0\.3 s"):
            await server.wait_ready(0.3)
    fake.assert_gone(tree)


async def test_the_key_goes_to_nobody_who_took_the_port(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_TEST", "sk-for-our-server-alone")
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        writer.close()

    profile = fake.profile("mute").model_copy(update={"api_key_env": "KEY_OF_TEST"})
    async with ManagedServer(profile, log_path=fake.log) as server:
        fake.processes(1)
        async with await asyncio.start_server(answer, "127.0.0.1", server.port):
            with pytest.raises(ServerError, match=rf"its port is held by pid {os.getpid()} .*only to the server"):
                await server.wait_ready(1.5)
        assert server.state == "starting"
    assert heads
    assert all(head.startswith(b"GET /health ") and b"sk-for" not in head for head in heads)


async def test_the_key_goes_to_the_server_that_was_started(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_TEST", "sk-for-our-server-alone")
    profile = fake.profile("locked").model_copy(update={"api_key_env": "KEY_OF_TEST"})
    async with ManagedServer(profile, log_path=fake.log) as server:
        with pytest.raises(ServerError, match="KEY_OF_TEST"):  # it was sent, and is refused
            await server.wait_ready(PATIENCE_S)


async def test_a_killed_server_is_noticed_and_its_orphans_end(fake: FakeServer) -> None:
    async with managed(fake, "children escape") as server:
        await server.wait_ready(PATIENCE_S)
        tree = fake.processes(3)
        tree[0].kill()
        await asyncio.wait_for(server.died.wait(), PATIENCE_S)
        assert (server.state, server.exit) == ("died", ServerExit(signal=signal.SIGKILL))
        assert "SIGKILL" in str(server.exit)
        report = await server.stop()
    assert {process.pid for process in report.killed} == {process.pid for process in tree[1:]}
    fake.assert_gone(tree)


async def test_without_its_guard_the_tree_is_killed_from_here(fake: FakeServer) -> None:
    async with managed(fake, "deaf children escape") as server:
        await server.wait_ready(PATIENCE_S)
        tree = fake.processes(3)
        # The escaped process has a session of its own: it is found only because the guard reported it.
        await eventually(lambda: len(server.processes) == 3)
        guard = guard_of(tree[0])
        guard.kill()
        await asyncio.wait_for(server.died.wait(), PATIENCE_S)
        assert server.exit == ServerExit()
        report = await server.stop()
    assert report.left == ()
    fake.assert_gone([*tree, guard])


async def test_a_guard_that_hangs_is_replaced(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.server.supervisor._GUARD_MARGIN_S", 0.1)
    monkeypatch.setattr("loadgen.server.process.guard.KILL_WAIT_S", 0.1)
    server = managed(fake, "deaf", stop_timeout_s=0.1)
    await server.start()
    tree = fake.processes(1)
    guard = guard_of(tree[0])
    guard.suspend()
    await server.stop()
    fake.assert_gone([*tree, guard])


async def test_cancelling_stop_does_not_undo_it(fake: FakeServer) -> None:
    server = managed(fake, "deaf")
    await server.start()
    tree = fake.processes(1)
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert (await server.stop()).left == ()
    fake.assert_gone(tree)


async def test_cancelling_start_ends_what_was_started(fake: FakeServer) -> None:
    server = managed(fake, "deaf")
    before = set(psutil.Process().children())
    starting = asyncio.create_task(server.start())
    await eventually(lambda: bool(set(psutil.Process().children()) - before))
    guards = set(psutil.Process().children()) - before
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert server.state == "stopped"
    fake.assert_gone(guards)


async def test_what_was_stopped_before_does_not_start(fake: FakeServer) -> None:
    server = managed(fake)
    assert (await server.stop()).killed == ()
    with pytest.raises(ServerError, match="stopped before"):
        await server.start()


async def test_a_key_that_the_server_refuses_ends_the_wait(fake: FakeServer) -> None:
    async with managed(fake, "locked") as server:
        with pytest.raises(ServerError, match="wants an API key"):
            await server.wait_ready(PATIENCE_S)


async def test_a_file_that_is_no_program_cannot_be_started(fake: FakeServer) -> None:
    command = executable(fake.folder / "vllm", "not a program")
    server = ManagedServer(Server(engine="vllm", model="m", command=str(command)), log_path=fake.log)
    with pytest.raises(ServerError, match=r"cannot start .*vllm: .*Exec format error"):
        await server.start()


@pytest.mark.parametrize("end", ["killed", "raises"])
def test_nothing_outlives_its_parent(fake: FakeServer, end: str) -> None:
    profile = json.dumps(fake.profile("deaf children escape").model_dump())
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, profile, str(fake.log), end], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    with parent:
        tree = fake.processes(3)
        if end == "killed":
            parent.kill()
    fake.assert_gone(tree)


# Left running.


async def test_what_was_left_runs_on_and_is_no_longer_driven(fake: FakeServer) -> None:
    async with ManagedServer(fake.profile(stop_timeout_s=PATIENCE_S), log_path=fake.log, profile="p") as server:
        await server.wait_ready(PATIENCE_S)
        await server.leave()
        tree = fake.processes(1)
        with drive_lock("127.0.0.1", server.port) as lock:
            assert lock.getsockname()
    assert tree[0].is_running()
    (record,) = [record for record in list_servers() if record.port == server.port]
    assert (record.left, record.server.pid, record.command) == (True, server.pid, server.command)
    assert (await server.stop()).gpu_memory == "the server was left running"
    assert (await stop_server(record, timeout_s=PATIENCE_S)).clean
    fake.assert_gone(tree)


async def test_what_has_ended_cannot_be_left(fake: FakeServer) -> None:
    async with managed(fake) as server:
        fake.processes(1)[0].kill()
        await asyncio.wait_for(server.died.wait(), PATIENCE_S)
        with pytest.raises(ServerError, match="nothing to leave running"):
            await server.leave()


async def test_a_guard_that_does_not_answer_cannot_be_released(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.server.supervisor._LEAVE_WAIT_S", 0.1)
    async with managed(fake) as server:
        tree = fake.processes(1)
        guard = guard_of(tree[0])
        guard.suspend()
        with pytest.raises(ServerError, match="does not answer"):
            await server.leave()
        guard.resume()
    fake.assert_gone([*tree, guard])


# One driver, one record.


async def test_while_it_runs_it_is_recorded_and_locked(fake: FakeServer) -> None:
    async with managed(fake) as server:
        assert [record.port for record in list_servers()] == [server.port]
        with pytest.raises(ServerError, match=f"port {server.port} is already run by a vramp \\(pid {os.getpid()}"):
            claim_port("127.0.0.1", server.port)
    assert list_servers() == []
    _, lock = claim_port("127.0.0.1", server.port)
    lock.close()


# The memory of the GPUs.


async def test_a_stop_waits_for_the_memory_of_the_gpus(fake: FakeServer) -> None:
    levels = iter(["GPU 0: 3 GiB", ""])

    async def held() -> str:
        return next(levels)

    server = ManagedServer(fake.profile(), log_path=fake.log, gpu_memory=held)
    await server.start()
    report = await server.stop()
    assert report.gpu_memory == "back at its level before the start"
    assert report.sentence.endswith("; no process left; GPU memory: back at its level before the start")


# In a container.


@pytest.mark.parametrize("lost", ["nobody", "guard"])
async def test_a_container_ends_with_its_server(fake: FakeServer, lost: str) -> None:
    with fake_docker(fake.folder, "deaf" if lost == "guard" else "") as docker:
        async with contained(fake, docker) as server:
            assert server.pid is not None
            client = psutil.Process(server.pid)
            container = docker.container
            if lost == "guard":
                guard = guard_of(client)
                guard.kill()
            report = await server.stop()
        assert report.clean
        fake.assert_gone([client, container])
        assert docker.verbs() == (["run", "rm"] if lost == "guard" else ["run", "stop", "rm"])


async def test_a_container_that_the_guard_could_not_remove_is_removed_from_here(fake: FakeServer) -> None:
    with fake_docker(fake.folder, "rm-fails") as docker:
        async with contained(fake, docker) as server:
            container = docker.container
            report = await server.stop()
        assert report.clean, "rm failed, but the daemon says that there is nothing to remove"
        fake.assert_gone([container])
        assert list_servers() == []


async def test_what_stays_of_a_container_is_reported_and_stays_recorded(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.server.process.container._GOING_WAIT_S", 0.0)
    with fake_docker(fake.folder, "rm-fails stop-fails deaf") as docker:
        async with contained(fake, docker, stop_timeout_s=0.1) as server:
            assert docker.container.is_running()
            report = await server.stop()
        assert "could not be removed" in report.sentence
        (record,) = list_servers()
        docker.behave("")
        assert (await stop_server(record, timeout_s=PATIENCE_S)).clean
        fake.assert_gone([docker.container])
    assert list_servers() == []


# Again and again.


def simulator(**args: int) -> Server:
    return Server(engine="simulator", args={"preset": "fast", "startup-s": 0, **args})


async def test_again_and_again_and_nothing_left(tmp_path: Path) -> None:
    body = {"model": "simulator", "prompt": [1, 2, 3], "max_tokens": 30000, "ignore_eos": True, "stream": True}
    for cycle in range(4):
        async with httpx.AsyncClient(trust_env=False) as client, contextlib.AsyncExitStack() as streams:
            server = ManagedServer(simulator(), log_path=tmp_path / f"{cycle}.log")
            others = psutil.Process().children()
            await server.start()
            guards = [child for child in psutil.Process().children() if child not in others]
            await server.wait_ready(PATIENCE_S)
            tree = [psutil.Process(process.pid) for process in server.processes]
            if cycle % 3 == 0:
                request = client.stream("POST", f"{server.base_url}/v1/completions", json=body)
                await anext((await streams.enter_async_context(request)).aiter_raw())
            report = await asyncio.wait_for(server.stop(), PATIENCE_S)
            assert report.clean
            assert all(is_gone(process) for process in [*tree, *guards])
            assert require_free_port("127.0.0.1", server.port) == server.port
    assert list_servers() == []


@pytest.mark.parametrize("victim", ["main", "child", "guard"])
async def test_whoever_is_killed_nothing_is_left(tmp_path: Path, victim: str) -> None:
    async with ManagedServer(simulator(**{"spawn-children": 2}), log_path=tmp_path / "log") as server:
        await server.wait_ready(PATIENCE_S)
        await eventually(lambda: len(server.processes) == 3)
        tree = [psutil.Process(process.pid) for process in server.processes]
        guard = guard_of(tree[0])
        {"main": tree[0], "child": tree[2], "guard": guard}[victim].kill()
        if victim != "child":
            await asyncio.wait_for(server.died.wait(), PATIENCE_S)
        report = await server.stop()
    assert report.clean
    wait_until(lambda: all(is_gone(process) for process in [*tree, guard]))
    assert list_servers() == []


def test_a_vramp_that_is_killed_leaves_nothing_of_its_simulator(tmp_path: Path) -> None:
    profile = simulator(**{"spawn-children": 2}).model_dump_json()
    command = [sys.executable, "-c", PARENT, profile, str(tmp_path / "log"), "killed"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        tree = psutil.Process(parent.pid).children(recursive=True)
        assert len(tree) >= 4
        parent.kill()
    wait_until(lambda: all(is_gone(process) for process in tree))
    assert list_servers() == []
