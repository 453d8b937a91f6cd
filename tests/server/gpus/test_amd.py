"""AMD's GPUs, read from fake trees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.server.gpus.amd import read_amd
from loadgen.server.gpus.gpu import Gpu, Holder
from tests.server.gpu_trees import (
    GIB,
    MIB,
    add_amd_card,
    add_amd_gpu,
    add_kfd_node,
    add_kfd_process,
    add_process,
    add_xcp_card,
    initial_namespace,
    write,
)


def read(tmp_path: Path) -> list[Gpu]:
    return read_amd(tmp_path / "sys", tmp_path / "proc", None)


def test_amd_gpus_are_numbered_as_the_compute_driver_does_and_name_their_holders(tmp_path: Path) -> None:
    sysfs, proc = tmp_path / "sys", tmp_path / "proc"
    add_amd_gpu(sysfs, 1, 0x83, used=150 * GIB)
    add_amd_gpu(sysfs, 10, 0x05, used=3 * MIB, name="")
    add_kfd_node(sysfs, 0, 0)  # a processor
    add_kfd_node(sysfs, 3, 30, 0x8300)
    add_kfd_node(sysfs, 2, 20, 0x0500)
    add_kfd_process(sysfs, 77, {20: 0, 30: 149 * GIB})
    add_kfd_process(sysfs, 78, {30: 150 * GIB})
    initial_namespace(proc)
    add_process(proc, 77, "VLLM::Worker_TP0", name="VLLM::Worker_TP")
    assert read(tmp_path) == [
        Gpu(id="0000:05:00.0", index=0, name="AMD 0x74a1", used_bytes=3 * MIB, hbm_bytes=192 * GIB, links_up=0),
        Gpu(
            id="0000:83:00.0",
            index=1,
            name="MI300X",
            used_bytes=150 * GIB,
            hbm_bytes=192 * GIB,
            links_up=0,
            holders=(Holder(78, "", 150 * GIB), Holder(77, "VLLM::Worker_TP", 149 * GIB)),
        ),
    ]


@pytest.mark.parametrize("location", [lambda n: 0x0500 | n, lambda n: 0x0500 | n << 28], ids=["function", "high bits"])
def test_partitions_belong_to_their_socket(tmp_path: Path, location: Callable[[int], int]) -> None:
    sysfs = tmp_path / "sys"
    add_amd_gpu(sysfs, 0, 0x05, used=10 * GIB)
    for number in range(8):
        add_kfd_node(sysfs, number + 1, 100 + number, location(number))
    add_xcp_card(sysfs, 1)
    add_kfd_process(sysfs, 5, {101: 4 * GIB, 107: 2 * GIB})
    (gpu,) = read(tmp_path)
    assert (gpu.devices, gpu.used_bytes, gpu.holders) == (8, 10 * GIB, (Holder(5, "", 6 * GIB),))


def test_in_a_container_the_pid_of_the_host_gets_no_name_of_ours(tmp_path: Path) -> None:
    add_amd_gpu(tmp_path / "sys", 0, 5, used=GIB)
    add_kfd_node(tmp_path / "sys", 1, 7, 0x0500)
    add_kfd_process(tmp_path / "sys", 42, {7: GIB})
    initial_namespace(tmp_path / "proc", 4026532000)
    add_process(tmp_path / "proc", 42, "innocent", name="innocent")
    assert read(tmp_path)[0].holders == (Holder(42, "", GIB),)


def test_files_that_are_no_numbers_leave_a_card_out(tmp_path: Path) -> None:
    add_amd_gpu(tmp_path / "sys", 0, 5, used=GIB)
    add_amd_gpu(tmp_path / "sys", 1, 6, used=GIB)
    write(tmp_path / "sys/devices/pci0000:00/0000:05:00.0/mem_info_vram_used", "N/A")
    write(tmp_path / "sys/class/kfd/kfd/topology/nodes/1/gpu_id", "9")
    write(tmp_path / "sys/class/kfd/kfd/topology/nodes/1/properties", "location_id\nnonsense")
    assert [gpu.id for gpu in read(tmp_path)] == ["0000:06:00.0"]


@pytest.mark.parametrize(
    ("version", "arch"),
    [("90402", "gfx942"), ("90010", "gfx90a"), ("90500", "gfx950"), ("110501", "gfx1151"), ("0", None), ("x", None)],
)
def test_the_architecture_as_the_compiler_calls_it(tmp_path: Path, version: str, arch: str | None) -> None:
    add_amd_gpu(tmp_path / "sys", 0, 5, used=GIB)
    add_kfd_node(tmp_path / "sys", 1, 7, 0x0500)
    properties = tmp_path / "sys/class/kfd/kfd/topology/nodes/1/properties"
    properties.write_text(f"{properties.read_text()}gfx_target_version {version}\n")
    assert read(tmp_path)[0].arch == arch


def test_a_gpu_outside_of_the_hive_is_seen_beside_its_siblings(tmp_path: Path) -> None:
    for number in range(1, 4):
        add_amd_gpu(tmp_path / "sys", number, number, used=GIB)
        add_kfd_node(tmp_path / "sys", number, number, number << 8, links={1: [2], 2: [1], 3: []}[number])
    assert [(gpu.links_up, gpu.links_expected) for gpu in read(tmp_path)] == [(1, 1), (1, 1), (0, 1)]


def test_the_power_cap_of_a_sleeping_gpu_is_not_asked_for(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"used": 0, "vram_bytes": GIB, "power_cap_w": 500, "power_cap_default_w": 750}
    add_amd_card(tmp_path / "sys", 0, "0000:05:00.0", device="0x74a1", **sizes)
    assert [(gpu.power_cap_w, gpu.power_cap_default_w) for gpu in read(tmp_path)] == [(500, 750)]
    write(tmp_path / "sys/devices/pci0000:00/0000:05:00.0/power/runtime_status", "suspended")
    assert [(gpu.power_cap_w, gpu.power_cap_default_w) for gpu in read(tmp_path)] == [(None, None)]


@given(st.text() | st.text("0123456789 \n").map(lambda text: f"location_id {text}\ngfx_target_version {text}"))
def test_no_text_of_the_kernel_breaks_it(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("any")
    add_amd_gpu(folder / "sys", 0, 5, used=GIB)
    for name in ("gpu_id", "properties", "io_links/0/properties"):
        write(folder / "sys/class/kfd/kfd/topology/nodes/1" / name, text)
    assert [gpu.hbm_bytes for gpu in read(folder)] == [192 * GIB]
