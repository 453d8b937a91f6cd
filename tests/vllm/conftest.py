"""Every test on the real engine has a folder of its own; one engine serves those of a file that only talk to it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from loadgen.server.supervisor import ManagedServer
from tests.vllm.engine import here


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ManagedServer]:
    async with ManagedServer(
        here("server.args.enable-mfu-metrics=true").server, log_path=tmp_path_factory.mktemp("server") / "server.log"
    ) as managed:
        await managed.wait_ready()
        yield managed


@pytest.fixture(scope="module")
def url(server: ManagedServer) -> str:
    return server.base_url
