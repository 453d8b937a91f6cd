"""GPUs of several makers at one look, and those of them that a server takes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from loadgen.errors import TelemetryError
from loadgen.server.gpus.gpu import Gpu, read_gpus
from tests.server.gpu_trees import GIB, add_amd_gpu, add_nvidia_smi

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
