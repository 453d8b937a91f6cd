"""One sample of the GPUs, by a real child with a stand-in for NVIDIA's library."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import TelemetryError
from loadgen.schema.samples import GpuStatic
from loadgen.telemetry import gpus_now
from loadgen.telemetry.gpus_now import read_gpus, whole_gpus
from loadgen.telemetry.protocol import Opened, Sampled
from loadgen.vendors import AMD, NVIDIA
from tests.server.gpu_trees import write
from tests.server.preflight.boxes import described_box, gpus_of
from tests.telemetry.children import stand_in
from tests.telemetry.test_nvml import library

__all__ = ["library"]
CPX = {"compute_partition": "CPX", "memory_partition": "NPS4"}
KNOWN = {
    "mi210": (4, "gfx90a", 68_702_699_520, None, None, 300.0, 0),
    "mi300x": (8, "gfx942", 206_141_652_992, "SPX", "NPS1", 750.0, 7),
    "mi355x": (8, "gfx950", 309_220_868_096, "SPX", "NPS1", 1400.0, 7),
}


@pytest.mark.parametrize("scenario", ["busy", "mig", "lost-at-start"])
async def test_read_gpus(library: Path, monkeypatch: pytest.MonkeyPatch, scenario: str) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("NVML_STUB", scenario)
    gpus, samples = await read_gpus(NVIDIA)
    assert [gpu.index for gpu in gpus] == [0, 1]
    last = samples[1]
    if scenario != "lost-at-start":
        assert last.hbm_used_bytes and last.power_cap_w == 650
        assert [process.pid for process in last.processes or ()] == [4001]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("os.abort()", "it was killed by SIGABRT"),
        ("wait()", "it sent nothing for 0.5 s"),
        ("opened(); wait()", "it sent nothing for 0.5 s"),
        ("""say('{"type":"Refused","backend":"sim","reason":"no driver"}')""", "no driver"),
    ],
)
async def test_read_gpus_of_a_library_that_hangs_or_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    child = stand_in(tmp_path, "child", body)
    monkeypatch.setattr(gpus_now, "BackendOption", lambda *_: child)
    monkeypatch.setattr(gpus_now, "_OPEN_S", 0.5 if "wait" in body else 10.0)
    monkeypatch.setattr(gpus_now, "_SAMPLE_S", 0.5)
    with pytest.raises(TelemetryError, match=f"no GPU can be read here: {reason}"):
        await read_gpus(AMD)


@pytest.mark.parametrize("name", KNOWN)
def test_gpus_of_the_described_boxes(tmp_path: Path, name: str) -> None:
    now = gpus_of(described_box(tmp_path, name), "rocm")
    assert [gpu.index for gpu in now.gpus] == list(range(KNOWN[name][0]))
    for gpu in now.gpus:
        sample = now.samples[gpu.index]
        modes = (gpu.compute_partition, gpu.memory_partition)
        figures = (len(now.gpus), gpu.arch, gpu.hbm_total_bytes, *modes, sample.power_cap_w, sample.links_up)
        assert figures == KNOWN[name]
        assert (gpu.engine_index, gpu.engine_devices) == (gpu.index, 1)


def test_the_firmware_of_amds_gpus(tmp_path: Path) -> None:
    box = described_box(tmp_path, "mi300x")
    assert {gpu.firmware is None for gpu in gpus_of(box, "rocm").gpus} == {True}
    versions = {"mec": "0x000080b1", "rlc": "0x00000042", "vcn": "0x00000000", "sos": "not reported"}
    for name, version in versions.items():
        write(box.sys / f"class/drm/card1/device/fw_version/{name}_fw_version", version)
    assert gpus_of(box, "rocm").gpus[1].firmware == {"mec": "0x000080b1", "rlc": "0x00000042"}


@pytest.mark.parametrize(
    ("changes", "devices"), [(CPX, 8), ({"compute_partition": "DPX"}, 2), ({"compute_partition": "QPX"}, 4)]
)
def test_partitions_are_devices_of_one_gpu(tmp_path: Path, changes: Mapping[str, Any], devices: int) -> None:
    now = gpus_of(described_box(tmp_path, "mi300x", changes), "rocm")
    assert [gpu.engine_devices for gpu in now.gpus] == [devices] * 8
    assert {now.samples[gpu.index].links_up for gpu in now.gpus} == {7}


def test_dies_are_gpus_of_their_own() -> None:
    dies = tuple(GpuStatic(n, "amd", "MI250", socket="a", partition=n) for n in range(2))
    assert whole_gpus(Opened("amd-sysfs", {}, dies), Sampled(0.0, 0.0, ())).gpus == dies
