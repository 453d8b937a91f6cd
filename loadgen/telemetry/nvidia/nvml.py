"""NVIDIA GPUs through the driver's own library, with the nvidia-ml-py package.

Units of the library: mW, mJ, MHz, KiB, ns of violation. With MIG the parent is a socket's partition 0 and carries its
power, clocks and temperatures; memory belongs to the instances. Invariants: no call that measures over a window of its
own (PCIe throughput takes 20 ms each); no field id whose number changed between drivers; a call that fails costs its
field, and the reason says why.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import pynvml

from loadgen.errors import TelemetryError
from loadgen.metrics.samples import GpuProcess, GpuSample, Reading, rate
from loadgen.telemetry.backend import Backend
from loadgen.telemetry.nvidia.nvml_devices import (
    GTS_BY_GENERATION,
    NvmlDevice,
    list_devices,
    memory_of,
    part,
    read,
    reason_of,
)
from loadgen.telemetry.sample import Opened
from loadgen.telemetry.sanitize import Missing, amount, divided, number, percent, split, text

_ALL_LINKS = 0xFFFFFFFF  # as the scope of a field: the sum over all NVLinks
_FIELDS = {
    "temperature_memory_c": pynvml.NVML_FI_DEV_MEMORY_TEMP,
    "link_read_bytes": (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
    "link_write_bytes": (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
}
_VALUE_BY_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
# Cumulative counters, and bits that say what holds at the moment for what has none.
_VIOLATIONS = {"power": pynvml.NVML_PERF_POLICY_POWER, "thermal": pynvml.NVML_PERF_POLICY_THERMAL}
_EVENT_BITS = {
    "power": pynvml.nvmlClocksEventReasonSwPowerCap,
    "thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
_OF_THE_INSTANCES = Missing("belongs to the MIG instances")
_NS_PER_S_IN_PERCENT = 1e-7


@dataclass(slots=True)
class _Watched:
    """A device, and its violation counters (ns) at the last look."""

    device: NvmlDevice
    violations: dict[str, Reading] = field(default_factory=dict)


def open_nvml() -> Backend:
    """Open the library and list its devices; raises `TelemetryError` with the reason if nothing can be measured."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise TelemetryError(reason_of(error)) from None
    watched = [_Watched(device) for device in list_devices()]

    def sample(slow: bool, processes: bool) -> tuple[GpuSample, ...]:
        return tuple(_look(each, slow=slow, processes=processes) for each in watched)

    opened = Opened(backend="nvml", meta=_meta(), gpus=tuple(each.device.static for each in watched))
    return Backend(opened=opened, sample=sample, close=_close)


def _close() -> None:
    with contextlib.suppress(pynvml.NVMLError):  # a driver that is gone needs no goodbye
        pynvml.nvmlShutdown()


