"""The server side of a run: several real processes as one, whichever of them misbehaves."""

import asyncio
import os
import socket
from pathlib import Path

import psutil
import pytest

from loadgen.errors import LoadError, ServerError
from loadgen.profile.schema import Profile, Server
from loadgen.run.servers import Servers
from loadgen.schema.engine import EngineView
from loadgen.schema.shared import Milestone
from loadgen.server.process.guard_client import stop_server
from loadgen.server.process.ports import holder_of
from loadgen.server.process.records import list_servers
from loadgen.server.supervisor import ManagedServer
from tests.engines import NOBODY, PORT
from tests.server.fakes import PATIENCE_S, FakeServer, eventually


@pytest.fixture
def fake(tmp_path: Path) -> FakeServer:
    return FakeServer(tmp_path)


@pytest.fixture(autouse=True)
def _no_devices_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def of(server: Server) -> Profile:
    return Profile(server=server)


def states(milestones: tuple[Milestone, ...]) -> list[tuple[str, str]]:
    return [(milestone.state, milestone.detail) for milestone in milestones]


def logs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.log"))


def two(fake: FakeServer, habits: str = "", *, of_second: str = "") -> Server:
    """Two instances; the second knows itself by its device and has habits of its own."""
    server = fake.profile(habits)
    begins_with(server, f'[ "$CUDA_VISIBLE_DEVICES" = 1 ] && export FAKE_HABITS="{of_second or habits}"')
    return server.model_copy(update={"instances": 2, "platform": "cuda"})


def begins_with(server: Server, line: str) -> None:
    """Put a line at the beginning of the server's script."""
    script = Path(server.command).read_text().splitlines()
    script.insert(1, line)
    Path(server.command).write_text("\n".join(script) + "\n")


async def test_several_start_and_stop_as_one(fake: FakeServer, tmp_path: Path) -> None:
    servers = Servers(of(two(fake)))
    assert (servers.state, servers.count, servers.url) == ("starting", 2, "")
    await servers.start(tmp_path)
    await servers.wait_ready()
    servers.check()
    pids = [server.pid for server in servers.managed]
    assert (servers.state, servers.pid, len(set(servers.base_urls))) == ("ready", pids[0], 2)
    assert [psutil.Process(pid).environ()["CUDA_VISIBLE_DEVICES"] for pid in pids] == ["0", "1"]
    assert [(each.url, each.pid) for each in servers.described()] == list(zip(servers.base_urls, pids, strict=True))
    assert [(each.env or {})["CUDA_VISIBLE_DEVICES"] for each in servers.described()] == ["0", "1"]
    views = servers.view([None, EngineView(running=3.0)], ()).instances
    assert [(view.state, view.running) for view in views] == [("ready", None), ("ready", 3.0)]
    assert logs(tmp_path) == ["server-0.log", "server-1.log"]
    processes = fake.processes(2)
    reports = await servers.stop()
    assert [report.left for report in reports] == [(), ()]
    assert servers.state == "stopped"
    fake.assert_gone(processes)


async def test_one_alone_is_named_as_ever(fake: FakeServer, tmp_path: Path) -> None:
    servers = Servers(of(fake.profile()))
    await servers.start(tmp_path)
    await servers.wait_ready()
    assert logs(tmp_path) == ["server.log"]
    assert servers.view([None], ()).instances == ()
    psutil.Process(servers.pid).kill()
    await eventually(lambda: servers.died)
    with pytest.raises(LoadError, match=r"(?s)^the server was killed by SIGKILL .*server\.log"):
        servers.check()
    await servers.stop()
    assert servers.state == "died"


async def test_the_death_of_one_is_the_end_of_all(fake: FakeServer, tmp_path: Path) -> None:
    servers = Servers(of(two(fake)))
    await servers.start(tmp_path)
    await servers.wait_ready()
    processes = fake.processes(2)
    psutil.Process(servers.managed[1].pid).kill()
    await eventually(lambda: servers.died)
    with pytest.raises(LoadError, match=r"(?s)^instance 1 of the server was killed by SIGKILL .*server-1\.log"):
        servers.check()
    await servers.stop()
    assert servers.state == "died"
    fake.assert_gone(processes)


async def test_one_that_dies_while_the_other_starts_is_not_waited_out(fake: FakeServer, tmp_path: Path) -> None:
    servers = Servers(of(two(fake, of_second="mute")))
    await servers.start(tmp_path)
    waiting = asyncio.create_task(servers.wait_ready())
    await eventually(lambda: servers.managed[0].state == "ready")
    assert servers.state == "starting"
    # The screen shows the slowest.
    assert states(servers.milestones) == states(servers.managed[1].milestones)
    processes = fake.processes(2)
    psutil.Process(servers.managed[0].pid).kill()
    with pytest.raises(ServerError, match="instance 0 of the server was killed by SIGKILL"):
        await waiting
    assert servers.died
    # And now the dead one.
    assert states(servers.milestones) == states(servers.managed[0].milestones)
    await servers.stop()
    fake.assert_gone(processes)


