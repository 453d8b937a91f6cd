"""HBM in use and by whom, read from fake trees and from a stand-in for nvidia-smi."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ServerError, TelemetryError
from loadgen.server.process import gpu_memory
from loadgen.server.process.gpu_memory import (
    TOLERANCE_BYTES,
    GpuMemory,
    Holder,
    gpu_level,
    level_now,
    nvidia_gpus,
    nvidia_holders,
    read_gpu_memory,
    still_held,
    wait_back,
)
from tests.server.gpu_trees import (
    GIB,
    add_amd_gpu,
    add_kfd_node,
    add_kfd_process,
    add_nvidia_smi,
    add_process,
    initial_namespace,
    write,
)

MIB = 1024**2


def read(tmp_path: Path) -> list[GpuMemory]:
    return read_gpu_memory(sysfs=tmp_path / "sys", proc=tmp_path / "proc", path=str(tmp_path / "bin"))


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
        GpuMemory("0000:05:00.0", 0, "AMD 0x74a1", 3 * MIB, 192 * GIB),
        GpuMemory(
            "0000:83:00.0",
            1,
            "MI300X",
            150 * GIB,
            192 * GIB,
            (Holder(78, "", 150 * GIB), Holder(77, "VLLM::Worker_TP", 149 * GIB)),
        ),
    ]


@pytest.mark.parametrize("location", [lambda n: 0x0500 | n, lambda n: 0x0500 | n << 28], ids=["function", "high bits"])
def test_partitions_belong_to_their_socket(tmp_path: Path, location: Callable[[int], int]) -> None:
    sysfs = tmp_path / "sys"
    add_amd_gpu(sysfs, 0, 0x05, used=10 * GIB)
    for number in range(8):
        add_kfd_node(sysfs, number + 1, 100 + number, location(number))
    write(sysfs / "devices/platform/amdgpu_xcp_0/modalias", "platform:amdgpu_xcp")
    (sysfs / "class/drm/card1").mkdir()
    (sysfs / "class/drm/card1/device").symlink_to(sysfs / "devices/platform/amdgpu_xcp_0")
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


GPUS = "0, GPU-a, NVIDIA H200, 14, 143771\n1, GPU-b, NVIDIA H200, 70000, 143771\n"
APPS = "900, GPU-b, 1500\n901, GPU-b, [N/A]\n902, GPU-b, 68000\n[Not Found], GPU-b, 3\n903, MIG-x, 5\n"


def test_nvidia_gpus_and_their_holders(tmp_path: Path) -> None:
    add_nvidia_smi(tmp_path / "bin", GPUS, APPS)
    initial_namespace(tmp_path / "proc")
    add_process(tmp_path / "proc", 902, "x", name="VLLM::EngineCor")
    first, second = read(tmp_path)
    assert first == GpuMemory("GPU-a", 0, "NVIDIA H200", 14 * MIB, 143771 * MIB)
    assert second.holders == (
        Holder(902, "VLLM::EngineCor", 68000 * MIB),
        Holder(900, "", 1500 * MIB),
        Holder(901, "", None),
    )


def test_a_gpu_of_which_nothing_is_said_is_left_out() -> None:
    text = (
        "0, GPU-a, NVIDIA GB10, [N/A], [N/A]\n1, GPU-b, A100, 40GB, 5, 100\nNo devices were found\n\n2, GPU-c, X, 0, 0"
    )
    assert nvidia_gpus(text) == [GpuMemory("GPU-b", 1, "A100, 40GB", 5 * MIB, 100 * MIB)]


def test_both_makers_in_one_box(tmp_path: Path) -> None:
    add_amd_gpu(tmp_path / "sys", 0, 5, used=GIB)
    add_nvidia_smi(tmp_path / "bin", GPUS)
    assert [gpu.name for gpu in read(tmp_path)] == ["MI300X", "NVIDIA H200", "NVIDIA H200"]


@pytest.mark.parametrize(("platform", "name"), [("rocm", "MI300X"), ("cuda", "NVIDIA H200")])
def test_the_gpus_of_one_maker(tmp_path: Path, platform: Literal["rocm", "cuda"], name: str) -> None:
    add_amd_gpu(tmp_path / "sys", 0, 5, used=GIB)
    add_nvidia_smi(tmp_path / "bin", GPUS)
    gpus = read_gpu_memory(
        sysfs=tmp_path / "sys", proc=tmp_path / "proc", path=str(tmp_path / "bin"), platform=platform
    )
    assert {gpu.name for gpu in gpus} == {name}


def test_nvidia_smi_that_fails_does_not_hide_amd(tmp_path: Path) -> None:
    add_amd_gpu(tmp_path / "sys", 0, 5, used=GIB)
    add_nvidia_smi(tmp_path / "bin", "NVIDIA-SMI has failed", ending="exit 9")
    assert [gpu.name for gpu in read(tmp_path)] == ["MI300X"]


def test_the_reason_why_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match=r"no AMD GPU with memory counters in .*; nvidia-smi is not on PATH"):
        read(tmp_path)


def test_what_nvidia_smi_says_instead_is_the_reason(tmp_path: Path) -> None:
    add_nvidia_smi(tmp_path / "bin", "\nNVIDIA-SMI has failed\x1b[31m because\nmore\n", ending="exit 9")
    with pytest.raises(TelemetryError, match=r"lists no GPU's memory: NVIDIA-SMI has failed because$"):
        read(tmp_path)


def test_nvidia_smi_that_says_nothing_or_cannot_be_run(tmp_path: Path) -> None:
    add_nvidia_smi(tmp_path / "bin", "")
    with pytest.raises(TelemetryError, match="it says nothing"):
        read(tmp_path)
    (tmp_path / "bin/nvidia-smi").write_text("#!/no/such/shell\n")
    with pytest.raises(TelemetryError, match="nvidia-smi cannot be run: No such file"):
        read(tmp_path)


def test_nvidia_smi_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "_TIMEOUT_S", 0.05)  # the time to wait is no part of what is tested
    add_nvidia_smi(tmp_path / "bin", GPUS, ending="exec /bin/sleep 1000")
    with pytest.raises(TelemetryError, match=r"did not answer within 0\.05 s"):
        read(tmp_path)


@pytest.mark.parametrize(("state", "asked"), [("suspended", False), ("active", True)])
def test_a_sleeping_gpu_is_not_woken(tmp_path: Path, state: str, asked: bool) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    write(device / "vendor", "0x10de")
    write(device / "class", "0x030200")
    write(device / "power/runtime_status", state)
    add_nvidia_smi(tmp_path / "bin", GPUS, ending=f': > "{tmp_path}/asked"')
    if asked:
        assert len(read(tmp_path)) == 2
    else:
        with pytest.raises(TelemetryError, match="suspended"):
            read(tmp_path)
    assert (tmp_path / "asked").exists() == asked


def gpu(used: int, *holders: Holder, id: str = "a") -> GpuMemory:
    return GpuMemory(id, 0, "MI300X", used, 192 * GIB, holders)


OLD = Holder(1, "display", 5)
NEW = Holder(2, "VLLM::Worker", 60 * GIB)


def test_what_came_back_is_not_held() -> None:
    assert still_held([gpu(10)], [gpu(10), gpu(3, id="b")], tolerance_bytes=5) == []


def test_what_did_not_come_back_names_the_new_holders() -> None:
    now = gpu(60 * GIB, OLD, NEW)
    (held,) = still_held([gpu(0, OLD)], [now], tolerance_bytes=GIB)
    assert held == "GPU 0 (MI300X): 60.0 GiB more, held by pid 2 (VLLM::Worker)"


def test_a_holder_that_grew_is_named_and_nobody_is_said() -> None:
    (grown,) = still_held([gpu(5, OLD)], [gpu(99, Holder(1, "", 99))], tolerance_bytes=10)
    assert grown.endswith("0.0 GiB more, held by pid 1")
    (nobody,) = still_held([], [gpu(GIB)], tolerance_bytes=0)
    assert nobody.endswith("1.0 GiB more, held by nobody who can be seen")


amounts = st.integers(0, 10**6)
words = st.text("abcXYZ019 -_.", min_size=1, max_size=12).map(str.strip).filter(bool)


@given(st.lists(st.tuples(st.integers(0, 99), words, words, amounts, st.integers(1, 10**6))))
def test_what_nvidia_smi_writes_is_read_back(rows: list[tuple[int, str, str, int, int]]) -> None:
    text = "".join(", ".join(map(str, row)) + "\n" for row in rows)
    expected = [GpuMemory(uuid, index, name, used * MIB, total * MIB) for index, uuid, name, used, total in rows]
    assert nvidia_gpus(text) == expected


@given(st.lists(st.tuples(st.integers(1, 10**7), words, st.none() | amounts)))
def test_holders_are_read_back(rows: list[tuple[int, str, int | None]]) -> None:
    text = "".join(f"{pid}, {uuid}, {'[N/A]' if used is None else used}\n" for pid, uuid, used in rows)
    found = [(pid, uuid, used) for uuid, held in nvidia_holders(text).items() for pid, used in held]
    assert sorted(map(repr, found)) == sorted(repr((p, u, None if n is None else n * MIB)) for p, u, n in rows)


@given(st.text() | st.text("0123456789, \n[]N/A"))
def test_no_text_breaks_the_parsers(text: str) -> None:
    assert all(gpu.total_bytes > 0 <= gpu.used_bytes for gpu in nvidia_gpus(text))
    assert all(pid >= 0 for held in nvidia_holders(text).values() for pid, _ in held)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "_RELEASE_POLL_S", 0.001)


def reader(*answers: str) -> Callable[[], str]:
    """Gives these answers, the last for ever."""
    left = list(answers)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def unreadable() -> Callable[[], str]:
    raise ServerError("no GPU can be read")


async def test_memory_that_comes_back_is_waited_for() -> None:
    held = await level_now(lambda: reader("GPU 0: 3 GiB by pid 7", "GPU 0: 1 GiB", ""))
    assert await wait_back(held, asyncio.Event()) == "back at its level before the start"


async def test_memory_that_stays_away_is_told_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "RELEASE_WAIT_S", 0.01)
    words = await wait_back(reader("GPU 0: 3 GiB by pid 7"), asyncio.Event())
    assert words.endswith("s after the end of the processes still held: GPU 0: 3 GiB by pid 7")


async def test_a_hurried_stop_looks_once() -> None:
    hurried = asyncio.Event()
    waiting = asyncio.create_task(wait_back(reader("GPU 0: 3 GiB"), hurried))
    await asyncio.sleep(0)
    hurried.set()
    assert "still held: GPU 0: 3 GiB" in await waiting


async def test_what_cannot_be_read_is_not_checked() -> None:
    assert await wait_back(await level_now(unreadable), asyncio.Event()) == "not checked: no GPU can be read"
    assert await wait_back(lambda: str(unreadable()), asyncio.Event()) == "not checked: no GPU can be read"


async def test_the_level_of_the_gpus_is_that_before_the_start() -> None:
    gib = 1024**3
    used = [2 * gib, 60 * gib, 2 * gib + TOLERANCE_BYTES]

    def read() -> list[GpuMemory]:
        now = used.pop(0)
        holders = (Holder(7, "VLLM::Worker", now),) if now > 50 * gib else ()
        return [GpuMemory("a", 0, "MI300X", now, 192 * gib, holders)]

    held = gpu_level(read)
    assert held() == "GPU 0 (MI300X): 58.0 GiB more, held by pid 7 (VLLM::Worker)"
    assert held() == ""
