"""Whole fleets give their workers up early."""

import pytest

from loadgen.fleet import worker_process


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "SILENT_S", 1.5)
