"""The figures of each run are its own; a home with an SSH key, and a host that lets its owner in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.figures import FIGURES
from tests.cluster.ssh_server import SshServer, make_home, ssh_server


@pytest.fixture(scope="session", autouse=True)
def new_figures() -> None:
    FIGURES.unlink(missing_ok=True)


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
