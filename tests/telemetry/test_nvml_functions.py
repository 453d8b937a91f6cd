"""Each function of NVIDIA's library may fail in any way: it costs what it would have given, and nothing else."""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from loadgen.errors import TelemetryError
from loadgen.schema.samples import GpuSample
from loadgen.telemetry.nvml import open_nvml
from tests.c_library import build_library

_SOURCE = Path(__file__).parent / "nvml_stub" / "nvml_stub.c"
FAILURES: dict[str, Callable[[], Exception]] = {
    "missing": lambda: pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
    "mismatch": lambda: pynvml.NVMLLibraryMismatchError("the library is older"),
    "no permission": lambda: pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION),
    "unknown": lambda: pynvml.NVMLError(999),
    "OSError": lambda: OSError("broken"),
    "AttributeError": lambda: AttributeError("no such thing"),
    "ValueError": lambda: ValueError("not a value"),
    "ArgumentError": lambda: ctypes.ArgumentError("wrong type"),
}
NEEDED = ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")
"""Without these there is nothing to measure, or no device to measure it on."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    build_library(path, _SOURCE)
    return ctypes.CDLL(str(path))


@pytest.fixture
def nvml(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The real package over the library that stands in for NVIDIA's."""
    monkeypatch.setenv("NVML_STUB", "busy")
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    yield monkeypatch


def measured() -> list[GpuSample]:
    """What two looks at all GPUs give, once everything has been asked."""
    backend = open_nvml()
    try:
        backend.sample(True, True)
        return list(backend.sample(True, True))
    finally:
        backend.close()


def functions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every function of the library that vramp calls."""
    used: list[str] = []
    find = pynvml._nvmlGetFunctionPointer

    def noting(name: str) -> Any:
        used.append(name)
        return find(name)

    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", noting)
    measured()
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", find)
    return sorted(set(used))


def without(sample: GpuSample) -> dict[str, Any]:
    """The values of a sample that are known."""
    named = {name: getattr(sample, name) for name in GpuSample.__struct_fields__ if name not in ("t_s", "missing")}
    return {name: value for name, value in named.items() if value is not None}


@pytest.mark.parametrize("failure", FAILURES)
def test_any_function_may_fail(nvml: pytest.MonkeyPatch, failure: str) -> None:
    whole = [without(sample) for sample in measured()]
    find = pynvml._nvmlGetFunctionPointer
    used = functions(nvml)
    assert len(used) > 30
    for broken in used:

        def failing(name: str, broken: str = broken) -> Any:
            if name == broken:
                raise FAILURES[failure]()
            return find(name)

        # The library cannot be made to fail in each of these ways: its package raises in its place.
        nvml.setattr(pynvml, "_nvmlGetFunctionPointer", failing)
        if broken.startswith(NEEDED):
            with pytest.raises(TelemetryError):
                measured()
            continue
        for sample, full in zip(measured(), whole, strict=True):
            for name, value in without(sample).items():
                assert type(value) is type(full.get(name, value)), (broken, name)
            lost = full.keys() - without(sample).keys()
            # A GPU without links refuses this function, too: nothing is expected of it then.
            unlinked = {"link_read_bytes", "link_write_bytes", "links_up"} if "NvLinkState" in broken else set()
            unlinked |= {"remap_failed", "remap_pending"} if "rows_remapped" in sample.missing else set()  # one reason
            assert lost <= sample.missing.keys() | unlinked, (broken, lost, sample.missing)
