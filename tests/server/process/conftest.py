"""Each test has records and locks of its own: none sees the servers of another."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.server.process.tree import ProcessId
from tests.server.fakes import sleeping


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def sleeper() -> Iterator[ProcessId]:
    with sleeping() as process:
        yield process
