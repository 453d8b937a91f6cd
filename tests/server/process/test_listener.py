"""Who may answer on a port: real sockets of this process and of another user's."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loadgen.server.process.listener import holders, is_of_root_or_us, listeners, shown_listeners

NOBODY = 65534


@contextmanager
def listening(address: str) -> Iterator[int]:
    """Yield the port of a socket of this process."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        yield server.getsockname()[1]


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
