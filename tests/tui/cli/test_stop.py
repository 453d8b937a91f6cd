"""`vramp stop`: a server that a run left behind on purpose, from start to end."""

import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from loadgen.server.process.records import list_servers
from loadgen.server.process.tree import lives
from tests.server.fakes import sleeping, write_record
from tests.tui.cli.commands import SMALL, exit_code, vramp

stop = partial(exit_code, "stop")
LEAVING = ["--set", "server.on_exit=leave", "--set", "server.args.startup-s=0"]
FEW = [*SMALL, "--concurrency", "1", "--requests", "2"]


@pytest.fixture
def left(capfd: pytest.CaptureFixture[str]) -> Iterator[str]:
    """A simulator that `vramp run` has left running; its URL."""
    assert exit_code("run", "simulator", *LEAVING, *FEW) == 0
    (record,) = list_servers()
    assert f"left running at {record.url}; `vramp stop {record.port}` ends it" in capfd.readouterr().err
    yield record.url
    assert list_servers() == []


DRIVING = """
import sys
from loadgen.server.process.ports import drive_lock
lock = drive_lock("localhost", int(sys.argv[1]))
print("driving", flush=True)
sys.stdin.read()
"""


def test_a_server_that_a_vramp_drives_is_stopped_only_by_force(left: str, capfd: pytest.CaptureFixture[str]) -> None:
    port = left.rpartition(":")[2]
    with subprocess.Popen(
        [sys.executable, "-c", DRIVING, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "driving\n"
        for words in ([], ["--all"]):
            assert stop(*words) == 0
            reported = capfd.readouterr().err
            assert f"not touched: port {port}" in reported and "no server that vramp left is running" in reported
        assert stop(port) == 3
        assert f"driven by a vramp (pid {driver.pid}" in capfd.readouterr().err
        assert httpx.get(f"{left}/health", trust_env=False).status_code == 200
        assert stop(port, "--force") == 0
        driver.communicate()


ON_A_FULL_DISK = """
import errno, os, subprocess, sys
disk = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=True)
os.environ["XDG_STATE_HOME"] = f"{disk}/state"
vramp = [sys.executable, "-m", "tui.cli"]
subprocess.run([*vramp, "run", "simulator", *sys.argv[2:]], check=True, capture_output=True)
with open(f"{disk}/rest", "wb", buffering=0) as rest:
    try:
        while True:
            rest.write(bytes(4096))
    except OSError as error:
        assert error.errno == errno.ENOSPC
for words in (["stop", "--list"], ["stop"]):
    done = subprocess.run([*vramp, *words], capture_output=True, text=True)
    print(done.returncode, done.stdout.strip())
    print(done.stderr, file=sys.stderr)
"""


def test_a_full_disk_is_no_reason_not_to_stop(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small disk of his own (unprivileged user namespaces)")
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["unshare", "-rm", sys.executable, "-c", ON_A_FULL_DISK, str(disk), *LEAVING, *FEW]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    listed, stopped = done.stdout.splitlines()
    assert re.fullmatch(r"0 port \d+  simulator  .*left running", listed)
    assert stopped.strip() == "0"
    assert "no process left" in done.stderr


def write_nothing() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_stopping_all_ends_what_is_listed_and_writes_no_file(left: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert stop("1") == 3
    assert f"running ones: {left.rpartition(':')[2]}" in capfd.readouterr().err
    assert httpx.get(f"{left}/health", trust_env=False).status_code == 200
    assert stop("--list") == 0
    assert "simulator" in capfd.readouterr().out
    done = vramp(Path(), "stop", "--all", preexec_fn=write_nothing)
    assert done.returncode == 0, done.stderr
    assert "no process left" in done.stderr
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{left}/health", trust_env=False)


def test_leftovers_of_a_killed_vramp_are_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with sleeping() as process:
        write_record(8000, server=process, tree=[process])
        assert stop("--list") == 0
        words = f"left behind by a vramp that was killed: pid {process.pid} (sleep)"
        assert words in capsys.readouterr().out
        exit_code("check", "simulator")
        assert capsys.readouterr().out.startswith("warns  orphaned-server: left behind on port 8000, profile p: ")
        assert lives(process)
        assert stop() == 0
        assert not lives(process)
    assert list_servers() == []


def test_nothing_to_stop(capsys: pytest.CaptureFixture[str]) -> None:
    assert stop("--list") == 0
    assert capsys.readouterr().out == ""
    assert stop() == 0
    assert "no server that vramp left is running" in capsys.readouterr().err


def test_without_a_state_folder_there_is_nothing_to_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert stop("--list") == 0
    assert "set XDG_STATE_HOME" in capsys.readouterr().err
    assert stop("--all") == 3
