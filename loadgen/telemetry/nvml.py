"""NVIDIA GPUs through the driver's own library, with the nvidia-ml-py package.

Units of the library: mW, mJ, MHz, KiB, ns of violation. With MIG the parent is a socket's partition 0 and carries its
power, clocks and temperatures; memory belongs to the instances. Invariants: no call that measures over a window of its
own (PCIe throughput takes 20 ms each); a call that fails costs its field, and the reason says why.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import pynvml

from loadgen.errors import TelemetryError
from loadgen.telemetry.backend import Backend
from loadgen.telemetry.counters import Point, rate
from loadgen.telemetry.nvml_devices import NvmlDevice, list_devices, reason_of
from loadgen.telemetry.sample import GpuProcess, GpuSample, Opened
from loadgen.telemetry.sanitize import Missing, Reading, amount, number, percent, scaled, split

_ALL_LINKS = 0xFFFFFFFF
"""As the scope of a field: the sum over all NVLinks."""
_GTS_BY_GENERATION = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_OF_THE_SOCKET = Missing("belongs to the whole GPU, not to a MIG instance")
_OF_THE_INSTANCES = Missing("belongs to the MIG instances")
# The cumulative counters, and the bits that say what holds at the moment.
_VIOLATIONS = {"power": pynvml.NVML_PERF_POLICY_POWER, "thermal": pynvml.NVML_PERF_POLICY_THERMAL}
_REASONS = {
    "power": pynvml.nvmlClocksEventReasonSwPowerCap,
    "thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
    "hardware": pynvml.nvmlClocksEventReasonHwSlowdown,
}


@dataclass(slots=True)
class _Watched:
    """A device and the violation counters at the last look, for the share since then."""

    device: NvmlDevice
    violations: dict[str, Point] = field(default_factory=dict)
