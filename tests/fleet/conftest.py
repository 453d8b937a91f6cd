"""Whole fleets give their workers up early."""

import pytest

from loadgen.fleet import worker
from tests.run.conftest import in_a_folder_of_its_own

__all__ = ["in_a_folder_of_its_own"]  # a fixture


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SILENT_S", 1.5)
