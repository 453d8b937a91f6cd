"""The fixtures of the server tests."""

from pathlib import Path

import pytest

from tests.server.fakes import FakeServer


@pytest.fixture
def fake(tmp_path: Path) -> FakeServer:
    return FakeServer(tmp_path)
