"""`vramp stop`: a server that a run left behind on purpose, from start to end."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loadgen.server.process.records import list_servers
from tui.cli.__main__ import main

LEAVING = ["--set", "server.on_exit=leave", "--set", "server.args.startup-s=0"]
SMALL = ["--isl", "16", "--osl", "8", "--workers", "1", "--concurrency", "1", "--requests", "2"]


@pytest.fixture
def left(tmp_path: Path) -> Iterator[str]:
    """A simulator that `vramp run` has left running; its URL."""
    command = [sys.executable, "-m", "tui.cli", "run", "simulator", *LEAVING, *SMALL]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (record,) = list_servers()
    assert f"left running at {record.url}; `vramp stop {record.port}` ends it" in done.stderr
    yield record.url
    assert list_servers() == []


def stop(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["stop", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_only_one_needs_no_port(left: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert httpx.get(f"{left}/health", trust_env=False).status_code == 200
    assert stop("--list") == 0
    assert "simulator" in capsys.readouterr().out
    assert stop() == 0
    assert "no process left" in capsys.readouterr().err
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{left}/health", trust_env=False)


def test_another_port_is_not_touched(left: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stop("1") == 3
    assert f"running ones: {left.rpartition(':')[2]}" in capsys.readouterr().err
    assert stop("--all") == 0


DRIVING = """
import sys
from loadgen.server.process.locks import drive_lock
lock = drive_lock("localhost", int(sys.argv[1]))
print("driving", flush=True)
sys.stdin.read()
"""


def test_one_that_is_driven_is_somebodys_measurement(left: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = left.rpartition(":")[2]
    with subprocess.Popen(
        [sys.executable, "-c", DRIVING, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "driving\n"
        for words in ([], ["--all"]):
            assert stop(*words) == 0
            told = capsys.readouterr().err
            assert f"not touched: port {port}" in told and "no server that vramp left is running" in told
        assert stop(port) == 3
        assert f"driven by a vramp (pid {driver.pid}" in capsys.readouterr().err
        assert httpx.get(f"{left}/health", trust_env=False).status_code == 200
        assert stop(port, "--force") == 0
        driver.communicate()


def test_nothing_to_stop(capsys: pytest.CaptureFixture[str]) -> None:
    assert stop() == 0
    assert "no server that vramp left is running" in capsys.readouterr().err
