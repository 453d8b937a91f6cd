"""The stand-ins for the vendors' libraries, compiled once."""

from pathlib import Path

import pytest

from tests.telemetry.amdsmi_stub.build import build_rocm


@pytest.fixture(scope="session")
def rocm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_rocm(tmp_path_factory.mktemp("rocm") / "7.0.2")
