"""One set of servers for all tests; each starts when a test first needs it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.others.servers import Others


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Others]:
    with ExitStack() as stack:
        yield Others(tmp_path_factory.mktemp("others"), stack)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
