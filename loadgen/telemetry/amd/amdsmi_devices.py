"""Which devices amdsmi lists, and what of each does not change: identity, socket, limits.

A device is what the library has a handle for: a GPU, a partition of one (CPX), or a die (MI250). Invariants: devices
of one socket share `socket`, and exactly one of them has partition 0; the order is the library's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from loadgen.errors import TelemetryError
from loadgen.format import harmless
from loadgen.metrics.samples import GpuStatic
from loadgen.telemetry.amd.amdsmi_library import Library
from loadgen.telemetry.amd.sockets import TWO_DIES, pair_dies
from loadgen.telemetry.sanitize import Missing, Reading, amount, divided, number, text, value_of, watts

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Device:
    """A device and the handle by which the library knows it."""

    handle: Any
    static: GpuStatic
    device_id: str = ""

    @property
    def secondary(self) -> bool:
        """A partition beside the first: it has memory of its own and nothing else; a die has all but power."""
        return self.static.partition > 0 and self.device_id not in TWO_DIES

    def links(self, library: Library) -> tuple[Reading, Reading]:
        """How many XGMI links are up, and how many there are; a link that is disabled is not there."""
        answer = library.ask("amdsmi_get_gpu_xgmi_link_status", self.handle)
        if isinstance(answer, Missing):
            return answer, answer
        states = [state for state in answer["status"] if state in ("U", "D")]
        return states.count("U"), len(states)


def list_devices(library: Library) -> list[Device]:
    """Every GPU that the library has; raises `TelemetryError` if it has none."""
    handles = library.ask("amdsmi_get_processor_handles")
    if isinstance(handles, Missing):
        raise TelemetryError(f"{library.found} cannot list the GPUs: {handles.reason}")
    if not handles:
        raise TelemetryError(
            f"{library.found} lists no GPU: are /dev/kfd and /dev/dri here, and may this user read them?"
        )
    devices = [_device(library, index, handle) for index, handle in enumerate(handles)]
    statics = pair_dies([device.static for device in devices], [device.device_id for device in devices])
    return [replace(device, static=static) for device, static in zip(devices, statics, strict=True)]


def _device(library: Library, index: int, handle: object) -> Device:
    asic = _dict(library, "amdsmi_get_gpu_asic_info", handle)
    bdf = text(_text(library, "amdsmi_get_gpu_device_bdf", handle))
    static = GpuStatic(
        index=index,
        vendor="amd",
        name=_name(library, handle, asic),
        uuid=_text(library, "amdsmi_get_gpu_device_uuid", handle),
        bdf=bdf,
        arch=_arch(asic.get("target_graphics_version")),
        engine_index=_whole(_dict(library, "amdsmi_get_gpu_enumeration_info", handle).get("hip_id")),
        socket=bdf.rpartition(".")[0] if bdf else f"amd-{index}",
        partition=_partition(library, handle, bdf),
        compute_partition=_text(library, "amdsmi_get_gpu_compute_partition", handle),
        memory_partition=_text(library, "amdsmi_get_gpu_memory_partition", handle),
        hbm_total_bytes=_hbm_total(library, handle),
        virtualization=_virtualization(library, handle),
    )
    return _with_limits(library, Device(handle, static, str(asic.get("device_id", ""))))


def _with_limits(library: Library, device: Device) -> Device:
    if device.secondary:
        return device
    pcie = _dict(library, "amdsmi_get_pcie_info", device.handle).get("pcie_static", {})
    cap = _dict(library, "amdsmi_get_power_cap_info", device.handle)
    static = msgspec.structs.replace(
        device.static,
        power_cap_default_w=value_of(watts(cap.get("default_power_cap"))),
        gfx_clock_max_mhz=_clock_max(library, device.handle, "GFX"),
        memory_clock_max_mhz=_clock_max(library, device.handle, "MEM"),
        pcie_width_max=_whole(pcie.get("max_pcie_width")),
        pcie_speed_max_gts=value_of(divided(pcie.get("max_pcie_speed"), 1000)),
        links_total=value_of(device.links(library)[1]),
    )
    return replace(device, static=static)


def _partition(library: Library, handle: object, bdf: str | None) -> int:
    """The number of the partition in its socket; where the library does not tell, the function of the PCI address."""
    told = _whole(_dict(library, "amdsmi_get_gpu_kfd_info", handle).get("current_partition_id"))
    if told is not None:
        return told
    function = bdf.rpartition(".")[2] if bdf else ""
    return int(function) if function.isdigit() else 0


def _name(library: Library, handle: object, asic: dict[str, Any]) -> str:
    market = _clean(asic.get("market_name"))
    board = _clean(_dict(library, "amdsmi_get_gpu_board_info", handle).get("product_name"))
    return market or board or f"AMD GPU {_clean(asic.get('device_id')) or 'of unknown kind'}"


def _hbm_total(library: Library, handle: object) -> int | None:
    usage = _dict(library, "amdsmi_get_gpu_vram_usage", handle)
    return _whole_of(amount(usage.get("vram_total"), _MIB))


def _clock_max(library: Library, handle: object, kind: str) -> float | None:
    clock = _dict(library, "amdsmi_get_clock_info", handle, getattr(library.module.AmdSmiClkType, kind))
    highest: float | None = value_of(number(clock.get("max_clk")))
    return highest


def _virtualization(library: Library, handle: object) -> str | None:
    mode = _dict(library, "amdsmi_get_gpu_virtualization_mode", handle).get("mode")
    return None if mode is None else str(getattr(mode, "name", mode)).removeprefix("AMDSMI_VIRTUALIZATION_MODE_")


def _dict(library: Library, name: str, *arguments: object) -> dict[str, Any]:
    answer = library.ask(name, *arguments)
    return {} if isinstance(answer, Missing) else answer


def _text(library: Library, name: str, *arguments: object) -> str | None:
    return _clean(library.ask(name, *arguments))


def _arch(raw: object) -> str | None:
    """A guest says `gfxffffffffffffffff`: all bits of a number that it was not told."""
    arch = _clean(raw)
    return None if arch is not None and set(arch.removeprefix("gfx")) == {"f"} else arch


def _clean(raw: object) -> str | None:
    known = text(raw)
    return harmless(known) if known else None


def _whole(raw: object) -> int | None:
    return _whole_of(number(raw))


def _whole_of(reading: Reading) -> int | None:
    return None if isinstance(reading, Missing) else int(reading)
