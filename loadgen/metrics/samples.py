"""What is known of GPUs and the host at a moment, in one schema for every vendor: what telemetry measures, the journal
keeps and `vramp doctor` finds.

Numbers are numbers or null; what is null has its reason in `missing`, so that absence is visible and never a zero.
Units are in the names. Times are CLOCK_MONOTONIC, which is one clock for the whole machine. Nothing here needs numpy:
the processes that read sensors are to stay small.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

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
    engine_index: int | None = (
        None  # the device's number for HIP or CUDA if no variable hides any; the first of several
    )
    engine_devices: int = 1  # how many of theirs it stands for: partitions that are not listed apart
    engine_name: str | None = None  # as variables of HIP or CUDA may name it: GPU-f00d, MIG-f00d
    device_file: str | None = None  # through which a container gets this one alone: /dev/dri/renderD128
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
    xcp_percent: float | None = None  # `gfx_percent` of this partition alone, where its socket is split (CPX)
    sm_percent: float | None = None  # NVIDIA from Hopper on: mean share of the SMs that were busy since the last sample
    dram_percent: float | None = None  # the same GPUs: share of the memory's peak bandwidth that was used
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
    pcie_bytes_per_s: float | None = None  # both directions together, since the last sample; NVIDIA from Hopper on
    link_read_bytes: int | None = None  # cumulative over all XGMI or NVLink links
    link_write_bytes: int | None = None
    links_up: int | None = None
    ecc_correctable: int | None = None
    ecc_uncorrectable: int | None = None
    ecc_deferred: int | None = None  # AMD: not corrected, and not used by anybody yet
    bad_pages: int | None = None  # of memory that is out of use for its errors: AMD, and NVIDIA before Ampere
    rows_remapped: int | None = None  # NVIDIA from Ampere on: rows of memory that spare ones replace, over its life
    remap_pending: bool | None = None  # a row waits for the GPU to be reset
    remap_failed: bool | None = None  # there was no spare row
    xids: int | None = None  # NVIDIA's Xid errors since it is watched
    xid_last: int | None = None  # the number of the last one
    processes: tuple[GpuProcess, ...] | None = None  # only while they are asked for
    missing: dict[str, str] = {}  # field name to reason, for what is None although this kind of sample should have it


class GpuProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that holds memory of a device."""

    pid: int  # the host's
    name: str = ""
    hbm_bytes: int | None = None
    user: str = ""  # empty where it cannot be seen
    command: str = ""  # without secrets, shortened
    of_server: bool | None = None  # whether it is one of the server's processes; None where nobody has looked


class HostSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """The host at one moment, and what it did since the sample before; None is "not known"."""

    t_s: float  # CLOCK_MONOTONIC
    cores: int  # logical ones
    memory_used_bytes: int  # what is not available to new processes without swapping
    memory_total_bytes: int
    load_1min: float
    cpu_percent: float | None = None  # of all cores, 0 to 100
    cpu_busiest_percent: float | None = None
    """The busiest core's: a single thread that is the limit shows here, and not in the mean."""
    server_cpu_percent: float | None = None  # of the server's processes; 100 is one core
    server_rss_bytes: int | None = None  # resident memory of the server's processes; what they share counts for each
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    network_in_bytes_per_s: float | None = None  # without the loopback, over which the load of a local server goes
    network_out_bytes_per_s: float | None = None
    open_files: dict[int, int] = {}  # descriptors by process, for those asked for
    cpu_mhz: float | None = None  # the mean of a few cores, spread over all
    cpu_mhz_min: float | None = None
    governor: str | None = None  # of the cores' frequency; several are listed


class Reading(NamedTuple):
    """The value of a counter at a time."""

    t_s: float
    value: float


def gained(before: float, after: float) -> float | None:
    """What a counter gained; None if it was reset."""
    return after - before if after >= before else None


def rate(before: Reading, after: Reading) -> float | None:
    """The gain per second; None after a reset, or if no time has passed."""
    gain = gained(before.value, after.value)
    span_s = after.t_s - before.t_s
    return None if gain is None or span_s <= 0 else gain / span_s


def carried(before: GpuSample | None, now: GpuSample, *, processes: bool = True) -> GpuSample:
    """A sample with what it did not look at as it was; what it looked at in vain, for a reason, stays missing.

    Without `processes`, nobody wants an old list of them.
    """
    if before is None:
        return now
    old = {
        name: getattr(before, name)
        for name in GpuSample.__struct_fields__
        if getattr(now, name) is None and name not in now.missing and getattr(before, name) is not None
    }
    if not processes:
        old.pop("processes", None)
    # Reasons of the slow tier last as long as its values do.
    reasons = {name: why for name, why in before.missing.items() if getattr(now, name, None) is None}
    return msgspec.structs.replace(now, **old, missing=reasons | now.missing)


DevicesBy = Literal["given", "processes", "hbm", "simulated", "all"]


class ServerDevices(msgspec.Struct, frozen=True):
    """The GPUs on which the server computes."""

    indices: tuple[int, ...]
    by: DevicesBy
    """`given`: visible devices, docker's devices and sizes say it; `processes`: those of the server hold their memory;
    `hbm`: their memory grew since the run began, or is in use for a tenth, which others' may be too; `simulated`: all
    are its; `all`: nothing tells them apart."""


DOCTOR_SCHEMA = "vramp.doctor/1"


class UnitCheck(msgspec.Struct, frozen=True):
    """Whether a value can be true in the unit that it is said to have."""

    quantity: str
    raw: float  # as the backend told it, in the unit of its name
    value: float  # in `unit`
    unit: str
    low: float
    high: float
    plausible: bool  # whether the value lies between `low` and `high`


class GpuExam(msgspec.Struct, frozen=True):
    """One device as one candidate tells it."""

    gpu: GpuStatic
    sample: GpuSample  # every field as it was told last, processes too
    missing: dict[str, str]  # field name to reason, for every field of either that is null
    checks: tuple[UnitCheck, ...]


class Tried(msgspec.Struct, frozen=True):
    """One way to measure, and what came of it."""

    vendor: str
    name: str
    why: str  # why it is tried, and in this place of the order
    failure: str | None  # none if it works
    first_look_ms: float | None  # from its start to its first look at all devices
    meta: dict[str, Any]  # versions of wrapper, library and driver
    printed: tuple[str, ...]  # the last lines that it or its library printed
    gpus: tuple[GpuExam, ...]

    @property
    def works(self) -> bool:
        """Whether it measured to the end."""
        return self.failure is None


class DeviceFile(msgspec.Struct, frozen=True):
    """A file through which a GPU is reached."""

    path: str
    state: Literal["usable", "denied", "absent"]
    owner: str = ""  # mode, user and group, such as `crw-rw---- root:render`
    fix: str = ""


class HostExam(msgspec.Struct, frozen=True):
    """The host, over the last part of a second."""

    sample: HostSample
    missing: dict[str, str]


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found."""

    schema: str = DOCTOR_SCHEMA
    versions: dict[str, str | None]
    """Versions of vramp, Python, the system, the packages, the drivers and the vendors' stacks; None is "not here"."""
    user: str
    groups: tuple[str, ...]
    devices: tuple[DeviceFile, ...]
    nothing: str = ""  # why no candidate was tried
    tried: tuple[Tried, ...]
    host: HostExam

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Vendors of which something was tried and nothing works."""
        working = {each.vendor for each in self.tried if each.works}
        return tuple(dict.fromkeys(each.vendor for each in self.tried if each.vendor not in working))
