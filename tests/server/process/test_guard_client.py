"""Stopping a server that another vramp left running, whatever its guard does."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from loadgen.server.process.guard_client import (
    ProcessName,
    ServerExit,
    StopReport,
    hang_up,
    send,
    start_guard,
    stop_server,
)
from loadgen.server.process.records import ServerRecord, list_servers, record_path
from loadgen.server.process.tree import ProcessId, kill_seen
from tests.server.fakes import PATIENCE_S, FakeServer, wait_until, write_record

ROOT = Path(__file__).parents[3]
LEAVER = """
import asyncio, sys
from pathlib import Path
from loadgen.profile.schema import Server
from loadgen.server.supervisor import ManagedServer

async def main():
    settings = Server.model_validate_json(sys.argv[1])
    async with ManagedServer(settings, log_path=Path(sys.argv[2]), profile="left") as server:
        await server.wait_ready()
        await server.leave()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def no_server_left(own_state: None) -> Iterator[None]:
    yield
    for record in list_servers():  # a test that failed leaves no server either
        kill_seen([record.mark.guard, record.server, *record.tree], within_s=PATIENCE_S)


def leave_one(
    fake: FakeServer, habits: str = "", *, stop_timeout_s: float = 0.3
) -> tuple[ServerRecord, psutil.Process]:
    """A server whose vramp has ended in order, and its guard."""
    profile = json.dumps(fake.profile(habits, stop_timeout_s=stop_timeout_s).model_dump())
    # hdrhistogram's codec, on Python 3.14: as in pyproject.toml.
    strict = ["-W", "error", "-W", "ignore:Due to '_pack_':DeprecationWarning"]
    subprocess.run([sys.executable, *strict, "-c", LEAVER, profile, str(fake.log)], cwd=ROOT, check=True)
    wait_until(lambda: len(list_servers()[0].tree) == len(fake.processes(1)))
    record = list_servers()[0]
    assert (record.left, record.profile, record.model) == (True, "left", "m")
    assert record.log_path == str(fake.log)
    return record, psutil.Process(record.mark.guard.pid)


def test_a_server_killed_by_a_signal_without_a_name() -> None:
    assert str(ServerExit(signal=37)) == "was killed by signal 37"


async def test_a_server_that_was_left_stops_in_order(fake: FakeServer) -> None:
    record, guard = leave_one(fake, stop_timeout_s=PATIENCE_S)
    tree = fake.processes(1)
    assert tree[0].is_running()
    report = await stop_server(record, timeout_s=PATIENCE_S)
    fake.assert_gone([*tree, guard])
    assert (report.killed, report.left, report.clean) == ((), (), True)
    assert "its level before the start is not known" in report.sentence
    assert list_servers() == []


async def test_a_guard_that_hangs_is_not_waited_for(fake: FakeServer) -> None:
    record, guard = leave_one(fake, "deaf children escape")
    tree = fake.processes(3)
    guard.suspend()
    report = await stop_server(record, timeout_s=0.1)
    assert {process.pid for process in report.killed} == {process.pid for process in tree}
    fake.assert_gone([*tree, guard])
    assert not record_path(record.mark).exists()


async def test_a_server_whose_guard_is_gone_is_killed_from_here(fake: FakeServer) -> None:
    _, guard = leave_one(fake, "deaf children escape")
    wait_until(lambda: len(list_servers()[0].tree) == 3)
    tree = fake.processes(3)
    guard.kill()
    fake.assert_gone([guard])
    (found,) = list_servers()
    report = await stop_server(found, timeout_s=PATIENCE_S)
    assert report.left == ()
    fake.assert_gone(tree)
    assert list_servers() == []


def test_a_guard_that_is_signalled_while_python_loads_goes_on(tmp_path: Path) -> None:
    with start_guard(tmp_path / "server.log") as guard:
        guard.send_signal(signal.SIGINT)
        guard.send_signal(signal.SIGHUP)
        hang_up(guard)
        assert guard.wait(20) == 0
    assert (tmp_path / "server.log").read_text() == ""


def test_an_order_to_a_guard_after_a_hang_up_does_no_harm(tmp_path: Path) -> None:
    with start_guard(tmp_path / "server.log") as guard:
        hang_up(guard)
        send(guard, {"do": "stop"})
        assert guard.wait(20) == 0


async def test_a_process_with_a_reused_pid_is_not_signalled() -> None:
    stranger = await asyncio.create_subprocess_exec("sleep", "600")
    theirs = ProcessId(stranger.pid, 1)  # an earlier process had this pid
    record = write_record(guard=theirs, server=theirs, tree=[theirs])
    assert (await stop_server(record, timeout_s=0.1)).killed == ()
    assert stranger.returncode is None
    stranger.kill()
    assert await stranger.wait() == -signal.SIGKILL


def test_a_report_says_all_of_it_in_one_line() -> None:
    main, engine = ProcessName(7, "vllm"), ProcessName(8, "VLLM::EngineCore")
    report = StopReport(3.21, (main, engine), (engine,), "docker rm x ended with exit code 1", "not checked")
    assert report.sentence == (
        "stopped in 3.2 s; had to be killed: vllm (7), VLLM::EngineCore (8); could not be ended: VLLM::EngineCore (8); "
        "docker rm x ended with exit code 1"
    )
    assert not report.clean
    assert StopReport(0.5).sentence == "stopped in 0.5 s; no process left"
