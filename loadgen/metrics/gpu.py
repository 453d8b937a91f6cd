"""What is known of GPUs, in one schema for every vendor: what telemetry measures, the journal keeps and a result says.

Numbers are numbers or null; what is null has its reason in `missing`, so that absence is visible and never a zero.
Units are in the names. Times are CLOCK_MONOTONIC, which is one clock for the whole machine.
"""

from __future__ import annotations

import msgspec

from loadgen.vendors import VendorName


class GpuStatic(msgspec.Struct, frozen=True, omit_defaults=True):
    """What does not change while a GPU is watched; one for each device that the vendor enumerates (partitions too)."""

    index: int  # position in this backend's order
    vendor: VendorName
    name: str
    uuid: str | None = None
    bdf: str | None = None  # PCI address: domain:bus:device.function
    arch: str | None = None
    engine_index: int | None = None  # the device's number for HIP or CUDA, where the vendor tells it
    socket: str = ""
    """Devices of one socket share it; what belongs to a socket (power, energy, temperature) is counted once."""
    partition: int = 0  # 0 is the socket's first (or only) device, the one that carries the socket's figures
    compute_partition: str | None = None  # SPX, DPX, QPX, CPX; a MIG profile
    memory_partition: str | None = None  # NPS1, NPS2, NPS4
    hbm_total_bytes: int | None = None
    power_cap_default_w: float | None = None
    gfx_clock_max_mhz: float | None = None
    memory_clock_max_mhz: float | None = None
    pcie_width_max: int | None = None
    pcie_speed_max_gts: float | None = None
    links_total: int | None = None  # XGMI or NVLink links that the device has
    virtualization: str | None = None  # BAREMETAL, PASSTHROUGH, GUEST: it explains what is missing


class GpuSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device at one moment; None is "not available", with its reason in `missing`."""

    index: int
    t_s: float  # CLOCK_MONOTONIC right after this device was read
    gfx_percent: float | None = None  # share of time in which compute was busy; not a share of peak FLOPs
    memory_percent: float | None = None  # share of time in which the memory controller was busy
    hbm_used_bytes: int | None = None
    power_w: float | None = None
    power_cap_w: float | None = None
    temperature_hotspot_c: float | None = None
    temperature_memory_c: float | None = None
    gfx_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    energy_j: float | None = None  # cumulative; only differences mean something
    throttle_percent: dict[str, float] | None = None
    """By reason (power, current, thermal, hbm, vr, prochot, brake, hardware): the share of the time since the last
    sample."""
    pcie_width: int | None = None
    pcie_speed_gts: float | None = None
    pcie_replays: int | None = None
    link_read_bytes: int | None = None  # cumulative over all XGMI or NVLink links
    link_write_bytes: int | None = None
    links_up: int | None = None
    ecc_correctable: int | None = None
    ecc_uncorrectable: int | None = None
    processes: tuple[GpuProcess, ...] | None = None  # only while they are asked for
    missing: dict[str, str] = {}  # field name to reason, for what is None although this kind of sample should have it


class GpuProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that holds memory of a device."""

    pid: int
    name: str = ""
    hbm_bytes: int | None = None
