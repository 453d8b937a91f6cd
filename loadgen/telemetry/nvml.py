"""NVIDIA GPUs through the driver's own library, with the nvidia-ml-py package.

A lost GPU is also listed, without values, so that an operator sees that it is lost. Units of the library: mW, mJ,
MHz, KiB, ns of violation. With MIG, the parent is a socket's partition 0 with power, clocks and temperatures; memory
belongs to the instances. Invariants: no call that measures over a window of its own (PCIe throughput takes 20 ms each);
no field id whose number changed between drivers; a call that fails costs only its field, and the reason is kept.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import msgspec
import pynvml

from loadgen.errors import TelemetryError
from loadgen.schema.samples import GpuProcess, GpuSample, GpuStatic, Reading, rate
from loadgen.telemetry.nvml_library import Gpm, Xids, part, read, reason_of
from loadgen.telemetry.protocol import Backend, Opened
from loadgen.telemetry.readings import Measured, Missing, amount, divided, number, percent, split, text, total, value_of

_ALL_LINKS = 0xFFFFFFFF  # as a field's scope: the sum over all NVLinks
_FIELDS = {
    "temperature_memory_c": pynvml.NVML_FI_DEV_MEMORY_TEMP,
    "link_read_bytes": (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
    "link_write_bytes": (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
}
_VALUE_BY_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
# Cumulative counters, and momentary bits for reasons that have no counter.
_VIOLATIONS = {"power": pynvml.NVML_PERF_POLICY_POWER, "thermal": pynvml.NVML_PERF_POLICY_THERMAL}
_EVENT_BITS = {
    "power": pynvml.nvmlClocksEventReasonSwPowerCap,
    "thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
_GTS_BY_GENERATION = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_FABRIC_STATES = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: "Not Started",
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "In Progress",
    pynvml.NVML_GPU_FABRIC_STATE_COMPLETED: "Completed",
}
_VIRTUALIZATION = {
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE: "BAREMETAL",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH: "PASSTHROUGH",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU: "GUEST",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU: "HOST",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA: "HOST",
}


@dataclass(slots=True)
class _NvmlDevice:
    """One GPU, or one MIG instance of it."""

    handle: Any  # None for a lost GPU
    static: GpuStatic
    instance: bool = False  # a MIG instance, which reports only memory and processes
    split: bool = False  # a GPU that is split into instances, which report memory and processes
    links: tuple[int, ...] = ()  # the NVLinks that were up when the backend opened
    lost: str = ""  # why it has no handle
    violations: dict[str, Reading] = field(default_factory=dict)  # the counters (ns) at the last sample
    gpm: Gpm | None = None  # None for an instance or a lost GPU


def open_nvml() -> Backend:
    """Open the library and list its devices; raises `TelemetryError` with the reason if nothing can be measured."""
    begun = read(pynvml.nvmlInit)
    if isinstance(begun, Missing):
        raise TelemetryError(begun.reason)
    devices = _list_devices()

    xids = Xids(device.handle for device in devices if device.gpm is not None)

    def sample(slow: bool, processes: bool) -> tuple[GpuSample, ...]:
        new = xids.look()
        return tuple(
            _sample(device, lambda handle: xids.readings(handle, new, slow=slow), slow=slow, processes=processes)
            for device in devices
        )

    cuda = read(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    meta = {
        "wrapper": importlib.metadata.version("nvidia-ml-py"),
        "library": text(read(pynvml.nvmlSystemGetNVMLVersion)),
        "driver": text(read(pynvml.nvmlSystemGetDriverVersion)),
        "cuda": None if isinstance(cuda, Missing) else f"{cuda // 1000}.{cuda % 1000 // 10}",
    }
    opened = Opened(backend="nvml", meta=meta, gpus=tuple(device.static for device in devices))
    # If the driver is gone, failing to shut down is no error.
    return Backend(opened=opened, sample=sample, close=lambda: read(pynvml.nvmlShutdown))


def _memory_of(handle: Any) -> Any:  # noqa: ANN401 - a handle and a struct of the library
    """Total and used bytes; older drivers count what they reserve as used."""
    separate = read(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return read(pynvml.nvmlDeviceGetMemoryInfo, handle) if isinstance(separate, Missing) else separate


def _list_devices() -> list[_NvmlDevice]:
    """Every GPU in PCI order, each followed by its MIG instances; raises `TelemetryError` if none can be read."""
    count = read(pynvml.nvmlDeviceGetCount)
    if isinstance(count, Missing):
        raise TelemetryError(f"NVML does not list GPUs: {count.reason}")
    devices: list[_NvmlDevice] = []
    for position in range(count):
        devices += _gpu(position, len(devices))
    if not devices:
        raise TelemetryError("NVML works but finds no GPU: does the container or NVIDIA_VISIBLE_DEVICES hide them?")
    if all(device.handle is None for device in devices):
        raise TelemetryError(f"no GPU answers: {devices[0].lost}")
    _number(devices)
    return devices


def _number(devices: list[_NvmlDevice]) -> None:
    """Set CUDA's numbers if they are NVML's: CUDA numbers unequal GPUs by speed, and a split GPU by instance."""
    gpus = [device for device in devices if not device.instance]
    if len({device.static.name for device in gpus}) == 1 and not any(device.split for device in gpus):
        for number, device in enumerate(gpus):
            device.static = msgspec.structs.replace(device.static, engine_index=number)


def _gpu(position: int, index: int) -> Iterator[_NvmlDevice]:
    handle = read(pynvml.nvmlDeviceGetHandleByIndex, position)
    if isinstance(handle, Missing):
        lost = GpuStatic(index=index, vendor="nvidia", name="NVIDIA GPU that does not answer", socket=f"#{position}")
        yield _NvmlDevice(None, lost, lost=handle.reason)
        return
    instances = list(_instances(handle))
    # Even a GPU without a bridge has links, all down: only links that were up can fail.
    every_link = range(pynvml.NVML_NVLINK_MAX_LINKS)
    links = tuple(link for link in every_link if read(pynvml.nvmlDeviceGetNvLinkState, handle, link) == 1)
    static = _static(handle, index, socket=f"#{position}", links=len(links), split=bool(instances))
    yield _NvmlDevice(handle, static, split=bool(instances), links=links, gpm=Gpm(handle))
    for partition, instance in enumerate(instances, start=1):
        yield _NvmlDevice(instance, _instance(instance, static, partition), instance=True)


def _instances(handle: Any) -> Iterator[Any]:  # noqa: ANN401 - handles of the library
    mode = read(pynvml.nvmlDeviceGetMigMode, handle)
    if isinstance(mode, Missing) or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return
    count = read(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    for position in range(0 if isinstance(count, Missing) else count):
        instance = read(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, position)
        if not isinstance(instance, Missing):  # a slot without an instance
            yield instance


def _static(handle: Any, index: int, *, socket: str, links: int, split: bool) -> GpuStatic:  # noqa: ANN401
    uuid = text(read(pynvml.nvmlDeviceGetUUID, handle))
    pci = read(pynvml.nvmlDeviceGetPciInfo, handle)
    capability = read(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return GpuStatic(
        index=index,
        vendor="nvidia",
        name=text(read(pynvml.nvmlDeviceGetName, handle)) or "NVIDIA GPU",
        uuid=uuid,
        bdf=None if isinstance(pci, Missing) else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
        arch=None if isinstance(capability, Missing) else "sm_{}{}".format(*capability),
        engine_name=uuid,
        socket=uuid or socket,
        compute_partition="MIG" if split else None,
        hbm_total_bytes=None if split else value_of(amount(part(_memory_of(handle), "total"))),
        power_cap_default_w=value_of(divided(read(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle), 1000)),
        gfx_clock_max_mhz=value_of(number(read(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM))),
        memory_clock_max_mhz=value_of(number(read(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM))),
        pcie_width_max=value_of(number(read(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle))),
        pcie_speed_max_gts=_GTS_BY_GENERATION.get(read(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)),
        links_total=links or None,
        virtualization=_VIRTUALIZATION.get(read(pynvml.nvmlDeviceGetVirtualizationMode, handle)),
    )


def _instance(handle: Any, parent: GpuStatic, partition: int) -> GpuStatic:  # noqa: ANN401
    name = text(read(pynvml.nvmlDeviceGetName, handle)) or parent.name
    uuid = text(read(pynvml.nvmlDeviceGetUUID, handle))
    return GpuStatic(
        index=parent.index + partition,
        vendor="nvidia",
        name=name,
        uuid=uuid,
        bdf=parent.bdf,
        arch=parent.arch,
        engine_name=uuid,
        socket=parent.socket,
        partition=partition,
        # "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
        compute_partition=name.partition(" MIG ")[2] or "MIG",
        hbm_total_bytes=value_of(amount(part(_memory_of(handle), "total"))),
        virtualization=parent.virtualization,
    )


def _sample(
    device: _NvmlDevice, errors_of: Callable[[Any], dict[str, Measured]], *, slow: bool, processes: bool
) -> GpuSample:
    if device.handle is None:
        missing = {"power_w": device.lost, "gfx_percent": device.lost}
        return GpuSample(device.static.index, time.monotonic(), missing=missing)
    used = Missing("belongs to the MIG instances") if device.split else amount(part(_memory_of(device.handle), "used"))
    readings: dict[str, Any] = {"hbm_used_bytes": used}
    if not device.instance:
        readings |= _fast(device.handle) | _fields(device) | {"throttle_percent": _throttled(device)}
    if device.gpm is not None:
        readings |= device.gpm.readings(slow=slow) | errors_of(device.handle)
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


def _fields(device: _NvmlDevice) -> dict[str, Any]:
    """Values that have no separate function, read in one call."""
    wanted = {name: field for name, field in _FIELDS.items() if device.links or not name.startswith("link")}
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


def _throttled(device: _NvmlDevice) -> dict[str, float] | Missing:
    """Each reason's share of the time since the last sample; 0 or 100 for reasons without a counter."""
    bits = read(pynvml.nvmlDeviceGetCurrentClocksEventReasons, device.handle)
    counted = _violation_shares(device)
    if isinstance(bits, Missing):
        return counted or bits
    shares = {reason: 100.0 if bits & mask else 0.0 for reason, mask in _EVENT_BITS.items()}
    # This bit accompanies the bits of its causes; alone, the cause is unknown.
    unexplained = bits & pynvml.nvmlClocksEventReasonHwSlowdown and not (shares["thermal"] or shares["brake"])
    return {**shares, "hardware": 100.0 if unexplained else 0.0, **counted}


