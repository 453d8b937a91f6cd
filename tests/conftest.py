"""Settings of all tests."""

import gc
import os
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from hypothesis import HealthCheck, settings

from tests.engines import Simulator, simulator
from tests.result_schema import require_schema

# A busy machine is no reason to fail: how long an example takes says nothing about whether it is right.
# What gates a change tries the same examples each time; `--hypothesis-profile=explore` looks for new ones.
settings.register_profile(
    "vramp", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=30, derandomize=True
)
settings.register_profile(
    "explore", settings.get_profile("vramp"), max_examples=600, derandomize=False, print_blob=True
)
settings.load_profile("vramp")


def pytest_collection_finish() -> None:
    """What was collected stays until the end: to look through it for garbage took a third of the screens' tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Caches, locks and records of the tests are their own, in every process that they start."""
    with pytest.MonkeyPatch.context() as patch:
        # What a real vLLM has compiled stays where it is: compiling it again takes half a minute.
        patch.setenv("VLLM_CACHE_ROOT", os.environ.get("VLLM_CACHE_ROOT", str(Path.home() / ".cache" / "vllm")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        # An installed vramp is compiled: hundreds of processes that compile it again are a sixth of the suite's time.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """A command that a test calls in this process has its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def shared() -> Iterator[Simulator]:
    """One simulator for every test that can share it."""
    with simulator() as running:
        yield running


@pytest.fixture
def engine(shared: Simulator) -> Simulator:
    """The shared simulator, as if it were new."""
    shared.forget()
    return shared


class Certificate(NamedTuple):
    """For a server on this machine, signed by an authority that nobody knows."""

    server: ssl.SSLContext
    client: ssl.SSLContext  # trusts the authority
    authority: Path


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    authority, path = trustme.CA(), tmp_path_factory.mktemp("tls") / "authority.pem"
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    authority.cert_pem.write_to_path(path)
    return Certificate(server, client, path)


_BEGINS_A_RESULT = b'{\n "schema": "vramp.result/1",'


@pytest.fixture(autouse=True)
def every_result_fits_the_schema(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever results a test leaves in its folder, by whichever process, are what the shipped schema describes."""
    yield
    folder = request.node.funcargs.get("tmp_path")
    for path in folder.rglob("*.json") if folder is not None else ():
        if path.is_file() and _begins_a_result(path):
            require_schema(path.read_bytes())


def _begins_a_result(path: Path) -> bool:
    """Looks at the beginning alone: some tests leave files of gigabytes."""
    with path.open("rb") as file:
        return file.read(len(_BEGINS_A_RESULT)) == _BEGINS_A_RESULT
