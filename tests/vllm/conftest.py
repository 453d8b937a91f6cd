"""Every test on the real engine has a folder of its own; one engine serves those that only talk to it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadgen.server.supervisor import ManagedServer
from tests.vllm.engine import here


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with ManagedServer(
        here("server.args.enable-mfu-metrics=true").server, log_path=tmp_path / "server.log"
    ) as managed:
        await managed.wait_ready()
        yield managed.base_url
