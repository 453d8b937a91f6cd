"""Connections to a port of Dask by somebody without the run's certificate, over real sockets."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import distributed
import pytest

from loadgen.cluster.tls import MAX_STRANGERS, bound_handshakes, make_certificate, security_of


@asynccontextmanager
async def scheduler() -> AsyncIterator[tuple[distributed.Security, str]]:
    security, memory = security_of(make_certificate())
    async with distributed.Scheduler(
        host="127.0.0.1",
        port=0,
        protocol="tls://",
        security=security,
        dashboard=False,
        dashboard_address="127.0.0.1:0",
    ) as started:
        bound_handshakes(started)
        yield security, started.address
    os.close(memory)


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))


async def test_strangers_do_not_keep_others_out() -> None:
    async with scheduler() as (security, address):
        strangers = [await connect(address) for _ in range(MAX_STRANGERS + 30)]
        for reader, _ in strangers[:30]:
            assert await reader.read() == b""  # the oldest are closed
        async with distributed.Client(address, security=security, asynchronous=True) as client:
            assert client.scheduler_info()["address"] == address
        for _, writer in strangers:
            writer.close()


async def test_a_client_with_the_certificate_stays_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.cluster.tls._HANDSHAKE_S", 0.2)
    async with (
        scheduler() as (security, address),
        distributed.Client(address, security=security, asynchronous=True) as client,
    ):
        reader, writer = await connect(address)
        assert await reader.read() == b""  # it came after the client, and its time is over
        assert client.scheduler_info()["address"] == address
        writer.close()
