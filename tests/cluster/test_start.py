"""Hosts that are reached by SSH: they take part, or one line says why not; nothing of them stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadgen.cluster.start import started
from loadgen.profile.cluster import Cluster
from tests.cluster.ssh_server import SshServer, make_home, ssh_server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return make_home(folder)


@pytest.fixture
async def server(home: Path) -> AsyncIterator[SshServer]:
    async with ssh_server(home) as one:
        yield one


async def test_a_host_takes_part_and_nothing_of_it_stays(server: SshServer) -> None:
    async with started(Cluster(hosts=[server.name])) as hosts:
        ((facts, address),) = hosts.workers
        assert hosts.owned
        assert facts.name == server.name
        assert address.startswith("tls://127.0.0.1:")
        assert await hosts.client.run(lambda: 2, workers=[address]) == {address: 2}
    for process in server.processes:
        await asyncio.wait_for(process.wait(), 20)
