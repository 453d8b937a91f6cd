"""AMD GPUs through amdsmi: one metrics table and one reading of the memory per device and sample.

Runs in a child process: the library can hang in a wedged driver, abort, and write to fd 2. A device is whatever the
library has a handle for: a GPU, a partition (CPX), or a die (MI250). Invariants: devices of one socket share `socket`,
and exactly one of them has partition 0; the order is the library's; calls that sleep in the driver (violation status,
PCIe throughput) are never made; power, energy and other values of a socket are read from its first device only
(partition modes mirrored them on the others; the second die of an MI250 says 0 W); a handle that has become invalid
ends the backend, because the devices must be listed again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadgen.errors import TelemetryError
from loadgen.format import harmless
from loadgen.schema.samples import GpuProcess, GpuSample, GpuStatic
from loadgen.telemetry.amd import gpu_metrics
from loadgen.telemetry.amd.amdsmi_library import Library, open_library
from loadgen.telemetry.amd.gpu_metrics import ELSEWHERE, TWO_DIES, Residency, Table, counted_once, pair_dies
from loadgen.telemetry.amd.kernel import firmware
from loadgen.telemetry.protocol import Backend, Opened
from loadgen.telemetry.readings import Measured, Missing, amount, divided, number, split, text, value_of, watts
from loadgen.vendors import is_partition

_PCI = Path("/sys/bus/pci/devices")
_MIB = 1024**2
_ECC = {
    "ecc_correctable": "correctable_count",
    "ecc_uncorrectable": "uncorrectable_count",
    "ecc_deferred": "deferred_count",
}


@dataclass(slots=True)
class _AmdDevice:
    """A device, the library's handle for it, and the throttling counters at the last sample."""

    handle: Any
    static: GpuStatic
    device_id: str
    before: Residency | None = None

    @property
    def secondary(self) -> bool:
        """Whether it is a partition other than the first, which reports only its memory; a die misses only power."""
        return self.static.partition > 0 and self.device_id not in TWO_DIES


def open_amdsmi() -> Backend:
    """Open the library and sample once; raises `TelemetryError` with the reason if nothing can be measured here."""
    library = open_library()
    try:
        devices = _list_devices(library)
        samples = _sample_all(library, devices, slow=False, processes=False)
        if all(sample.hbm_used_bytes is None and sample.gfx_percent is None for sample in samples):
            reasons = sorted({reason for sample in samples for reason in sample.missing.values()})
            raise TelemetryError(f"None of {len(samples)} GPUs reports memory or activity: {', '.join(reasons)}")
    except TelemetryError:
        library.close()
        raise
    driver = _dict(library, "amdsmi_get_gpu_driver_info", devices[0].handle)
    meta = {
        "wrapper": library.found.wrapper,
        "wrapper_path": library.found.wrapper_path,
        "library": ".".join(map(str, library.version)),
        "library_path": library.found.library_path,
        "rocm": library.found.rocm or None,
        "driver": text(driver.get("driver_version")),
    }
    return Backend(
        opened=Opened("amdsmi", meta, tuple(device.static for device in devices)),
        sample=lambda slow, processes: _sample_all(library, devices, slow=slow, processes=processes),
        close=library.close,
    )


def _list_devices(library: Library) -> list[_AmdDevice]:
    """Every GPU that the library lists; raises `TelemetryError` if there is none."""
    handles = library.ask("amdsmi_get_processor_handles")
    if isinstance(handles, Missing):
        raise TelemetryError(f"{library.found} cannot list the GPUs: {handles.reason}")
    if not handles:
        raise TelemetryError(
            f"{library.found} lists no GPU: are /dev/kfd and /dev/dri here, and may this user read them?"
        )
    devices = [_device(library, index, handle) for index, handle in enumerate(handles)]
    statics = pair_dies([device.static for device in devices], [device.device_id for device in devices])
    for device, static in zip(devices, statics, strict=True):
        device.static = static
    return devices


def _device(library: Library, index: int, handle: object) -> _AmdDevice:
    asic = _dict(library, "amdsmi_get_gpu_asic_info", handle)
    board = _dict(library, "amdsmi_get_gpu_board_info", handle)
    usage = _dict(library, "amdsmi_get_gpu_vram_usage", handle)
    bdf = text(_text(library, "amdsmi_get_gpu_device_bdf", handle))
    name = _clean(asic.get("market_name")) or _clean(board.get("product_name"))
    arch = _clean(asic.get("target_graphics_version"))
    enumerated = _dict(library, "amdsmi_get_gpu_enumeration_info", handle)
    render = value_of(number(enumerated.get("drm_render")))
    mode = _dict(library, "amdsmi_get_gpu_virtualization_mode", handle).get("mode")
    partition = value_of(number(_dict(library, "amdsmi_get_gpu_kfd_info", handle).get("current_partition_id")))
    if partition is None:  # the library does not report it: the function of the PCI address
        function = bdf.rpartition(".")[2] if bdf else ""
        partition = int(function) if function.isdigit() else 0
    static = GpuStatic(
        index=index,
        vendor="amd",
        name=name or f"AMD GPU {_clean(asic.get('device_id')) or 'of unknown kind'}",
        uuid=_text(library, "amdsmi_get_gpu_device_uuid", handle),
        bdf=bdf,
        # A guest reports `gfxffffffffffffffff`: an unknown number with all bits set.
        arch=None if arch and set(arch.removeprefix("gfx")) == {"f"} else arch,
        engine_index=value_of(number(enumerated.get("hip_id"))),
        engine_name=_clean(enumerated.get("hip_uuid")),
        device_file=None if render is None else f"/dev/dri/renderD{render}",
        socket=bdf.rpartition(".")[0] if bdf else f"amd-{index}",
        partition=partition,
        compute_partition=_text(library, "amdsmi_get_gpu_compute_partition", handle),
        memory_partition=_text(library, "amdsmi_get_gpu_memory_partition", handle),
        hbm_total_bytes=value_of(amount(usage.get("vram_total"), _MIB)),
        firmware=firmware(_PCI / bdf) if bdf else None,
        virtualization=mode and str(getattr(mode, "name", mode)).removeprefix("AMDSMI_VIRTUALIZATION_MODE_"),
    )
    device = _AmdDevice(handle, static, str(asic.get("device_id", "")))
    if not device.secondary:
        device.static = msgspec.structs.replace(static, **_limits(library, handle))
    return device


