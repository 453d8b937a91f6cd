"""Locks over real processes: one driver for each server, of whichever user, and no lock that outlives its reason."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ServerError
from loadgen.server.process import ports
from loadgen.server.process.ports import (
    claim_port,
    drive_lock,
    free_port,
    holder_of,
    holders,
    is_of_root_or_us,
    is_this_machine,
    listeners,
    require_free_port,
    shown_listeners,
)
from loadgen.server.process.tree import ProcessId
from tests.engines import PORT
from tests.server.fakes import write_record

ROOT = Path(__file__).parents[3]
OTHER = """
import sys
from loadgen.server.process.ports import drive_lock
lock = drive_lock(sys.argv[1], int(sys.argv[2]))
print("driving", flush=True)
sys.stdin.read()
lock.close()
"""


@contextmanager
def other_vramp(host: str, port: int, *, program: str = OTHER) -> Iterator[subprocess.Popen[bytes]]:
    """Another vramp that drives this server until the end, or until it is killed."""
    command = [sys.executable, "-c", program, host, str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"driving\n"
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def listening(address: str) -> Iterator[int]:
    """Yield the port of a socket of this process."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        yield server.getsockname()[1]


def test_a_second_vramp_learns_who_drives() -> None:
    with other_vramp("127.0.0.1", PORT) as process:
        who = rf"\(pid {process.pid} \(.*python.*\) of user \S+, since 20\S+ \S+\)"
        with pytest.raises(ServerError, match=rf"127\.0\.0\.1 port {PORT} is already driven by a vramp {who}; wait"):
            drive_lock("127.0.0.1", PORT)


def test_a_lock_ends_with_its_process() -> None:
    with other_vramp("127.0.0.1", PORT) as process:
        process.kill()
        process.wait()
        with drive_lock("127.0.0.1", PORT):
            pass


def test_a_lock_can_be_released_twice() -> None:
    lock = drive_lock("127.0.0.1", PORT)
    lock.close()
    lock.close()
    with other_vramp("127.0.0.1", PORT):
        pass


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "0.0.0.0", "::1", "[::1]", "127.0.0.2", socket.gethostname()]
)
def test_this_machine_is_one_under_all_its_names(host: str) -> None:
    with other_vramp("127.0.0.1", PORT), pytest.raises(ServerError, match="already driven by a vramp"):
        drive_lock(host, PORT)


def test_servers_elsewhere_are_others() -> None:
    with other_vramp("gpu-1", PORT):
        with drive_lock("127.0.0.1", PORT), drive_lock("gpu-2", PORT), drive_lock("gpu-1", PORT + 1):
            pass
        with pytest.raises(ServerError, match=f"GPU-1 port {PORT} is already driven by a"):
            drive_lock("GPU-1", PORT)


@given(st.text(max_size=300), st.integers(1, 65535))
def test_any_host_can_be_locked(host: str, port: int) -> None:
    assert len(ports._lock_name("drives", host, port)) < 108  # what fits into an address
    with drive_lock(host, PORT), drive_lock(host, PORT):
        pass
    assert holder_of("drives", host, PORT) == ""


def test_one_vramp_may_take_its_lock_twice() -> None:
    with drive_lock("127.0.0.1", PORT):
        with drive_lock("localhost", PORT):
            pass
        with pytest.raises(subprocess.CalledProcessError):
            subprocess.run(
                [sys.executable, "-c", OTHER, "127.0.0.1", str(PORT)], cwd=ROOT, check=True, stderr=subprocess.DEVNULL
            )


def test_more_questions_than_the_holder_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_BACKLOG", 1)
    with drive_lock("127.0.0.1", PORT):
        answers = [holder_of("drives", "localhost", PORT) for _ in range(4)]
    assert f"(pid {os.getpid()} (" in answers[0]
    assert answers[-1] == "a vramp that cannot be seen from here"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_vramp_of_another_user_is_seen_and_sees_us() -> None:
    # The folder of the tests is closed to him: what he needs is read before he becomes one.
    other = OTHER.replace("lock = ", "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\nlock = ")
    with other_vramp("127.0.0.1", PORT, program=other) as process:
        with pytest.raises(ServerError, match=rf"\(pid {process.pid} .* of user \S+, since 20"):
            claim_port("127.0.0.1", PORT)
        process.kill()
        process.wait()
    with drive_lock("127.0.0.1", PORT), pytest.raises(AssertionError), other_vramp("localhost", PORT, program=other):
        pass


