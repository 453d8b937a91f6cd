"""Wrapper and library: which pairs are used, and what is said of those that are not."""

import signal
from pathlib import Path

import pytest

from loadgen.telemetry.amd.amdsmi_library import AmdsmiFacts, mismatch
from tests.telemetry.amdsmi_stub.build import build_rocm
from tests.telemetry.amdsmi_stub.probe import environment, probe
from tests.telemetry.amdsmi_stub.scenarios import BUSY_MI300X
from tests.telemetry.children import listen

OWN_WRAPPER = "use the wrapper next to the library, PYTHONPATH=/rocm/share/amd_smi"


def found(wrapper: str, rocm: str = "") -> AmdsmiFacts:
    return AmdsmiFacts(
        wrapper=wrapper, wrapper_path="/packages/amdsmi", library_path="/rocm/lib/libamd_smi.so", rocm=rocm
    )


@pytest.mark.parametrize(
    ("wrapper", "library"),
    [
        ("7.0.2", (26, 0, 2)),
        ("7.0.0", (26, 1, 0)),
        ("7.0.2", (26, 5, 0)),
        ("26.2.1+fc0010cf6a", (26, 2, 1)),
        ("26.0.2", (26, 4, 0)),
        ("25.5.1", (25, 5, 1)),
        ("27.0.0", (27, 0, 3)),
        ("7.14.0", (26, 5, 0)),
    ],
)
def test_pairs_that_fit(wrapper: str, library: tuple[int, int, int]) -> None:
    assert mismatch(found(wrapper), library) is None


@pytest.mark.parametrize(
    ("wrapper", "rocm", "library", "message"),
    [
        (
            "7.0.2",
            "6.4.1",
            (25, 4, 0),
            f"amdsmi 7.0.2 needs ROCm 7.0 to 7.2, found library 25.4.0 of ROCm 6.4.1: {OWN_WRAPPER}",
        ),
        ("7.0.2", "", (27, 0, 0), f"amdsmi 7.0.2 needs ROCm 7.0 to 7.2, found library 27.0.0: {OWN_WRAPPER}"),
        (
            "27.0.0",
            "10.1.0",
            (27, 1, 0),
            f"amdsmi 27.0.0 needs library 27.0, found library 27.1.0 of ROCm 10.1.0: {OWN_WRAPPER}",
        ),
        (
            "9.9.9",
            "",
            (26, 0, 0),
            f"amdsmi 9.9.9 fits no library known, found library 26.0.0: {OWN_WRAPPER}",
        ),
        (
            "",
            "",
            (26, 0, 0),
            f"amdsmi of unknown version fits no library known, found library 26.0.0: {OWN_WRAPPER}",
        ),
    ],
)
def test_pairs_that_do_not_fit(wrapper: str, rocm: str, library: tuple[int, int, int], message: str) -> None:
    assert mismatch(found(wrapper, rocm), library) == message


def test_a_library_without_a_symbol_is_refused_with_its_name(tmp_path: Path) -> None:
    older = build_rocm(tmp_path / "rocm", version="6.4.1", without="amdsmi_get_cpu_affinity_with_scope")
    with probe(older, tmp_path, BUSY_MI300X) as child:
        assert child.refused == (
            "amdsmi 7.0.2 needs ROCm 7.0 to 7.2, found 6.4.1: "
            "the library has no amdsmi_get_cpu_affinity_with_scope; "
            f"use the wrapper next to the library, PYTHONPATH={older}/share/amd_smi"
        )


def test_a_library_of_another_major_version_is_refused(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, BUSY_MI300X + "* library_major 27\n") as child:
        assert child.refused == (
            f"amdsmi 7.0.2 needs ROCm 7.0 to 7.2, found library 27.0.2 of ROCm 7.0.2: "
            f"use the wrapper next to the library, PYTHONPATH={rocm}/share/amd_smi"
        )


def test_missing_library_is_reported_in_one_line(tmp_path: Path) -> None:
    with probe(tmp_path / "nowhere", tmp_path, BUSY_MI300X) as child:
        assert child.refused == (
            f"amdsmi 7.0.2 finds no libamd_smi.so (in {tmp_path}/nowhere/lib and by the dynamic linker): "
            "install amd-smi-lib, or set ROCM_PATH"
        )
        rest, errors = child.child.communicate()
        assert rest == b""
        assert b"Unable to find libamd_smi.so" in errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "* init_status 34",
            "amdsmi_init of amdsmi 7.0.2 says DRIVER_NOT_LOADED: "
            "load the amdgpu driver; in a container, pass /dev/kfd and /dev/dri",
        ),
        ("* init_status 10", "amdsmi_init of amdsmi 7.0.2 says NO_PERM: add this user to the groups render and video"),
        ("* init_status 30", "amdsmi_init of amdsmi 7.0.2 says BUSY: another program holds the devices; try again"),
        ("* init_status 18", "amdsmi_init of amdsmi 7.0.2 says INIT_ERROR"),
        ("* gpus 0", "amdsmi 7.0.2 lists no GPU: are /dev/kfd and /dev/dri here, and may this user read them?"),
        ("* fail.amdsmi_get_socket_handles 5", "amdsmi 7.0.2 cannot list the GPUs: FAIL_LOAD_SYMBOL"),
        (
            "* fail.amdsmi_get_gpu_vram_usage 2\n* fail.amdsmi_get_gpu_metrics_info 10",
            "None of 8 GPUs reports memory or activity: NOT_SUPPORTED, NO_PERM",
        ),
    ],
)
def test_a_library_that_cannot_measure_is_refused_with_what_it_said(
    rocm: Path, tmp_path: Path, change: str, message: str
) -> None:
    with probe(rocm, tmp_path, f"{BUSY_MI300X}{change}\n") as child:
        assert child.refused == message
        assert child.child.wait() == 1


def test_a_library_that_hangs_ends_when_its_process_is_killed(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, BUSY_MI300X) as child:
        child.becomes(BUSY_MI300X + "* hang 1\n")
        child.ask()
        child.child.terminate()
        assert child.child.wait() == -signal.SIGTERM


def test_oversized_structure_ends_only_its_process(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, BUSY_MI300X) as child:
        child.becomes(BUSY_MI300X + f"* grown_bytes {64 * 1024**2}\n")
        child.ask()
        assert child.read() is None
        assert child.child.wait() in (-signal.SIGABRT, -signal.SIGSEGV)


def test_the_telemetry_child_serves_the_backend(rocm: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario"
    scenario.write_text(BUSY_MI300X)
    env = environment(rocm, scenario, {"RSMI_MUTEX_THREAD_ONLY": "1"})
    heard = listen("--backend", "amdsmi", env=env)
    assert heard.opened is not None
    assert len(heard.opened.gpus) == 8
    assert [len(sampled.gpus) for sampled in heard.samples] == [8, 8]
    assert (heard.samples[0].gpus[7].power_cap_w, heard.status) == (750.0, 0)


def test_the_telemetry_child_refuses_without_a_library(tmp_path: Path) -> None:
    heard = listen("--backend", "amdsmi", env={"ROCM_PATH": str(tmp_path)})
    assert heard.refused is not None
    assert heard.refused.reason.startswith("amdsmi 7.0.2 finds no libamd_smi.so")
