"""Locks and records over real processes: one driver for each server, and no lock or record that outlives its reason."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ServerError
from loadgen.server.process import locks
from loadgen.server.process.locks import (
    claim_port,
    drive_lock,
    free_port,
    list_servers,
    record_path,
    require_free_port,
    servers_folder,
)
from loadgen.server.process.tree import ProcessId, look_at

ROOT = Path(__file__).parents[3]
OTHER = """
import sys
from loadgen.server.process.locks import drive_lock
lock = drive_lock(sys.argv[1], int(sys.argv[2]), profile=sys.argv[3])
print("driving", flush=True)
sys.stdin.read()
lock.release()
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@contextmanager
def other_vramp(host: str, port: int, profile: str = "theirs") -> Iterator[subprocess.Popen[bytes]]:
    """Another vramp that drives this server until the end, or until it is killed."""
    command = [sys.executable, "-c", OTHER, host, str(port), profile]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"driving\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_vramp_is_told_who_drives() -> None:
    with other_vramp("127.0.0.1", 8000, "mi300x") as process:
        who = rf"\(pid {process.pid}, since 20\S+ \S+, profile mi300x\)"
        with pytest.raises(ServerError, match=rf"127\.0\.0\.1 port 8000 is already driven by a vramp {who}; wait"):
            drive_lock("127.0.0.1", 8000)


def test_a_lock_ends_with_its_process() -> None:
    with other_vramp("127.0.0.1", 8000) as process:
        process.kill()
        process.wait()
        with drive_lock("127.0.0.1", 8000):
            pass


def test_a_lock_that_was_let_go_leaves_no_file() -> None:
    with other_vramp("127.0.0.1", 8000) as process:
        process.communicate(b"")
        assert list(servers_folder().iterdir()) == []
    lock = drive_lock("127.0.0.1", 8000)
    lock.release()
    lock.release()
    assert list(servers_folder().iterdir()) == []


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "0.0.0.0", "::1", "[::1]", "127.0.0.2", socket.gethostname()]
)
def test_this_machine_is_one_under_all_its_names(host: str) -> None:
    with other_vramp("127.0.0.1", 8000), pytest.raises(ServerError, match="already driven by a vramp"):
        drive_lock(host, 8000)


def test_servers_elsewhere_are_others() -> None:
    with other_vramp("gpu-1", 8000):
        with drive_lock("127.0.0.1", 8000), drive_lock("gpu-2", 8000), drive_lock("gpu-1", 8001):
            pass
        with pytest.raises(ServerError, match="GPU-1 port 8000 is already driven by a"):
            drive_lock("GPU-1", 8000)


@given(st.text(max_size=300), st.integers(1, 65535))
def test_any_host_makes_a_file_name(host: str, port: int) -> None:
    path = locks._lock_path(host, port)
    assert path.parent == servers_folder()
    assert re.fullmatch(r"[a-z0-9._-]*", path.name)
    assert len(path.name) < 120


def test_one_vramp_may_take_its_lock_twice() -> None:
    with drive_lock("127.0.0.1", 8000):
        with drive_lock("localhost", 8000):
            pass
        with pytest.raises(subprocess.CalledProcessError):
            subprocess.run(
                [sys.executable, "-c", OTHER, "127.0.0.1", "8000", ""], cwd=ROOT, check=True, stderr=subprocess.DEVNULL
            )


def test_a_holder_that_has_not_said_who_it_is() -> None:
    with other_vramp("127.0.0.1", 8000):
        (servers_folder() / "8000.lock").write_text("")
        with pytest.raises(ServerError, match="already driven by a vramp; wait"):
            drive_lock("127.0.0.1", 8000)


def test_a_lock_file_that_was_replaced_while_it_was_opened_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    path = servers_folder() / "8000.lock"
    open_file, opened = os.open, []

    def open_and_lose(*args: Any) -> int:
        # The holder lets go between our open and our lock: only the order of the two is forced here.
        opened.append(open_file(*args))
        if len(opened) == 1:
            path.unlink()
        return opened[-1]

    monkeypatch.setattr(os, "open", open_and_lose)
    with drive_lock("127.0.0.1", 8000) as lock:
        assert lock.descriptor == opened[1]
        assert path.exists()