def test_no_disk_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/full")
    before = psutil.Process().num_fds()
    with drive_lock("127.0.0.1", PORT):
        assert f"pid {os.getpid()}" in holder_of("drives", "127.0.0.1", PORT)
    assert holder_of("drives", "127.0.0.1", PORT) == ""
    assert psutil.Process().num_fds() == before


def test_a_free_port_that_another_vramp_has_chosen_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = free_port("127.0.0.1")
    choices = iter([chosen, chosen, free_port("127.0.0.1")])
    # Which port the kernel offers cannot be commanded.
    monkeypatch.setattr(ports, "free_port", lambda host: next(choices))
    with other_vramp("127.0.0.1", chosen):
        port, lock = claim_port("127.0.0.1", 0)
    with lock:
        assert port != chosen


def test_two_servers_of_one_vramp_do_not_choose_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, other = free_port("127.0.0.1"), free_port("127.0.0.1")
    choices = iter([chosen, chosen, other])
    monkeypatch.setattr(ports, "free_port", lambda host: next(choices))  # as above
    first, one = claim_port("127.0.0.1", 0)
    second, two = claim_port("127.0.0.1", 0)
    with one, two:
        assert (first, second) == (chosen, other)


def test_a_taken_port_is_not_claimed() -> None:
    with listening("127.0.0.1") as port:
        words = re.escape(f"port {port} on 127.0.0.1 is taken by pid {os.getpid()} (")
        with pytest.raises(ServerError, match=words):
            claim_port("127.0.0.1", port)
    claimed, lock = claim_port("127.0.0.1", port)
    lock.close()
    assert claimed == port


def test_a_port_that_a_server_of_an_earlier_vramp_has(sleeper: ProcessId) -> None:
    with listening("127.0.0.1") as port:
        write_record(port, guard=sleeper, server=sleeper)
        words = rf"\(profile p\) that an earlier vramp started, pid {sleeper.pid}; end it with `vramp stop {port}`"
        with pytest.raises(ServerError, match=words):
            claim_port("127.0.0.1", port)


def test_a_listener_that_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_connections", lambda kind: [])  # as without the right to look
    with listening("127.0.0.1") as port, pytest.raises(ServerError, match="only its owner or root can see"):
        require_free_port("127.0.0.1", port)


@pytest.mark.parametrize("failure", [psutil.AccessDenied(), PermissionError("/proc/net/tcp")])
def test_a_sandbox_that_lists_neither_listeners_nor_interfaces(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise failure

    def forbidden() -> None:
        raise PermissionError

    # This kernel allows both: psutil raises in its place.
    monkeypatch.setattr(psutil, "net_connections", failing)
    monkeypatch.setattr(psutil, "net_if_addrs", forbidden)
    assert listeners([PORT]) == set()
    assert is_this_machine("127.0.0.1")
    assert not is_this_machine("192.0.2.1")


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 300, "192.0.2.1"])
def test_an_address_of_another_machine(host: str) -> None:
    with pytest.raises(ServerError, match="not an address of this machine"):
        free_port(host)


NOBODY = 65534


@pytest.mark.parametrize(
    ("address", "host", "reached"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.2", "127.0.0.1", False),
        ("::1", "[::1]", True),
        ("::", "127.0.0.1", True),
        ("::1", "127.0.0.1", False),
    ],
)
def test_only_those_that_a_connection_may_reach_hold_a_port(address: str, host: str, *, reached: bool) -> None:
    with listening(address) as port:
        assert holders(host, port) == ({os.getpid()} if reached else set())
        assert listeners([port]) == {os.getpid()}
    assert holders(host, port) == set()


def test_a_listener_is_named_by_its_command() -> None:
    assert shown_listeners({os.getpid()}).startswith(f"pid {os.getpid()} (")
    assert shown_listeners({None}) == "a process that only its owner or root can see"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process of another user")
def test_a_process_of_another_user_is_neither_roots_nor_ours() -> None:
    assert is_of_root_or_us(os.getpid())
    with subprocess.Popen(["sleep", "600"], user=NOBODY) as other:
        assert not is_of_root_or_us(other.pid)
        other.kill()
