"""How connections are opened: at what pace, and from which addresses."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

import msgspec
import pytest

from loadgen.stream.channel import Channel
from loadgen.stream.samples import ClientSamples
from loadgen.stream.transport import Sockets
from loadgen.worker import connections as connections_module
from loadgen.worker.connections import Connections
from tests.conftest import Certificate
from tests.server.fakes import eventually
from tests.worker.test_driver import settings


class Opening:
    """Connections to a listener, and what became of them."""

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext | None = None, **changes: object) -> None:
        self.client = ClientSamples()
        self.sockets = Sockets(self.client)
        self.failures: list[str] = []
        self.go_on: Callable[[], None] = lambda: None
        configured = settings(listener, **changes)
        if tls is not None:
            address = msgspec.structs.replace(configured.address, tls_name="localhost")
            configured = msgspec.structs.replace(configured, address=address)
        self.connections = Connections(
            configured,
            tls,
            self.sockets,
            place_free=lambda: self.go_on(),
            new_channel=lambda: Channel(self.client, lambda *_: None, lambda *_: None),
        )

    def open_ahead(self, wanted: int, workers: int = 1) -> None:
        self.connections.open_ahead(wanted, workers, self.take, self.failures.append)

    def take(self, channel: Channel) -> None:
        self.connections.put(channel)
        self.go_on()

    @property
    def opened(self) -> int:
        return len(self.connections.free)

    def close(self) -> None:
        self.connections.close()
        self.sockets.close()


async def test_what_is_opened_ahead_never_exceeds_a_short_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server accepts nothing: its queue holds four, and no worker opens a fifth while places are taken."""
    monkeypatch.setattr(connections_module, "AHEAD_AT_ONCE", 8)
    monkeypatch.setattr(connections_module, "AHEAD_PLACE_S", 3600.0)
    with socket.create_server(("127.0.0.1", 0), backlog=4) as listener:
        opening = Opening(listener)
        opening.open_ahead(100, workers=2)
        await eventually(lambda: opening.opened == 4)
        for _ in range(10):
            opening.open_ahead(96, workers=2)
            await asyncio.sleep(0)
        assert (opening.client.connects, opening.failures) == (4, [])
        opening.close()


async def test_places_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "AHEAD_AT_ONCE", 3)
    monkeypatch.setattr(connections_module, "AHEAD_PLACE_S", 0.001)
    with socket.create_server(("127.0.0.1", 0), backlog=20) as listener:
        # As for the driver, there is news when a place is free and when a connection is open.
        opening = Opening(listener)
        opening.go_on = lambda: opening.open_ahead(10 - opening.opened)
        opening.go_on()
        await eventually(lambda: opening.opened == 10)
        opening.close()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_connections_come_from_the_source_addresses_in_turn(encrypted: bool, certificate: Certificate) -> None:
    peers: list[str] = []
    over: list[str] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(writer.get_extra_info("peername")[0])
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        over.append("closed")

    listener = socket.create_server(("127.0.0.1", 0))
    async with await asyncio.start_server(note, sock=listener, ssl=certificate.server if encrypted else None):
        changes = {"source_addresses": ("127.0.0.2", "127.0.0.3")}
        opening = Opening(listener, certificate.client if encrypted else None, **changes)
        opening.open_ahead(4)
        await eventually(lambda: len(peers) == 4)
        await eventually(lambda: opening.opened == 4)
        opening.close()
        await eventually(lambda: len(over) == 4)
    assert sorted(peers) == ["127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.3"]


async def test_a_source_address_of_another_machine_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        opening = Opening(listener, source_addresses=("192.0.2.1",))
        opening.open_ahead(1)
        await eventually(lambda: bool(opening.failures))
        opening.close()
    (failure,) = opening.failures
    assert failure.startswith("Cannot assign requested address; local ports are used up, or load.source_addresses")