async def test_one_that_cannot_start_ends_the_wait(fake: FakeServer, tmp_path: Path) -> None:
    servers = Servers(of(two(fake, "mute", of_second="crash")))
    await servers.start(tmp_path)
    with pytest.raises(
        ServerError, match=r"(?s)ended with exit code 3 before it was ready: .*its log is .*server-1\.log"
    ):
        await servers.wait_ready()
    assert any("ValueError: max_model_len" in line for line in servers.view([], ()).log_tail)
    await servers.stop()
    assert not psutil.pid_exists(servers.managed[0].pid or 0)


async def test_the_clock_of_one_that_died_stands_still(fake: FakeServer, tmp_path: Path) -> None:
    server = fake.profile("crash")
    begins_with(server, "echo Starting to load model m")
    servers = Servers(of(server))
    await servers.start(tmp_path)
    with pytest.raises(ServerError, match="exit code 3"):
        await servers.wait_ready()
    milestones = servers.milestones
    assert any(one.state == "running" and one.elapsed_s is not None for one in milestones)
    assert servers.milestones == milestones and servers.clock_s == servers.clock_s
    await servers.stop()
    assert servers.milestones == milestones


async def test_what_is_not_there_is_said_once(fake: FakeServer, tmp_path: Path) -> None:
    servers = Servers(of(two(fake).model_copy(update={"command": str(tmp_path / "nothing")})))
    with pytest.raises(ServerError, match="does not exist"):
        await servers.start(tmp_path)
    await servers.stop()


async def test_a_server_that_was_never_started_has_no_log_to_complain_of(fake: FakeServer, tmp_path: Path) -> None:
    reported: list[tuple[str, str]] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        servers = Servers(of(fake.profile().model_copy(update={"port": taken.getsockname()[1]})))
        with pytest.raises(ServerError, match="is taken"):
            await servers.start(tmp_path)
        await servers.end(leave=False, event=lambda kind, text: reported.append((kind, text)), show=lambda: None)
    assert [kind for kind, _ in reported] == ["server"]


@pytest.mark.parametrize("number", [0, 1])
async def test_one_that_cannot_be_left_is_stopped_and_the_other_runs_on(
    fake: FakeServer, tmp_path: Path, number: int
) -> None:
    reported: list[str] = []
    servers = Servers(of(two(fake)))
    await servers.start(tmp_path)
    await servers.wait_ready()
    lost, left = servers.managed[number], servers.managed[1 - number]
    ending, staying = psutil.Process(lost.pid), psutil.Process(left.pid)
    log = left.log.path.stat().st_ino
    guard = ending.parent()
    assert guard is not None
    guard.kill()
    try:
        assert await servers.end(leave=True, event=lambda _, text: reported.append(text), show=lambda: None) == "died"
        assert f"left running at {left.base_url}; `vramp stop {left.port}` ends it" in reported
        assert [text.split(": ")[0] for text in reported if text.endswith("; it is stopped")] == [lost.base_url]
        assert sum("no process left" in text for text in reported) == 1
        assert staying.is_running()
        assert left.log.path.stat().st_ino == log, "it still writes into it"
        fake.assert_gone([ending])
    finally:
        await stop_left(left)


async def test_each_that_was_left_is_reported_with_what_ends_it(fake: FakeServer, tmp_path: Path) -> None:
    reported: list[str] = []
    servers = Servers(of(two(fake)))
    await servers.start(tmp_path)
    await servers.wait_ready()
    try:
        assert await servers.end(leave=True, event=lambda _, text: reported.append(text), show=lambda: None) is None
        assert reported == [
            f"left running at {one.base_url}; `vramp stop {one.port}` ends it" for one in servers.managed
        ]
    finally:
        await stop_left(*servers.managed)


async def stop_left(*servers: ManagedServer) -> None:
    for record in list_servers():
        if record.port in [server.port for server in servers]:
            await stop_server(record, timeout_s=PATIENCE_S)


async def test_an_attached_server_is_left_alone(tmp_path: Path) -> None:
    servers = Servers(of(Server(engine="attach", url=NOBODY)))
    await servers.start(tmp_path)
    await servers.wait_ready()
    servers.check()
    servers.end_soon()
    assert (servers.base_urls, servers.state, servers.pid) == ([NOBODY], "starting", None)
    assert (servers.milestones, servers.view([], ()).log_tail, servers.described()) == ((), (), ())
    assert await servers.stop() == []


async def test_several_attached_servers_are_ours_to_drive_and_are_left_running(tmp_path: Path) -> None:
    urls = [NOBODY, f"https://gpu-{os.getpid()}"]
    servers = Servers(of(Server(engine="attach", urls=urls)))
    places = [("localhost", PORT), (f"gpu-{os.getpid()}", 443)]
    assert [holder_of("drives", *place) for place in places] == ["", ""]
    await servers.start(tmp_path)
    assert [holder_of("drives", *place) for place in places] == ["", ""]  # who only watches drives nothing
    servers.claim()
    servers.claim()
    assert all(f"pid {os.getpid()} " in holder_of("drives", *place) for place in places)
    assert (servers.count, servers.base_urls, servers.url) == (2, urls, urls[0])
    assert [instance.url for instance in servers.described()] == urls
    views = servers.view([EngineView(running=3), None], ()).instances
    assert [(view.url, view.state, view.running) for view in views] == [(urls[0], "ready", 3), (urls[1], "ready", None)]
    assert await servers.stop() == []
    assert [holder_of("drives", *place) for place in places] == ["", ""]
