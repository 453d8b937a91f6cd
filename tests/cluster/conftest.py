"""The figures of each run are its own."""

import pytest

from tests.cluster.figures import FIGURES


@pytest.fixture(scope="session", autouse=True)
def new_figures() -> None:
    FIGURES.unlink(missing_ok=True)
