"""NVIDIA GPUs through the driver's own library, with the nvidia-ml-py package.

A lost GPU is also listed, without values, so that an operator sees that it is lost. Units of the library: mW, mJ,
MHz, KiB, ns of violation. With MIG, the parent is a socket's partition 0 with power, clocks and temperatures; memory
belongs to the instances. GPM measures activity between two of its samples (Hopper and newer), and Xid errors come as
events. Invariants: no call waits, or measures over a window of its own (PCIe throughput takes 20 ms each); no field id
whose number changed between drivers; a call that fails costs only its field, and the reason is kept; what was allocated
in the library lives as long as the process.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import msgspec
import pynvml

from loadgen.errors import TelemetryError
from loadgen.schema.samples import GpuProcess, GpuSample, GpuStatic, Reading, rate
from loadgen.system import has_host_pids
from loadgen.telemetry.protocol import Backend, Opened
from loadgen.telemetry.readings import (
    ODD_FAILURES,
    Measured,
    Missing,
    amount,
    divided,
    number,
    percent,
    split,
    text,
    total,
    value_of,
)

_REASONS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found: install NVIDIA's driver, "
    "or give the container the GPUs (docker run --gpus all)",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "NVIDIA's driver is not loaded: try `modprobe nvidia`, and see `dmesg`",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "library and kernel module of NVIDIA's driver differ in version: "
    "it was upgraded while in use; reboot",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission: run as root, or check the permissions of /dev/nvidia*",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost: it fell off the bus; see Xid in `dmesg`",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU must be reset: see Xid in `dmesg`",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "not supported by this GPU",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the installed driver is too old to report it",
    pynvml.NVML_ERROR_UNINITIALIZED: "NVML was shut down",
}
_GPM_METRICS = (
    pynvml.NVML_GPM_METRIC_SM_UTIL,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
)
_GPM_FIELDS = ("sm_percent", "dram_percent", "pcie_bytes_per_s")
_MAX_EVENTS = 64  # taken per poll; the others wait
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
        new = xids.poll()
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
    # Set CUDA's numbers if they are NVML's: CUDA numbers unequal GPUs by speed, and a split GPU by instance.
    gpus = [device for device in devices if not device.instance]
    if len({device.static.name for device in gpus}) == 1 and not any(device.split for device in gpus):
        for number, device in enumerate(gpus):
            device.static = msgspec.structs.replace(device.static, engine_index=number)
    return devices


def _gpu(position: int, index: int) -> Iterator[_NvmlDevice]:
    handle = read(pynvml.nvmlDeviceGetHandleByIndex, position)
    if isinstance(handle, Missing):
        lost = GpuStatic(index=index, vendor="nvidia", name="NVIDIA GPU that does not answer", socket=f"#{position}")
        yield _NvmlDevice(None, lost, lost=handle.reason)
        return
    instances = []
    mode = read(pynvml.nvmlDeviceGetMigMode, handle)
    if not isinstance(mode, Missing) and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
        slots = read(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
        for slot in range(0 if isinstance(slots, Missing) else slots):
            instance = read(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
            if not isinstance(instance, Missing):  # a slot without an instance
                instances.append(instance)
    # Even a GPU without a bridge has links, all down: only links that were up can fail.
    every_link = range(pynvml.NVML_NVLINK_MAX_LINKS)
    links = tuple(link for link in every_link if read(pynvml.nvmlDeviceGetNvLinkState, handle, link) == 1)
    static = _static(handle, index, socket=f"#{position}", links=len(links), split=bool(instances))
    yield _NvmlDevice(handle, static, split=bool(instances), links=links, gpm=Gpm(handle))
    for partition, instance in enumerate(instances, start=1):
        yield _NvmlDevice(instance, _instance(instance, static, partition), instance=True)


def _static(handle: Any, index: int, *, socket: str, links: int, split: bool) -> GpuStatic:  # noqa: ANN401
    uuid = text(read(pynvml.nvmlDeviceGetUUID, handle))
    pci = read(pynvml.nvmlDeviceGetPciInfo, handle)
    capability = read(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    firmware = {
        "vbios": text(read(pynvml.nvmlDeviceGetVbiosVersion, handle)),
        "gsp": text(read(pynvml.nvmlDeviceGetGspFirmwareVersion, handle)),
    }
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
        firmware={name: version for name, version in firmware.items() if version} or None,
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
    found: dict[str, Any] = {}
    for name, value in zip(wanted, values, strict=True):
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            found[name] = Missing(reason_of(pynvml.NVMLError(value.nvmlReturn)))
        elif value.valueType >= len(_VALUE_BY_TYPE):
            found[name] = Missing(f"of an unknown type ({value.valueType})")
        else:
            raw = getattr(value.value, _VALUE_BY_TYPE[value.valueType])
            found[name] = amount(raw, 1024) if name.startswith("link") else number(raw)
    return found


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
    info = pynvml.c_nvmlGpuFabricInfo_t()
    status = read(pynvml.nvmlDeviceGetGpuFabricInfo, handle, ctypes.byref(info))
    readings = {
        "power_cap_w": divided(read(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1000),
        "pcie_width": number(read(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle)),
        "pcie_speed_gts": speed,
        "pcie_replays": amount(read(pynvml.nvmlDeviceGetPcieReplayCounter, handle)),
        "fabric": status if isinstance(status, Missing) else _FABRIC_STATES.get(info.state, Missing("no fabric")),
    }
    kinds = {"correctable": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED}
    kinds |= {"uncorrectable": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED}
    for name, kind in kinds.items():
        # Since the driver was loaded: lifetime counts say nothing about this run.
        errors = read(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC)
        readings[f"ecc_{name}"] = amount(errors)
    readings |= _retired(handle)
    if device.links:
        states = [read(pynvml.nvmlDeviceGetNvLinkState, handle, link) for link in device.links]
        readings["links_up"] = sum(state == 1 for state in states)
    return readings


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
    return {"rows_remapped": corrected + uncorrected, "remap_pending": bool(pending), "remap_failed": bool(failed)}


def _processes(handle: Any) -> tuple[GpuProcess, ...] | Missing:  # noqa: ANN401
    found = read(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if isinstance(found, Missing):
        return found
    # In a container, the host's pids are those of other processes.
    named = has_host_pids()
    paths = [text(read(pynvml.nvmlSystemGetProcessName, each.pid)) if named else None for each in found]
    return tuple(
        GpuProcess(each.pid, PurePath(path or "").name, each.usedGpuMemory)
        for each, path in zip(found, paths, strict=True)
    )


def reason_of(error: pynvml.NVMLError) -> str:
    return _REASONS.get(error.value, str(error))


def read(function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - what the library has
    """The function's value, or `Missing` with the reason: no function is needed by another.

    Besides its own errors the package raises those of a library that is older than it is, and those of ctypes.
    """
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        return Missing(reason_of(error))
    except pynvml.NVMLLibraryMismatchError:
        return Missing(_REASONS[pynvml.NVML_ERROR_FUNCTION_NOT_FOUND])
    except ODD_FAILURES as error:
        return Missing(f"{getattr(function, '__name__', 'NVML')}: {type(error).__name__} {error}")


def part(struct: Any, name: str) -> Any:  # noqa: ANN401 - a struct of the library
    """A field of a struct, or the struct itself if it is missing."""
    return struct if isinstance(struct, Missing) else getattr(struct, name)


class Gpm:
    """The activity of one GPU between two samples."""

    def __init__(self, handle: Any) -> None:  # noqa: ANN401 - a handle of the library
        self._handle = handle
        supported = part(read(pynvml.nvmlGpmQueryDeviceSupport, handle), "isSupportedDevice")
        self._absent = supported if isinstance(supported, Missing) else None
        if not self._absent and not supported:
            self._absent = Missing("only Hopper and newer GPUs report it")
        if self._absent is None:
            self._before, self._now = (read(pynvml.nvmlGpmSampleAlloc) for _ in range(2))
            self._absent = next((each for each in (self._before, self._now) if isinstance(each, Missing)), None)
            self._requested = pynvml.c_nvmlGpmMetricsGet_t()
            self._sampled = False

    def readings(self, *, slow: bool) -> dict[str, Measured]:
        """SM, memory and PCIe activity since the last call; reasons for missing values only in the slow tier."""
        if self._absent is not None:
            return dict.fromkeys(_GPM_FIELDS, self._absent) if slow else {}
        taken = read(pynvml.nvmlGpmSampleGet, self._handle, self._now)
        if isinstance(taken, Missing):
            self._sampled = False
            return dict.fromkeys(_GPM_FIELDS, taken)
        first, self._sampled = not self._sampled, True
        self._before, self._now = self._now, self._before  # the next call compares with this sample
        return dict.fromkeys(_GPM_FIELDS, Missing("needs two samples")) if first else self._between()

    def _between(self) -> dict[str, Measured]:
        requested = self._requested
        requested.version, requested.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(_GPM_METRICS)
        requested.sample1, requested.sample2 = self._now, self._before
        for place, metric in enumerate(_GPM_METRICS):
            requested.metrics[place].metricId = metric
        reported = read(pynvml.nvmlGpmMetricsGet, requested)
        if isinstance(reported, Missing):
            return dict.fromkeys(_GPM_FIELDS, reported)
        sm, dram, sent, received = (
            round(float(metric.value), 2)
            if metric.nvmlReturn == pynvml.NVML_SUCCESS
            else Missing(reason_of(pynvml.NVMLError(metric.nvmlReturn)))
            for metric in reported.metrics[: len(_GPM_METRICS)]
        )
        mib = total(number(value) for value in (sent, received))
        return {"sm_percent": percent(sm), "dram_percent": percent(dram), "pcie_bytes_per_s": divided(mib, 1 / 1024**2)}


class Xids:
    """The Xid errors of all GPUs since the start: how many, and the latest."""

    def __init__(self, handles: Iterable[Any]) -> None:
        self._events = read(pynvml.nvmlEventSetCreate)
        self._absent: dict[int, Missing] = {}
        self._seen: dict[int, tuple[int, int]] = {}
        for handle in handles:
            watched = self._events
            if not isinstance(watched, Missing):
                watched = read(
                    pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                )
            if isinstance(watched, Missing):
                self._absent[_address(handle)] = watched
            else:
                self._seen[_address(handle)] = (0, 0)

    def poll(self) -> set[int]:
        """Take pending events without waiting; returns the addresses of their GPUs."""
        new: set[int] = set()
        for _ in range(_MAX_EVENTS if self._seen else 0):
            event = read(pynvml.nvmlEventSetWait_v2, self._events, 0)
            if isinstance(event, Missing):  # usually a timeout: no event
                break
            address = _address(event.device)
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError and address in self._seen:
                self._seen[address] = (self._seen[address][0] + 1, int(event.eventData))
                new.add(address)
        return new

    def readings(self, handle: Any, new: set[int], *, slow: bool) -> dict[str, Measured]:  # noqa: ANN401
        """The Xid errors of a GPU; empty except in the slow tier or when there is a new error."""
        address = _address(handle)
        if not slow and address not in new:
            return {}
        if address in self._absent:
            return {"xids": self._absent[address]}
        count, last = self._seen[address]
        return {"xids": count, "xid_last": last} if count else {"xids": 0}


def _address(handle: Any) -> int:  # noqa: ANN401 - a handle of the library
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