def _meta() -> dict[str, Any]:
    cuda = read(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return {
        "wrapper": importlib.metadata.version("nvidia-ml-py"),
        "library": text(read(pynvml.nvmlSystemGetNVMLVersion)),
        "driver": text(read(pynvml.nvmlSystemGetDriverVersion)),
        "cuda": None if isinstance(cuda, Missing) else f"{cuda // 1000}.{cuda % 1000 // 10}",
    }


def _look(watched: _Watched, *, slow: bool, processes: bool) -> GpuSample:
    device = watched.device
    if device.handle is None:
        return GpuSample(
            device.static.index, time.monotonic(), missing={"power_w": device.lost, "gfx_percent": device.lost}
        )
    used = _OF_THE_INSTANCES if device.split else amount(part(memory_of(device.handle), "used"))
    readings: dict[str, Any] = {"hbm_used_bytes": used}
    if not device.instance:
        readings |= _fast(device.handle) | _fields(device) | {"throttle_percent": _throttled(watched)}
    if slow and not device.instance:
        readings |= _slow(device)
    if processes and not device.split:
        readings["processes"] = _processes(device.handle)
    values, missing = split(readings)
    return GpuSample(device.static.index, time.monotonic(), **values, missing=missing)


def _fast(handle: Any) -> dict[str, Any]:  # noqa: ANN401 - a handle of the library
    utilization = read(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return {
        "gfx_percent": percent(part(utilization, "gpu")),
        "memory_percent": percent(part(utilization, "memory")),
        "power_w": divided(read(pynvml.nvmlDeviceGetPowerUsage, handle), 1000),
        "temperature_hotspot_c": number(read(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)),
        "gfx_clock_mhz": number(read(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)),
        "memory_clock_mhz": number(read(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM)),
        "energy_j": divided(read(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle), 1000),
    }


def _fields(device: NvmlDevice) -> dict[str, Any]:
    """What has no function of its own, in one call."""
    wanted = _FIELDS if device.links else {"temperature_memory_c": _FIELDS["temperature_memory_c"]}
    values = read(pynvml.nvmlDeviceGetFieldValues, device.handle, list(wanted.values()))
    if isinstance(values, Missing):
        return dict.fromkeys(wanted, values)
    found = {name: _value(value) for name, value in zip(wanted, values, strict=True)}
    return {name: amount(raw, 1024) if name.startswith("link") else number(raw) for name, raw in found.items()}


def _value(value: Any) -> object:  # noqa: ANN401 - a struct of the library
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        return Missing(reason_of(pynvml.NVMLError(value.nvmlReturn)))
    if value.valueType >= len(_VALUE_BY_TYPE):
        return Missing(f"of an unknown type ({value.valueType})")
    raw: object = getattr(value.value, _VALUE_BY_TYPE[value.valueType])
    return raw


def _throttled(watched: _Watched) -> dict[str, float] | Missing:
    """The share of the time since the last look by counter; all or nothing at the moment of the look without one."""
    now = _event_shares(read(pynvml.nvmlDeviceGetCurrentClocksEventReasons, watched.device.handle))
    counted = _violation_shares(watched)
    if isinstance(now, Missing):
        return counted or now
    return {**now, **counted}


def _event_shares(bits: int | Missing) -> dict[str, float] | Missing:
    if isinstance(bits, Missing):
        return bits
    shares = {reason: 100.0 if bits & mask else 0.0 for reason, mask in _EVENT_BITS.items()}
    # This bit comes with those of its causes; alone, its cause is unknown.
    unexplained = bits & pynvml.nvmlClocksEventReasonHwSlowdown and not (shares["thermal"] or shares["brake"])
    return {**shares, "hardware": 100.0 if unexplained else 0.0}


def _violation_shares(watched: _Watched) -> dict[str, float]:
    shares: dict[str, float] = {}
    for reason, policy in _VIOLATIONS.items():
        status = read(pynvml.nvmlDeviceGetViolationStatus, watched.device.handle, policy)
        total_ns = number(part(status, "violationTime"), wide=True)
        if isinstance(total_ns, Missing):
            continue
        before, now = watched.violations.get(reason), Reading(time.monotonic(), total_ns)
        watched.violations[reason] = now
        share = None if before is None else rate(before, now)
        if share is not None:
            shares[reason] = min(100.0, share * _NS_PER_S_IN_PERCENT)
    return shares


def _slow(device: NvmlDevice) -> Mapping[str, Any]:
    handle = device.handle
    readings = {
        "power_cap_w": divided(read(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1000),
        "pcie_width": number(read(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle)),
        "pcie_speed_gts": _speed(read(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle)),
        "pcie_replays": amount(read(pynvml.nvmlDeviceGetPcieReplayCounter, handle)),
        "ecc_correctable": _ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "ecc_uncorrectable": _ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    }
    if device.links:
        states = [read(pynvml.nvmlDeviceGetNvLinkState, handle, link) for link in device.links]
        readings["links_up"] = sum(state == 1 for state in states)
    return readings


def _speed(generation: int | Missing) -> object:
    if isinstance(generation, Missing):
        return generation
    return GTS_BY_GENERATION.get(generation, Missing(f"unknown PCIe generation {generation}"))


def _ecc(handle: Any, kind: int) -> object:  # noqa: ANN401
    """Errors since the driver was loaded; those of the card's whole life say nothing about this run."""
    return amount(read(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC))


def _processes(handle: Any) -> tuple[GpuProcess, ...] | Missing:  # noqa: ANN401
    found: Sequence[Any] | Missing = read(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if isinstance(found, Missing):
        return found
    return tuple(GpuProcess(each.pid, _name(each.pid), each.usedGpuMemory) for each in found)


def _name(pid: int) -> str:
    path = text(read(pynvml.nvmlSystemGetProcessName, pid))
    return PurePath(path).name if path else ""
