"""However a run on a real vLLM ends, nothing of it is left; and a server that is to stay, stays until it is stopped."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from loadgen.run.operations import Stop
from loadgen.run.run import Run
from loadgen.schema.snapshot import Snapshot
from loadgen.server.process.ports import require_free_port
from loadgen.server.process.records import list_servers, servers_folder
from tests.run.driving import run_of
from tests.server.fakes import is_gone, kill_at_once
from tests.vllm.engine import HERE, PROFILE, attach, engine_processes, finish, here
from tui.cli.__main__ import main

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.fixture
def running(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """`vramp run` on a vLLM of its own, with streams open."""
    overrides = [word for override in [*HERE, "load.duration=600s"] for word in ("--set", override)]
    command = [sys.executable, "-m", "tui.cli", "run", str(PROFILE), "--json", "o.json", *overrides]
    environment = os.environ | {"PYTHONPATH": str(PROFILE.parents[1])}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "held 1" in line:
                break
        yield process
        process.kill()


@pytest.mark.parametrize("whom", ["vramp", "server", "engine"])
def test_kill_9_leaves_nothing(running: "subprocess.Popen[str]", whom: str, tmp_path: Path) -> None:
    tree = psutil.Process(running.pid).children(recursive=True)
    assert any("EngineCore" in process.name() for process in tree)
    victims = {
        "vramp": [psutil.Process(running.pid)],
        "server": [process for process in tree if "serve" in process.cmdline()][:1],
        "engine": [process for process in tree if "EngineCore" in process.name()],
    }
    victims[whom][0].send_signal(signal.SIGKILL)
    running.communicate(timeout=120)
    _, left = psutil.wait_procs(tree, timeout=60)
    assert left == []
    assert engine_processes() == []
    if whom != "vramp":
        assert running.returncode == 1
        result = json.loads((tmp_path / "o.json").read_text())
        assert result["state"] == "server_died"
        assert result["diagnosis"]["cause"] == {"server": "killed", "engine": "process-killed"}[whom]
        assert "SIGKILL" in result["diagnosis"]["title"]


@pytest.mark.parametrize("also", ["nobody else", "the server"])
def test_leftovers_of_a_killed_vramp_and_guard_are_ended(
    running: "subprocess.Popen[str]", also: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = psutil.Process(running.pid).children(recursive=True)
    guard = next(process for process in tree if "loadgen.server.process.guard" in process.cmdline())
    (server,) = guard.children()
    of_server = [server, *server.children(recursive=True)]
    engine = next(process for process in of_server if "EngineCore" in process.name())
    engine.suspend()  # so that it cannot end in order, whatever its server tells it
    try:
        kill_at_once(psutil.Process(running.pid), guard, *([server] if also == "the server" else []))
        running.communicate(timeout=120)
        if also == "the server":  # the marks alone tell
            for path in servers_folder().iterdir():
                path.unlink()
        (record,) = list_servers()
        assert record.orphaned
        assert engine.pid in [process.pid for process in record.tree]
        assert engine.is_running(), "ended although nobody asked for it"
        with pytest.raises(SystemExit) as ended:
            main(["stop", str(record.port)])
        assert ended.value.code == 0
        assert f"port {record.port}" in capsys.readouterr().err
        _, left = psutil.wait_procs(of_server, timeout=60)
        assert (left, list_servers()) == ([], [])
        assert require_free_port("127.0.0.1", record.port) == record.port
    finally:
        for process in of_server:
            if not is_gone(process):
                process.kill()


async def test_two_cycles_stopped_with_streams_open() -> None:
    port = 0
    for _ in range(2):
        overrides = ["load.duration=600s", "load.warmup=0", "load.concurrency=8", f"server.port={port}"]
        run = run_of(here(*overrides))

        def stop_in_full_flow(snapshot: Snapshot, run: Run = run) -> None:
            if snapshot.stages and snapshot.stages[-1].requests.open == 8:
                run.apply(Stop())

        async for snapshot in run.snapshots():
            stop_in_full_flow(snapshot)
        assert run.error is None and run.result is not None
        assert run.result.state == "stopped"
        assert run.result.stages[-1].requests.unfinished > 0
        assert engine_processes() == []
        port = int(run.result.environment["server_url"].rpartition(":")[2])
        assert require_free_port("127.0.0.1", port) == port
        assert list_servers() == []


def test_server_left_running_is_stopped_later(capsys: pytest.CaptureFixture[str]) -> None:
    result = asyncio.run(finish(here("server.on_exit=leave", "load.concurrency=1", "load.requests=2")))
    (record,) = list_servers()
    assert record.left and record.url == result.environment["server_url"]
    assert any("vramp stop" in event.text for event in result.events)
    asyncio.run(finish(attach(record.url, concurrency=[1], requests=2)))
    with pytest.raises(SystemExit) as ended:
        main(["stop", str(record.port)])
    assert ended.value.code == 0
    assert "stopped" in capsys.readouterr().err
    assert (engine_processes(), list_servers()) == ([], [])