def _limits(library: Library, handle: object) -> dict[str, Any]:
    pcie = _dict(library, "amdsmi_get_pcie_info", handle).get("pcie_static", {})
    cap = _dict(library, "amdsmi_get_power_cap_info", handle)
    kinds = library.module.AmdSmiClkType
    clocks = [_dict(library, "amdsmi_get_clock_info", handle, kind) for kind in (kinds.GFX, kinds.MEM)]
    gfx_mhz, memory_mhz = (value_of(number(clock.get("max_clk"))) for clock in clocks)
    return {
        "power_cap_default_w": value_of(watts(cap.get("default_power_cap"))),
        "gfx_clock_max_mhz": gfx_mhz,
        "memory_clock_max_mhz": memory_mhz,
        "pcie_width_max": value_of(number(pcie.get("max_pcie_width"))),
        "pcie_speed_max_gts": value_of(divided(pcie.get("max_pcie_speed"), 1000)),
        "links_total": value_of(_links(library, handle)[1]),
    }


def _sample_all(library: Library, devices: list[_AmdDevice], *, slow: bool, processes: bool) -> tuple[GpuSample, ...]:
    """All devices, each socket's first device before the others: its table has their activity, too."""
    sockets: dict[str, Table | Missing] = {}
    found: dict[int, GpuSample] = {}
    for device in sorted(devices, key=lambda device: device.static.partition):
        table = ELSEWHERE if device.secondary else library.gpu_metrics(device.handle)
        of_socket = sockets.setdefault(device.static.socket, table)
        found[device.static.index] = _sample(library, device, table, of_socket, slow=slow, processes=processes)
    return tuple(found[device.static.index] for device in devices)


def _sample(
    library: Library,
    device: _AmdDevice,
    table: Table | Missing,
    of_socket: Table | Missing,
    *,
    slow: bool,
    processes: bool,
) -> GpuSample:
    usage = library.ask("amdsmi_get_gpu_vram_usage", device.handle)
    if isinstance(usage, Missing) and usage.reason in ("NOT_FOUND", "NOT_INIT"):
        raise TelemetryError(f"GPU {device.static.index} says {usage.reason}: the devices have changed, open again")
    readings: dict[str, Any] = {}
    if is_partition(device.static.compute_partition):
        readings["xcp_percent"] = (
            gpu_metrics.xcp_percent(of_socket, device.static.partition)
            if library.tells_partitions
            else Missing(f"{library.found} does not know where this library tells it")
        )
    readings |= {
        "hbm_used_bytes": usage if isinstance(usage, Missing) else amount(usage["vram_used"], _MIB),
        **gpu_metrics.readings(table),
        "throttle_percent": gpu_metrics.throttle_percent(table, device.before),
    }
    t_s = time.monotonic()
    device.before = gpu_metrics.residency(table) or device.before
    if slow:
        readings |= _slow(library, device)
    if processes:
        listed = library.ask("amdsmi_get_gpu_process_list", device.handle)
        if not isinstance(listed, Missing):
            listed = tuple(
                GpuProcess(
                    each["pid"],
                    harmless(text(each["name"]) or ""),
                    value_of(amount(each["memory_usage"]["vram_mem"])),
                )
                for each in listed
            )
        readings["processes"] = listed
    values, missing = split(counted_once(readings, device.static))
    return GpuSample(index=device.static.index, t_s=t_s, missing=missing, **values)


def _slow(library: Library, device: _AmdDevice) -> dict[str, Measured]:
    if device.secondary:
        return dict.fromkeys(("power_cap_w", *_ECC, "bad_pages", "links_up"), ELSEWHERE)
    cap = library.ask("amdsmi_get_power_cap_info", device.handle)
    errors = library.ask("amdsmi_get_gpu_total_ecc_count", device.handle)
    pages = library.ask("amdsmi_get_gpu_bad_page_info", device.handle)
    return {
        "power_cap_w": cap if isinstance(cap, Missing) else watts(cap["power_cap"]),
        **{name: errors if isinstance(errors, Missing) else amount(errors.get(count)) for name, count in _ECC.items()},
        "bad_pages": pages if isinstance(pages, Missing) else len(pages),
        "links_up": _links(library, device.handle)[0],
    }


def _links(library: Library, handle: object) -> tuple[Measured, Measured]:
    """How many XGMI links are up, and how many exist; a disabled link counts as missing."""
    answer = library.ask("amdsmi_get_gpu_xgmi_link_status", handle)
    if isinstance(answer, Missing):
        return answer, answer
    states = [state for state in answer["status"] if state in ("U", "D")]
    return states.count("U"), len(states)


def _dict(library: Library, name: str, *arguments: object) -> dict[str, Any]:
    answer = library.ask(name, *arguments)
    return {} if isinstance(answer, Missing) else answer


def _text(library: Library, name: str, *arguments: object) -> str | None:
    return _clean(library.ask(name, *arguments))


def _clean(raw: object) -> str | None:
    known = text(raw)
    return harmless(known) if known else None
