"""Limits and settings of the operating system."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.schema.finding import Severity
from loadgen.vendors import Platform
from tests.scripts import executable
from tests.server.gpu_trees import MIB, add_amd_gpu, write
from tests.server.preflight.boxes import add_h200, check, healthy_box, ids, only, profile_of


def test_a_governor_that_waits_for_load(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    write(box.sys / "devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave")
    finding = only(box, profile_of(tmp_path))
    assert (finding.id, finding.severity) == ("cpu-governor", "warns")
    assert finding.seen == "1 of 2 CPUs have the governor powersave"


def test_a_processor_that_steers_itself_to_performance(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    folder = box.sys / "devices/system/cpu/cpu1/cpufreq"
    write(folder / "scaling_governor", "powersave")
    write(folder / "energy_performance_preference", "performance")
    assert check(box, profile_of(tmp_path)) == []


@pytest.mark.parametrize(("file", "value"), [("cpufreq/boost", "0"), ("intel_pstate/no_turbo", "1")])
def test_a_processor_that_may_not_boost(tmp_path: Path, file: str, value: str) -> None:
    box = healthy_box(tmp_path)
    (box.sys / "devices/system/cpu/cpufreq/boost").unlink()
    assert check(box, profile_of(tmp_path)) == []  # unknown, as in most virtual machines
    write(box.sys / "devices/system/cpu" / file, value)
    assert only(box, profile_of(tmp_path)).id == "boost-off"


@pytest.mark.parametrize("known", [True, None])
def test_a_clock_that_is_kept_or_unknown(tmp_path: Path, known: bool | None) -> None:
    assert check(healthy_box(tmp_path, clock_synchronised=known), profile_of(tmp_path)) == []


def test_a_clock_that_nothing_keeps(tmp_path: Path) -> None:
    finding = only(healthy_box(tmp_path, clock_synchronised=False), profile_of(tmp_path))
    assert (finding.id, finding.severity) == ("clock-unsynchronised", "info")


@pytest.mark.parametrize(
    ("platform", "value", "severity"), [("rocm", "1", "warns"), ("rocm", "2", "warns"), ("cpu", "1", "info")]
)
def test_numa_balancing(tmp_path: Path, platform: Platform, value: str, severity: Severity) -> None:
    box = healthy_box(tmp_path)
    add_amd_gpu(box.sys, 0, 5, used=0)
    write(box.proc / "sys/kernel/numa_balancing", value)
    finding = only(box, profile_of(tmp_path), platform)
    assert (finding.id, finding.severity, finding.seen) == (
        "numa-balancing",
        severity,
        f"kernel.numa_balancing is {value}",
    )
    assert finding.fix == "sudo sh -c 'echo 0 > /proc/sys/kernel/numa_balancing'"
    assert ("hang" in finding.why) == bool(finding.source) == (platform == "rocm")


def test_a_kernel_without_these_settings(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    (box.proc / "sys/kernel/numa_balancing").unlink()
    (box.sys / "kernel/mm/transparent_hugepage/enabled").unlink()
    for path in box.sys.glob("devices/system/cpu/*/cpufreq/*"):
        path.unlink()
    assert check(box, profile_of(tmp_path)) == []


@pytest.mark.parametrize(("platform", "severity"), [("rocm", "info"), ("cpu", "warns")])
def test_huge_pages_switched_off(tmp_path: Path, platform: Platform, severity: Severity) -> None:
    box = healthy_box(tmp_path)
    add_amd_gpu(box.sys, 0, 5, used=0)
    write(box.sys / "kernel/mm/transparent_hugepage/enabled", "always madvise [never]")
    finding = only(box, profile_of(tmp_path), platform)
    assert (finding.id, finding.severity) == ("huge-pages", severity)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("engine", ["vllm", "simulator"])
def test_a_port_that_somebody_has(tmp_path: Path, taken: int, engine: str) -> None:
    finding = only(healthy_box(tmp_path), profile_of(tmp_path, engine=engine, port=taken))
    assert (finding.id, finding.severity) == ("port-taken", "blocks")
    assert finding.seen.startswith(f"port {taken} on 127.0.0.1 is taken by pid {os.getpid()} (")
    assert finding.fix == "stop it, or set server.port = 0 to take a free port"


def test_the_port_of_a_second_instance(tmp_path: Path, taken: int) -> None:
    findings = check(healthy_box(tmp_path), profile_of(tmp_path, port=taken - 1, instances=2))
    assert f"port {taken} on" in " ".join(finding.seen for finding in findings)


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    finding = only(healthy_box(tmp_path), profile_of(tmp_path, host="192.0.2.1", port=8000))
    assert (finding.seen, finding.fix) == ("server.host = '192.0.2.1': not an address of this machine", "")


@pytest.mark.parametrize(
    ("platform", "gone", "names"),
    [("rocm", "kfd", "/dev/kfd"), ("rocm", "dri/renderD128", "/dev/dri/renderD*"), ("cuda", "nvidia0", "/dev/nvidia*")],
)
def test_a_device_that_is_not_there(tmp_path: Path, platform: Platform, gone: str, names: str) -> None:
    box = healthy_box(tmp_path)
    add_amd_gpu(box.sys, 0, 5, used=0)
    add_h200(box, MIB)
    (box.dev / gone).unlink()
    finding = only(box, profile_of(tmp_path), platform)
    assert (finding.id, finding.severity, finding.seen) == ("no-gpu-device", "blocks", f"there is no {names}")


def test_instances_that_would_share_a_gpu(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    add_amd_gpu(box.sys, 0, 5, used=0)
    assert "instances-share-gpus" in ids(box, profile_of(tmp_path, instances=2), "rocm")
    assert "instances-share-gpus" not in ids(box, profile_of(tmp_path, instances=2, platform="rocm"), "rocm")
    assert "instances-share-gpus" not in ids(box, profile_of(tmp_path, instances=2), "cpu")


@pytest.mark.parametrize(("denied", "severity"), [({"renderD128"}, "warns"), ({"renderD128", "renderD129"}, "blocks")])
def test_a_device_of_another_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: set[str], severity: Severity
) -> None:
    box = healthy_box(tmp_path)
    add_amd_gpu(box.sys, 0, 5, used=0)
    (box.dev / "dri/renderD129").touch()
    # Tests may run as root, who may open everything.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name not in denied)
    finding = only(box, profile_of(tmp_path), "rocm")
    assert (finding.id, finding.severity) == ("gpu-device-denied", severity)
    assert finding.seen == f"this user may not use {', '.join(sorted(denied))} (/dev/dri/renderD*)"
    assert finding.fix == "sudo usermod -aG render,video $USER, then log in again"


def test_linux_inside_windows_has_one_device_for_all(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    add_h200(box, MIB)
    (box.dev / "nvidia0").unlink()
    (box.dev / "dxg").touch()
    assert check(box, profile_of(tmp_path), "cuda") == []


def docker(tmp_path: Path, *, model: str = "/in/the/image", env: Any = None, args: Any = None, **table: Any) -> Any:
    table = {"image": "i", "executable": "true", "ipc": "host"} | table
    return profile_of(tmp_path, engine="docker", model=model, docker=table, env=env or {}, args=args or {})


def test_a_container_that_can_be_started(tmp_path: Path) -> None:
    profile = docker(tmp_path, devices=["/dev/kfd:/dev/kfd:rw", "/dev/dri", "nvidia.com/gpu=all"])
    assert check(healthy_box(tmp_path), profile) == []


def test_a_container_with_a_device_that_is_not_there(tmp_path: Path) -> None:
    finding = only(healthy_box(tmp_path), docker(tmp_path, devices=["/dev/kfd", "/dev/neuron0"]))
    assert (finding.id, finding.severity) == ("no-container-device", "blocks")
    assert "/dev/neuron0" in finding.seen


@pytest.mark.parametrize(("toolkit", "expected"), [(False, ["no-container-device"]), (True, [])])
def test_the_gpus_flag_on_a_box_of_amd(tmp_path: Path, toolkit: bool, expected: list[str]) -> None:
    box = healthy_box(tmp_path)
    (box.dev / "nvidia0").unlink()
    if toolkit:
        executable(tmp_path / "bin/amd-container-runtime", "#!/bin/sh")
    assert ids(box, docker(tmp_path, gpus="all")) == expected


def test_nothing_that_runs_containers(tmp_path: Path) -> None:
    finding = only(healthy_box(tmp_path), docker(tmp_path, executable="no-such-docker"))
    assert (finding.id, finding.severity) == ("no-container-program", "blocks")
    assert finding.seen == "server.docker.executable = 'no-such-docker': not found on PATH"
    assert finding.fix.startswith("install docker or podman")


@pytest.mark.parametrize(
    ("table", "devices", "severity"),
    [
        ({"ipc": None}, 1, "warns"),
        ({"ipc": None}, 8, "blocks"),
        ({"ipc": "private"}, 8, "blocks"),
        ({"ipc": None, "shm_size": "16g"}, 8, None),
        ({"ipc": None, "shm_size": "512mb"}, 8, "warns"),
        ({"ipc": None, "shm_size": "64m"}, 8, "blocks"),
        ({"ipc": None, "shm_size": "64m"}, 1, None),
        ({"ipc": None, "shm_size": "plenty"}, 8, None),
        ({"ipc": "container:other"}, 8, None),
        ({"ipc": "host"}, 8, None),
    ],
)
def test_shared_memory_of_a_container(
    tmp_path: Path, table: dict[str, Any], devices: int, severity: Severity | None
) -> None:
    profile = docker(tmp_path, args={"tensor-parallel-size": devices}, **table)
    findings = check(healthy_box(tmp_path), profile)
    assert [(found.id, found.severity) for found in findings] == ([("shared-memory", severity)] if severity else [])


@pytest.mark.parametrize(
    ("free_mib", "devices", "severity"), [(100, 2, "blocks"), (1000, 2, "warns"), (1024, 2, None), (100, 1, None)]
)
def test_shared_memory_of_the_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, devices: int, severity: Severity | None
) -> None:
    box, real = healthy_box(tmp_path), shutil.disk_usage
    # No test makes a small file system.
    small = real(tmp_path)._replace(free=free_mib * 1024**2)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: small if path == box.dev / "shm" else real(path))
    findings = check(box, profile_of(tmp_path, args={"tensor-parallel-size": devices}))
    assert [(found.id, found.severity) for found in findings] == ([("shared-memory", severity)] if severity else [])


def test_a_box_without_shared_memory(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    shutil.rmtree(box.dev / "shm")
    assert ids(box, profile_of(tmp_path, args={"tensor-parallel-size": 2})) == ["not-checked"]
