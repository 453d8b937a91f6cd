"""AMD GPUs through amdsmi: one table of figures and one look at the memory per device and tick.

Runs in a child process: the library can hang in a wedged driver, abort, and write to fd 2. Invariants: calls that sleep
in the driver (violation status, PCIe throughput) are never made; power, energy and what else belongs to a socket is
read from its first device only (CPX and its like mirrored them on the others; the second die of an MI250 says 0 W);
a handle that has become invalid ends the backend, because the devices must be listed anew.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.errors import TelemetryError
from loadgen.format import harmless
from loadgen.metrics.samples import GpuProcess, GpuSample
from loadgen.telemetry.amd import gpu_metrics
from loadgen.telemetry.amd.amdsmi_devices import Device, list_devices
from loadgen.telemetry.amd.amdsmi_library import Library, open_library
from loadgen.telemetry.amd.gpu_metrics import Residency
from loadgen.telemetry.amd.sockets import ELSEWHERE, counted_once
from loadgen.telemetry.backend import Backend
from loadgen.telemetry.sample import Opened
from loadgen.telemetry.sanitize import Missing, Reading, amount, split, text, watts

_MIB = 1024**2
_GONE = frozenset({"NOT_FOUND", "NOT_INIT"})


@dataclass(slots=True)
class _Watched:
    """A device and the counters of throttling at the last look."""

    device: Device
    before: Residency | None = None


def open_amdsmi() -> Backend:
    """Open the library and look once; raises `TelemetryError` with the reason if nothing can be measured here."""
    opened = open_library()
    try:
        devices = list_devices(opened)
        watched = [_Watched(device) for device in devices]
        _must_answer(_sample(opened, watched, slow=False, processes=False))
    except TelemetryError:
        opened.close()
        raise
    return Backend(
        opened=Opened("amdsmi", _meta(opened, devices), tuple(device.static for device in devices)),
        sample=lambda slow, processes: _sample(opened, watched, slow=slow, processes=processes),
        close=opened.close,
    )


def _must_answer(samples: Sequence[GpuSample]) -> None:
    if any(sample.hbm_used_bytes is not None or sample.gfx_percent is not None for sample in samples):
        return
    reasons = sorted({reason for sample in samples for reason in sample.missing.values()})
    raise TelemetryError(f"None of {len(samples)} GPUs tells memory or activity: {', '.join(reasons)}")


def _meta(library: Library, devices: Sequence[Device]) -> dict[str, Any]:
    driver = library.ask("amdsmi_get_gpu_driver_info", devices[0].handle)
    return {
        "wrapper": library.found.wrapper,
        "wrapper_path": library.found.wrapper_path,
        "library": ".".join(map(str, library.version)),
        "library_path": library.found.library_path,
        "rocm": library.found.rocm or None,
        "driver": None if isinstance(driver, Missing) else text(driver["driver_version"]),
    }


def _sample(library: Library, watched: Sequence[_Watched], *, slow: bool, processes: bool) -> tuple[GpuSample, ...]:
    return tuple(_look(library, one, slow=slow, processes=processes) for one in watched)


def _look(library: Library, watched: _Watched, *, slow: bool, processes: bool) -> GpuSample:
    device = watched.device
    table = ELSEWHERE if device.secondary else library.gpu_metrics(device.handle)
    readings: dict[str, Any] = {
        "hbm_used_bytes": _hbm_used(library, device),
        **gpu_metrics.readings(table),
        "throttle_percent": gpu_metrics.throttle_percent(table, watched.before),
    }
    t_s = time.monotonic()
    watched.before = gpu_metrics.residency(table) or watched.before
    if slow:
        readings |= _slow(library, device)
    if processes:
        readings["processes"] = _processes(library, device)
    values, missing = split(counted_once(readings, device.static))
    return GpuSample(index=device.static.index, t_s=t_s, missing=missing, **values)


def _hbm_used(library: Library, device: Device) -> Reading:
    usage = library.ask("amdsmi_get_gpu_vram_usage", device.handle)
    if isinstance(usage, Missing) and usage.reason in _GONE:
        raise TelemetryError(f"GPU {device.static.index} says {usage.reason}: the devices have changed, open again")
    return usage if isinstance(usage, Missing) else amount(usage["vram_used"], _MIB)


def _slow(library: Library, device: Device) -> dict[str, Reading]:
    if device.secondary:
        return dict.fromkeys(("power_cap_w", "ecc_correctable", "ecc_uncorrectable", "links_up"), ELSEWHERE)
    cap = library.ask("amdsmi_get_power_cap_info", device.handle)
    errors = library.ask("amdsmi_get_gpu_total_ecc_count", device.handle)
    return {
        "power_cap_w": cap if isinstance(cap, Missing) else watts(cap["power_cap"]),
        "ecc_correctable": errors if isinstance(errors, Missing) else amount(errors["correctable_count"]),
        "ecc_uncorrectable": errors if isinstance(errors, Missing) else amount(errors["uncorrectable_count"]),
        "links_up": device.links(library)[0],
    }


def _processes(library: Library, device: Device) -> tuple[GpuProcess, ...] | Missing:
    listed = library.ask("amdsmi_get_gpu_process_list", device.handle)
    return listed if isinstance(listed, Missing) else tuple(map(_process, listed))


def _process(listed: dict[str, Any]) -> GpuProcess:
    held = amount(listed["memory_usage"]["vram_mem"])
    return GpuProcess(
        pid=listed["pid"],
        name=harmless(text(listed["name"]) or ""),
        hbm_bytes=None if isinstance(held, Missing) else int(held),
    )
