"""Reads NVIDIA's library (NVML): values or the reasons for missing ones, and readings that need state between samples.

GPM measures activity between two of its samples (Hopper and newer), and Xid errors come as events. Invariants:
nothing here waits, events are only polled; what was allocated in the library lives as long as the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import pynvml

from loadgen.telemetry.readings import ODD_FAILURES, Measured, Missing, divided, number, percent, total

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
        values = [_metric(reported.metrics[place]) for place in range(len(_GPM_METRICS))]
        sm, dram, sent, received = values
        mib = total(number(value) for value in (sent, received))
        return {"sm_percent": percent(sm), "dram_percent": percent(dram), "pcie_bytes_per_s": divided(mib, 1 / 1024**2)}


def _metric(metric: Any) -> object:  # noqa: ANN401 - a struct of the library
    if metric.nvmlReturn != pynvml.NVML_SUCCESS:
        return Missing(reason_of(pynvml.NVMLError(metric.nvmlReturn)))
    return round(float(metric.value), 2)


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

    def look(self) -> set[int]:
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
