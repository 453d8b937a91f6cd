"""Whole fleets give their workers up early."""

import pytest

from loadgen.fleet import worker


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SILENT_S", 1.5)
