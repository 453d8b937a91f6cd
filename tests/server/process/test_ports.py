import os
import re
import socket

import psutil
import pytest

from loadgen.errors import ServerError
from loadgen.server.process.ports import free_port, require_free_port


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
