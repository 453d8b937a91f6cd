"""Commands in this process."""

import pytest

from tests.tui.cli.commands import Done, Said, exit_code


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Said:
    """A command in this process, with what it says."""
    return lambda *words: Done(exit_code(*words), *capfd.readouterr())
