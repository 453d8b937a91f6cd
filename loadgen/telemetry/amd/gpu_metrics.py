"""The metrics table of AMD's firmware, `gpu_metrics`: read by the library or decoded from sysfs.

Both yield a `ctypes` structure with the library's field names, so units and sentinels are handled once. The layouts are
those of the kernel's `kgd_pp_interface.h`. Invariants: a table is decoded only if its exact version is known (1.9 is a
stream of attributes, not a structure); a field that a version does not have is `Missing`, never 0; throttling is the
difference of two tables, so the first has none; what belongs to a socket (power, energy) is counted once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import msgspec

from loadgen.schema.samples import GpuStatic
from loadgen.telemetry.readings import Measured, Missing, amount, divided, first, mean, number, percent, total, watts

TWO_DIES = frozenset({"0x7408", "0x740c"})  # device numbers of MI250X and MI250
ELSEWHERE = Missing("belongs to the socket: see its partition 0")

Table = ctypes.Structure
Residency = Mapping[str, int]  # how often the firmware checked (`checks`), and found each reason to throttle

_RESIDENCIES = {
    "power": "ppt_residency_acc",
    "thermal": "socket_thm_residency_acc",
    "hbm": "hbm_thm_residency_acc",
    "vr": "vr_thm_residency_acc",
    "prochot": "prochot_residency_acc",
}
_STATUS_BITS = {
    "power": range(0, 8),
    "current": range(16, 24),
    "thermal": (32, 33, 35, 36, 37, 42, 43),
    "hbm": (34,),
    "vr": (38, 39, 40, 41, 44, 45),
    "prochot": (46, 47),
}
"""`indep_throttle_status`, the kernel's SMU_THROTTLER_* bits."""
_TYPES = {"u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64}


def _layout(*lines: str) -> type[Table]:
    """Each line is a type (`u16*8` for an array) and the names of its fields."""
    fields: list[tuple[str, type]] = []
    for line in lines:
        kind, *names = line.split()
        base, _, length = kind.partition("*")
        field = _TYPES[base] * int(length) if length else _TYPES[base]
        fields += [(name, field) for name in names]
    return type("GpuMetrics", (ctypes.LittleEndianStructure,), {"_fields_": fields})


_HEAD = ("u16 structure_size", "u8 format_revision content_revision")
_SOCKET = (
    *_HEAD,
    "u16 temperature_hotspot temperature_mem temperature_vrsoc current_socket_power",
    "u16 average_gfx_activity average_umc_activity",
)
_VIDEO = "u16*4 vcn_activity"
_ENERGY = "u64 energy_accumulator system_clock_counter"
_RESIDENCY = (
    "u32 accumulation_counter prochot_residency_acc ppt_residency_acc socket_thm_residency_acc vr_thm_residency_acc",
    "u32 hbm_thm_residency_acc",
)
_PCIE = (
    "u32 gfxclk_lock_status",
    "u16 pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed",
    "u32 gfx_activity_acc mem_activity_acc",
    "u64 pcie_bandwidth_acc pcie_bandwidth_inst pcie_l0_to_recov_count_acc pcie_replay_count_acc",
    "u64 pcie_replay_rover_count_acc",
)
_NAKS = "u32 pcie_nak_sent_count_acc pcie_nak_rcvd_count_acc"
_XGMI = "u64*8 xgmi_read_data_acc xgmi_write_data_acc"
_LINKS = ("u16*8 xgmi_link_status", "u16 PADDING")
_CLOCKS = (
    "u64 firmware_timestamp",
    "u16*8 current_gfxclks",
    "u16*4 current_socclks current_vclk0s current_dclk0s",
    "u16 current_uclk num_partition",
)
# 1.4 and 1.5 have a throttle_status that the driver never fills: not named here, so that its 0 is not used.
_BEFORE_RESIDENCY = (_ENERGY, "u32 PADDING_0")
_V1_3 = _layout(
    *_HEAD,
    "u16 temperature_edge temperature_hotspot temperature_mem temperature_vrgfx temperature_vrsoc",
    "u16 temperature_vrmem average_gfx_activity average_umc_activity average_mm_activity average_socket_power",
    _ENERGY,
    "u16*7 average_clocks",
    "u16 current_gfxclk current_socclk current_uclk",
    "u16*4 current_video_clocks",
    "u32 throttle_status",
    "u16 current_fan_speed pcie_link_width pcie_link_speed PADDING_0",
    "u32 gfx_activity_acc mem_activity_acc",
    "u16*4 temperature_hbm",
    "u64 firmware_timestamp",
    "u16 voltage_soc voltage_gfx voltage_mem PADDING_1",
    "u64 indep_throttle_status",
)
_V1_7 = _layout(*_SOCKET, "u64 vram_max_bandwidth", _ENERGY, *_RESIDENCY, *_PCIE, _NAKS, _XGMI, *_LINKS, *_CLOCKS)
LAYOUTS = {
    (1, 3): _V1_3,
    (1, 4): _layout(*_SOCKET, _VIDEO, *_BEFORE_RESIDENCY, *_PCIE, _XGMI, *_CLOCKS),
    (1, 5): _layout(*_SOCKET, _VIDEO, "u16*32 jpeg_activity", *_BEFORE_RESIDENCY, *_PCIE, _NAKS, _XGMI, *_CLOCKS),
    (1, 6): _layout(*_SOCKET, _ENERGY, *_RESIDENCY, *_PCIE, _NAKS, _XGMI, *_CLOCKS),
    (1, 7): _V1_7,
    (1, 8): _V1_7,  # differs only in the partitions' part, which begins after the fields that are read
}
"""By format and content revision; the part before the partitions' figures."""


def decode(blob: bytes) -> Table | Missing:
    """Decode the bytes of sysfs' `gpu_metrics`, or say why they cannot be read."""
    if len(blob) < 4:
        return Missing(f"gpu_metrics has {len(blob)} bytes")
    version = (blob[2], blob[3])
    layout = LAYOUTS.get(version)
    if layout is None:
        return Missing(f"gpu_metrics {version[0]}.{version[1]} is an unknown version")
    if len(blob) < ctypes.sizeof(layout):
        return Missing(f"gpu_metrics {version[0]}.{version[1]} is cut off: {len(blob)} bytes")
    return layout.from_buffer_copy(blob)


def readings(table: Table | Missing) -> dict[str, Measured]:
    """The fields of a `GpuSample` that the table has, in the schema's units."""
    return {
        "gfx_percent": percent(_field(table, "average_gfx_activity")),
        "memory_percent": percent(_field(table, "average_umc_activity")),
        "power_w": first(watts(_field(table, "current_socket_power")), watts(_field(table, "average_socket_power"))),
        "temperature_hotspot_c": number(_field(table, "temperature_hotspot")),
        "temperature_memory_c": number(_field(table, "temperature_mem")),
        "gfx_clock_mhz": first(
            mean(map(number, _list(table, "current_gfxclks"))), number(_field(table, "current_gfxclk"))
        ),
        "memory_clock_mhz": number(_field(table, "current_uclk")),
        "energy_j": divided(_field(table, "energy_accumulator"), 2**16),  # the firmware counts in 15.259 uJ
        "pcie_width": number(_field(table, "pcie_link_width")),
        "pcie_speed_gts": divided(_field(table, "pcie_link_speed"), 10, wide=False),
        "pcie_replays": amount(_field(table, "pcie_replay_count_acc")),
        "link_read_bytes": total(amount(kib, 1024) for kib in _list(table, "xgmi_read_data_acc")),
        "link_write_bytes": total(amount(kib, 1024) for kib in _list(table, "xgmi_write_data_acc")),
    }


def xcp_percent(table: Table | Missing, partition: int) -> Measured:
    """The activity of one partition of the socket: the mean over its compute dies."""
    partitions = _field(table, "xcp_stats")
    if isinstance(partitions, Missing):
        return partitions
    assert isinstance(partitions, ctypes.Array)
    known = 0 <= partition < len(partitions)
    return mean(map(percent, partitions[partition].gfx_busy_inst)) if known else Missing("no such partition")


def links(table: Table | Missing) -> tuple[Measured, Measured]:
    """How many XGMI links are up (state 1), and how many exist (up or down: 0)."""
    states = [state for state in _list(table, "xgmi_link_status") if state in (0, 1)]
    absent = Missing("no state of links")
    return (states.count(1), len(states)) if states else (absent, absent)


def residency(table: Table | Missing) -> Residency:
    """The throttling counters; empty if the table has none (before MI300)."""
    checks = number(_field(table, "accumulation_counter"), wide=True)
    if isinstance(checks, Missing):
        return {}
    counters = {reason: number(_field(table, name), wide=True) for reason, name in _RESIDENCIES.items()}
    known = {reason: int(count) for reason, count in counters.items() if not isinstance(count, Missing)}
    return {"checks": int(checks), **known}


def throttle_percent(table: Table | Missing, before: Residency | None) -> dict[str, float] | Missing:
    """The share of time since the counters `before` in which each reason held the clock back.

    Tables without counters (MI200) have momentary bits instead: 0 or 100.
    """
    if isinstance(table, Missing):
        return table
    now = residency(table)
    if now and before:
        deltas = {name: now[name] - before[name] for name in now.keys() & before.keys()}
        checks = deltas.pop("checks", 0)
        if checks == 0:
            return Missing("the counters have not moved")
        if checks < 0 or min(deltas.values(), default=0) < 0:
            return Missing("the counters were reset")
        return {reason: min(100.0, 100 * delta / checks) for reason, delta in deltas.items()}
    if now:
        return Missing("needs two samples")
    bits = number(_field(table, "indep_throttle_status"), wide=True)
    if isinstance(bits, Missing):
        return Missing("neither counters nor bits of throttling")
    return {reason: 100.0 * any(int(bits) >> bit & 1 for bit in places) for reason, places in _STATUS_BITS.items()}


def _field(table: Table | Missing, name: str) -> object:
    return table if isinstance(table, Missing) else getattr(table, name, Missing("not in this version of gpu_metrics"))


def _list(table: Table | Missing, name: str) -> list[object]:
    field = _field(table, name)
    return [*field] if isinstance(field, ctypes.Array) else [field]


def pair_dies(gpus: Sequence[GpuStatic], device_ids: Sequence[str]) -> list[GpuStatic]:
    """Give the two dies of a socket (MI250), neighbours by PCI address, one socket name.

    The first is partition 0: it reports the power of both, the second 0 W.
    """
    dies = [gpu for gpu, device_id in zip(gpus, device_ids, strict=True) if device_id in TWO_DIES]
    dies.sort(key=lambda gpu: gpu.bdf or "")
    paired = {
        die.index: msgspec.structs.replace(die, socket=dies[place - place % 2].socket, partition=place % 2)
        for place, die in enumerate(dies)
    }
    return [paired.get(gpu.index, gpu) for gpu in gpus]


def counted_once(readings: dict[str, object], gpu: GpuStatic) -> dict[str, object]:
    """The readings without those of the socket, unless this is its first device; older drivers repeat them."""
    if gpu.partition == 0:
        return readings
    return readings | {name: ELSEWHERE for name in ("power_w", "power_cap_w", "energy_j") if name in readings}
