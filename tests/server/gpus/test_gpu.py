"""GPUs of several makers at one look, and those of them that a server takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from loadgen.errors import TelemetryError
from loadgen.server.gpus.gpu import Gpu, read_gpus
from tests.server.gpu_trees import GIB, MIB, add_amd_gpu, add_nvidia_smi
from tests.server.preflight.boxes import DESCRIBED, described_box

GPUS = "0, GPU-a, NVIDIA H200, 14, 143771\n1, GPU-b, NVIDIA H200, 70000, 143771\n"


def read(tmp_path: Path) -> list[Gpu]:
    return read_gpus(sysfs=tmp_path / "sys", proc=tmp_path / "proc", path=str(tmp_path / "bin"))


def test_both_makers_in_one_box(tmp_path: Path) -> None:
    add_amd_gpu(tmp_path / "sys", 0, 5, used=GIB)
    add_nvidia_smi(tmp_path / "bin", GPUS)
    assert [gpu.name for gpu in read(tmp_path)] == ["MI300X", "NVIDIA H200", "NVIDIA H200"]


@pytest.mark.parametrize(("platform", "name"), [("rocm", "MI300X"), ("cuda", "NVIDIA H200")])
def test_the_gpus_of_one_maker(tmp_path: Path, platform: Literal["rocm", "cuda"], name: str) -> None:
    add_amd_gpu(tmp_path / "sys", 0, 5, used=GIB)
    add_nvidia_smi(tmp_path / "bin", GPUS)
    gpus = read_gpus(sysfs=tmp_path / "sys", proc=tmp_path / "proc", path=str(tmp_path / "bin"), platform=platform)
    assert {gpu.name for gpu in gpus} == {name}


def test_nvidia_smi_that_fails_does_not_hide_amd(tmp_path: Path) -> None:
    add_amd_gpu(tmp_path / "sys", 0, 5, used=GIB)
    add_nvidia_smi(tmp_path / "bin", "NVIDIA-SMI has failed", ending="exit 9")
    assert [gpu.name for gpu in read(tmp_path)] == ["MI300X"]


def test_the_reason_why_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match=r"no AMD GPU with memory counters in .*; nvidia-smi is not on PATH"):
        read(tmp_path)


def described(tmp_path: Path, name: str, **changes: Any) -> tuple[Gpu, ...]:
    box = described_box(tmp_path, name, changes)
    return tuple(read_gpus(sysfs=box.sys, proc=box.proc, path=box.environ["PATH"]))


KNOWN = {
    "mi210": (4, "gfx90a", 68_702_699_520, None, None, 300.0, 0),
    "mi300x": (8, "gfx942", 206_141_652_992, "SPX", "NPS1", 750.0, 7),
    "mi355x": (8, "gfx950", 309_220_868_096, "SPX", "NPS1", 1400.0, 7),
    "h100": (8, "sm_90", 81_559 * MIB, None, None, 700.0, 18),
    "b200": (8, "sm_100", 183_359 * MIB, None, None, 1000.0, 18),
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_the_described_boxes_are_read_as_they_are(tmp_path: Path, name: str) -> None:
    gpus = described(tmp_path, name)
    assert [gpu.index for gpu in gpus] == list(range(KNOWN[name][0]))
    for gpu in gpus:
        modes = (gpu.compute_partition, gpu.memory_partition)
        assert (len(gpus), gpu.arch, gpu.hbm_bytes, *modes, gpu.power_cap_w, gpu.links_up) == KNOWN[name]
        assert (gpu.devices, gpu.power_cap_default_w) == (1, gpu.power_cap_w)
        assert gpu.links_expected == (gpu.links_up or None)


@pytest.mark.parametrize(("compute", "memory"), [("CPX", "NPS1"), ("CPX", "NPS4"), ("DPX", "NPS1"), ("QPX", "NPS4")])
def test_partitions_are_devices_of_one_gpu(tmp_path: Path, compute: str, memory: str) -> None:
    gpus = described(tmp_path, "mi300x", compute_partition=compute, memory_partition=memory)
    assert len(gpus) == 8
    devices = {"DPX": 2, "QPX": 4, "CPX": 8}[compute]
    for gpu in gpus:
        assert (gpu.devices, gpu.compute_partition, gpu.memory_partition) == (devices, compute, memory)
        assert (gpu.hbm_bytes, gpu.links_up, gpu.arch) == (206_141_652_992, 7, "gfx942")