def test_a_free_port_that_another_vramp_has_chosen_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = free_port("127.0.0.1")
    choices = iter([chosen, chosen, free_port("127.0.0.1")])
    # Which port the kernel offers cannot be commanded.
    monkeypatch.setattr(locks, "free_port", lambda host: next(choices))
    with other_vramp("127.0.0.1", chosen):
        port, lock = claim_port("127.0.0.1", 0)
    with lock:
        assert port != chosen


def test_two_servers_of_one_vramp_do_not_choose_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, other = free_port("127.0.0.1"), free_port("127.0.0.1")
    choices = iter([chosen, chosen, other])
    monkeypatch.setattr(locks, "free_port", lambda host: next(choices))  # as above
    first, one = claim_port("127.0.0.1", 0)
    second, two = claim_port("127.0.0.1", 0)
    with one, two:
        assert (first, second) == (chosen, other)


def test_a_taken_port_is_not_claimed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ServerError, match=f"port {port} on 127.0.0.1 is taken by pid {os.getpid()}"):
            claim_port("127.0.0.1", port)
    port, lock = claim_port("127.0.0.1", port)
    lock.release()


def test_a_port_that_a_server_of_an_earlier_vramp_has(sleeper: ProcessId) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        write_record(port, sleeper, sleeper)
        words = rf"\(profile p\) that an earlier vramp started, pid {sleeper.pid}; end it with `vramp stop {port}`"
        with pytest.raises(ServerError, match=words):
            claim_port("127.0.0.1", port)


def test_state_that_cannot_be_kept_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(ServerError, match="set XDG_STATE_HOME"):
        drive_lock("127.0.0.1", 8000)


# Records.


def process_id(pid: int) -> ProcessId:
    info = look_at(pid)
    assert info is not None
    return info.id


@pytest.fixture
def sleeper() -> Iterator[ProcessId]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process_id(process.pid)
        process.kill()


def write_record(port: int, guard: ProcessId, server: ProcessId, tree: list[ProcessId] | None = None) -> None:
    record = {
        "guard": asdict(guard),
        "server": asdict(server),
        "tree": [asdict(process) for process in tree or []],
        "port": port,
        "url": f"http://127.0.0.1:{port}",
        "profile": "p",
        "model": None,
        "command": ["vllm"],
        "kill_command": None,
        "log_path": "server.log",
        "started_unix_s": 1.0,
        "left": False,
    }
    record_path(port).write_text(json.dumps(record))


DEAD = ProcessId(os.getpid(), 1)
"""The pid lives, but it is another process."""


def test_a_server_is_listed_while_anything_of_it_lives(sleeper: ProcessId) -> None:
    write_record(8001, sleeper, DEAD)
    write_record(8002, DEAD, sleeper)
    write_record(8003, DEAD, DEAD, [DEAD, sleeper])
    write_record(8004, DEAD, DEAD, [DEAD])
    record_path(8005).write_text("{")
    assert [record.port for record in list_servers()] == [8001, 8002, 8003]
    assert sorted(path.name for path in servers_folder().iterdir()) == ["8001.json", "8002.json", "8003.json"]


def test_a_stale_record_stays_while_somebody_starts_a_server_there() -> None:
    write_record(8001, DEAD, DEAD)
    with other_vramp("127.0.0.1", 8001):
        assert list_servers() == []
        assert record_path(8001).exists()
    assert list_servers() == []
    assert not record_path(8001).exists()


def test_a_free_port_can_be_taken() -> None:
    port = free_port("127.0.0.1")
    assert require_free_port("127.0.0.1", port) == port


def test_a_taken_port_names_who_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ServerError, match=re.escape(f"port {port} on 127.0.0.1 is taken by pid {os.getpid()} (")):
            require_free_port("127.0.0.1", port)


def test_a_listener_that_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_connections", lambda kind: [])  # as without the right to look
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(ServerError, match="only its owner or root can see"),
    ):
        require_free_port("127.0.0.1", listener.getsockname()[1])


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_of_another_machine(host: str) -> None:
    with pytest.raises(ServerError, match="not an address of this machine"):
        free_port(host)
