"""Settings of all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: how long an example takes says nothing about whether it is right.
settings.register_profile("vramp", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
settings.load_profile("vramp")


@pytest.fixture(scope="session", autouse=True)
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Caches, locks and records of the tests are their own, in every process that they start."""
    with pytest.MonkeyPatch.context() as patch:
        # What a real vLLM has compiled stays where it is: compiling it anew takes half a minute.
        patch.setenv("VLLM_CACHE_ROOT", os.environ.get("VLLM_CACHE_ROOT", str(Path.home() / ".cache" / "vllm")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
