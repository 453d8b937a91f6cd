"""What NVML said of a real H100 (driver 580.159.04) under eight known loads, read by `loadgen.telemetry`.

h100.json has five samples, half a second apart, of each load: `idle`, `compute` (bf16 matrix products of 8192),
`copy` (device to device), `gemv` (a matrix that fits no cache, times a vector), `tiny` (kernels of 64x64, launched one
by one), `tiny_graph` (the same in a CUDA graph), `one_sm` (one block that spins), `part` (`compute`, with pauses).
Beside them is what the load itself achieved: TFLOP/s, and TB/s read and written.
"""

from functools import cache
from pathlib import Path

import msgspec
import pytest

from loadgen.schema.samples import GpuSample, GpuStatic


class Phase(msgspec.Struct, frozen=True):
    name: str
    tflops: float
    tb_per_s: float
    samples: list[GpuSample]

    def mean(self, column: str) -> float:
        values: list[float] = [getattr(sample, column) for sample in self.samples]
        return sum(values) / len(values)


class Capture(msgspec.Struct, frozen=True):
    meta: dict[str, str]
    gpu: GpuStatic
    phases: list[Phase]


@cache
def capture() -> Capture:
    return msgspec.json.decode(Path(__file__).with_name("h100.json").read_bytes(), type=Capture)


def phase(name: str) -> Phase:
    (found,) = (phase for phase in capture().phases if phase.name == name)
    return found


@pytest.mark.parametrize("phase", capture().phases, ids=lambda phase: phase.name)
def test_the_energy_counter_is_the_mean_power(phase: Phase) -> None:
    first, last = phase.samples[0], phase.samples[-1]
    assert first.energy_j is not None
    assert last.energy_j is not None
    power_w = (last.energy_j - first.energy_j) / (last.t_s - first.t_s)
    assert power_w == pytest.approx(phase.mean("power_w"), rel=0.03)


@pytest.mark.parametrize("name", ["compute", "copy", "gemv", "tiny_graph", "one_sm"])
def test_activity_is_that_some_kernel_ran(name: str) -> None:
    """It says nothing of how much was computed: a single block is as active as a matrix product."""
    assert phase(name).mean("gfx_percent") >= 98


def test_only_the_memorys_rate_tells_what_is_moved() -> None:
    moving = {phase.name for phase in capture().phases if phase.mean("dram_percent") > 50}
    assert moving == {phase.name for phase in capture().phases if phase.tb_per_s > 1}


def test_only_what_reaches_the_cap_is_throttled_by_power() -> None:
    cap_w = capture().gpu.power_cap_default_w
    assert cap_w is not None
    for phase in capture().phases:
        throttled = [(sample.throttle_percent or {})["power"] for sample in phase.samples]
        assert (min(throttled) > 50) == (phase.mean("power_w") > 0.95 * cap_w), phase.name