def _violation_shares(device: _NvmlDevice) -> dict[str, float]:
    shares: dict[str, float] = {}
    for reason, policy in _VIOLATIONS.items():
        status = read(pynvml.nvmlDeviceGetViolationStatus, device.handle, policy)
        total_ns = number(part(status, "violationTime"), wide=True)
        if isinstance(total_ns, Missing):
            continue
        before, now = device.violations.get(reason), Reading(time.monotonic(), total_ns)
        device.violations[reason] = now
        share = None if before is None else rate(before, now)
        if share is not None:
            shares[reason] = min(100.0, 100 * share / 1e9)
    return shares


def _slow(device: _NvmlDevice) -> dict[str, Any]:
    handle = device.handle
    speed = generation = read(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle)
    if not isinstance(generation, Missing):
        speed = _GTS_BY_GENERATION.get(generation, Missing(f"unknown PCIe generation {generation}"))
    readings = {
        "power_cap_w": divided(read(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1000),
        "pcie_width": number(read(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle)),
        "pcie_speed_gts": speed,
        "pcie_replays": amount(read(pynvml.nvmlDeviceGetPcieReplayCounter, handle)),
        "fabric": _fabric(handle),
        "ecc_correctable": _ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "ecc_uncorrectable": _ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    }
    readings |= _retired(handle)
    if device.links:
        states = [read(pynvml.nvmlDeviceGetNvLinkState, handle, link) for link in device.links]
        readings["links_up"] = sum(state == 1 for state in states)
    return readings


def _fabric(handle: Any) -> str | Missing:  # noqa: ANN401
    info = pynvml.c_nvmlGpuFabricInfo_t()
    status = read(pynvml.nvmlDeviceGetGpuFabricInfo, handle, ctypes.byref(info))
    return status if isinstance(status, Missing) else _FABRIC_STATES.get(info.state, Missing("no fabric"))


def _retired(handle: Any) -> dict[str, Any]:  # noqa: ANN401
    """Memory that was retired: pages before Ampere, rows since."""
    remapped = read(pynvml.nvmlDeviceGetRemappedRows, handle)
    if isinstance(remapped, Missing):
        causes = (
            pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
            pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
        )
        pages = [read(pynvml.nvmlDeviceGetRetiredPages, handle, cause) for cause in causes]
        found = total(each if isinstance(each, Missing) else len(each) for each in pages)
        return {"rows_remapped": remapped, "bad_pages": found}
    corrected, uncorrected, pending, failed = remapped
    return {
        "rows_remapped": corrected + uncorrected,
        "remap_pending": bool(pending),
        "remap_failed": bool(failed),
    }


def _ecc(handle: Any, kind: int) -> object:  # noqa: ANN401
    """Errors since the driver was loaded; lifetime counts say nothing about this run."""
    return amount(read(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC))


def _processes(handle: Any) -> tuple[GpuProcess, ...] | Missing:  # noqa: ANN401
    found = read(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if isinstance(found, Missing):
        return found
    paths = [text(read(pynvml.nvmlSystemGetProcessName, each.pid)) for each in found]
    return tuple(
        GpuProcess(each.pid, PurePath(path or "").name, each.usedGpuMemory)
        for each, path in zip(found, paths, strict=True)
    )
