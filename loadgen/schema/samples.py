"""Samples of GPUs and host in one schema for every vendor, for telemetry, the journal and `vramp doctor`.

Values are numbers or null; a null has its reason in `missing`, so that absence is visible and never a zero. Units are
in the names. Times are CLOCK_MONOTONIC, one clock for the whole machine. Nothing here imports numpy: the processes that
read sensors must stay small.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from loadgen.schema.bounds import ClockS, DevicesBy, Whole
from loadgen.schema.finding import Finding
from loadgen.vendors import VendorName


class GpuStatic(msgspec.Struct, frozen=True, omit_defaults=True):
    """What does not change about a GPU; one per device that the vendor lists (including partitions)."""

    index: Whole  # position in this backend's order
    vendor: VendorName
    name: str
    host: str = ""  # the machine that it is in, by the name that its exporter or address gives; "" is this one
    uuid: str | None = None
    bdf: str | None = None  # PCI address: domain:bus:device.function
    arch: str | None = None
    engine_index: Whole | None = (
        None  # the device's number for HIP or CUDA if no variable hides any; the first of several
    )
    engine_devices: Whole = 1  # how many of their devices it stands for: partitions that are not listed separately
    engine_name: str | None = None  # its name in variables of HIP or CUDA: GPU-f00d, MIG-f00d
    device_file: str | None = None  # the file that gives a container this device alone: /dev/dri/renderD128
    socket: str = ""
    """Shared by the devices of one socket; a socket's power, energy and temperature are counted once."""
    partition: Whole = 0  # 0 is the socket's first (or only) device, which carries the socket's figures
    compute_partition: str | None = None  # SPX, DPX, QPX, CPX; a MIG profile
    memory_partition: str | None = None  # NPS1, NPS2, NPS4
    hbm_total_bytes: Whole | None = None
    power_cap_default_w: float | None = None
    gfx_clock_max_mhz: float | None = None
    memory_clock_max_mhz: float | None = None
    pcie_width_max: Whole | None = None
    pcie_speed_max_gts: float | None = None
    links_total: Whole | None = None  # XGMI or NVLink links of the device
    firmware: dict[str, str] | None = None  # versions by component, as the driver writes them
    virtualization: str | None = None  # BAREMETAL, PASSTHROUGH, GUEST: explains missing values


class GpuSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device at one moment; None is "not available", with its reason in `missing`."""

    index: Whole
    t_s: ClockS  # CLOCK_MONOTONIC right after this device was read
    gfx_percent: float | None = None  # share of time in which compute was busy; not a share of peak FLOPs
    memory_percent: float | None = None  # share of time in which the memory controller was busy
    xcp_percent: float | None = None  # `gfx_percent` of this partition alone, where its socket is split (CPX)
    sm_percent: float | None = None  # NVIDIA from Hopper on: mean share of the SMs that were busy since the last sample
    dram_percent: float | None = None  # the same GPUs: share of the memory's peak bandwidth that was used
    hbm_used_bytes: Whole | None = None
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
    pcie_width: Whole | None = None
    pcie_speed_gts: float | None = None
    pcie_replays: Whole | None = None
    pcie_bytes_per_s: float | None = None  # both directions together, since the last sample; NVIDIA from Hopper on
    link_read_bytes: Whole | None = None  # cumulative over all XGMI or NVLink links
    link_write_bytes: Whole | None = None
    links_up: Whole | None = None
    fabric: str | None = None  # NVIDIA, of the NVSwitches: Completed, In Progress, Not Started
    ecc_correctable: Whole | None = None
    ecc_uncorrectable: Whole | None = None
    ecc_deferred: Whole | None = None  # AMD: not corrected, and not consumed yet
    bad_pages: Whole | None = None  # retired memory pages: AMD, and NVIDIA before Ampere
    rows_remapped: Whole | None = None  # NVIDIA from Ampere on: memory rows replaced by spare ones, over its life
    remap_pending: bool | None = None  # a row will be replaced at the GPU's next reset
    remap_failed: bool | None = None  # there was no spare row
    xids: Whole | None = None  # NVIDIA's Xid errors since monitoring began
    xid_last: Whole | None = None  # the number of the last one
    processes: tuple[GpuProcess, ...] | None = None  # only while requested
    missing: dict[str, str] = {}  # field name to reason, for fields that this kind of sample should have

    @property
    def has_figures(self) -> bool:
        """Whether anything was measured by which the GPU could be judged."""
        return not {self.gfx_percent, self.power_w, self.hbm_used_bytes, self.temperature_hotspot_c} <= {None}


class GpuProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that holds memory of a device."""

    pid: Whole  # the host's
    name: str = ""
    hbm_bytes: Whole | None = None
    user: str = ""  # empty if not visible
    command: str = ""  # without secrets, shortened
    of_server: bool | None = None  # whether it belongs to the server; None if not checked

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name})" if self.name else f"pid {self.pid}"


class HostSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """The host at one moment, and since the previous sample; None is unknown."""

    t_s: ClockS  # CLOCK_MONOTONIC
    cores: Whole  # logical ones
    memory_used_bytes: Whole  # what is not available to new processes without swapping
    memory_total_bytes: Whole
    load_1min: float
    cpu_percent: float | None = None  # of all cores, 0 to 100
    cpu_busiest_percent: float | None = None
    """The busiest core's: a saturated single thread shows here, and not in the mean."""
    cpu_steal_percent: float | None = None  # of all cores' time: what the hypervisor gave to others
    server_cpu_percent: float | None = None  # of the server's processes; 100 is one core
    server_rss_bytes: Whole | None = None  # resident memory of the server's processes; shared pages count for each
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    network_in_bytes_per_s: float | None = None  # without loopback, which carries the load of a local server
    network_out_bytes_per_s: float | None = None
    open_files: dict[int, Whole] = {}  # descriptors by process, for those asked for
    cpu_mhz: float | None = None  # the mean of a few cores, spread over all
    cpu_mhz_min: float | None = None
    governor: str | None = None  # of the cores' frequency; several are listed


class Reading(NamedTuple):
    """The value of a counter at a time."""

    t_s: ClockS
    value: float


def gained(before: float, after: float) -> float | None:
    """A counter's gain; None if it was reset."""
    return after - before if after >= before else None


def rate(before: Reading, after: Reading) -> float | None:
    """The gain per second; None after a reset, or if no time has passed."""
    gain = gained(before.value, after.value)
    span_s = after.t_s - before.t_s
    return None if gain is None or span_s <= 0 else gain / span_s


def carried(before: GpuSample | None, now: GpuSample, *, processes: bool = True) -> GpuSample:
    """The sample `now`, with previous values for fields it did not read; fields whose reading failed stay missing.

    Without `processes`, an old list of processes is dropped.
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
    # Reasons from the slow tier stay valid for as long as its values.
    reasons = {name: why for name, why in before.missing.items() if getattr(now, name, None) is None}
    return msgspec.structs.replace(now, **old, missing=reasons | now.missing)


class ServerDevices(msgspec.Struct, frozen=True):
    """The GPUs on which the server computes."""

    indices: tuple[int, ...]
    by: DevicesBy
    """`given`: visible devices, docker's devices and parallel sizes say so; `processes`: the server's processes hold
    their memory; `hbm`: their memory use grew since the run began or exceeds a tenth, which may be others';
    `simulated`: all of them; `all`: unknown."""


DOCTOR_SCHEMA = "vramp.doctor/1"

ProbeState = Literal["pass", "fail", "measured", "failed", "absent"]
"""`measured`: no public criterion for this part; `failed`: the tool did not get to its end."""


class ProbeFigure(msgspec.Struct, frozen=True):
    """One figure that a tool printed, or one test that it passed or failed."""

    name: str
    subject: str  # `gpu 2`, `gpu 0 to gpu 3`, `8 GPUs`
    value: float | None
    unit: str
    passed: bool | None = None  # what the tool itself says; None if it says nothing
    low: float | None = None  # the least that its part should reach; None without a public criterion
    source: str = ""  # of `low`

    @property
    def is_bad(self) -> bool:
        return self.passed is False or (self.low is not None and self.value is not None and self.value < self.low)

    @property
    def words(self) -> str:
        """The figure with what it is held against."""
        value = "" if self.value is None else f" {self.value:.5g} {self.unit}"
        if self.low is not None:
            return f"{self.subject}: {self.name}{value}, at least {self.low:g} {self.unit} ({self.source})"
        own = {True: ": passed", False: ": failed", None: ""}[self.passed]
        return f"{self.subject}: {self.name}{value}{own}"


class ProbeResult(msgspec.Struct, frozen=True):
    """What came of one tool."""

    name: str
    state: ProbeState
    why: str  # the worst figure, or why there is none
    figures: tuple[ProbeFigure, ...] = ()
    command: tuple[str, ...] = ()  # the first, if it ran several times
    took_s: float = 0.0
    output_path: str | None = None


class UnitCheck(msgspec.Struct, frozen=True):
    """Whether a value is plausible in its stated unit."""

    quantity: str
    raw: float  # as reported by the backend, in the unit of its name
    value: float  # in `unit`
    unit: str
    low: float
    high: float
    plausible: bool  # whether the value lies between `low` and `high`


class GpuExam(msgspec.Struct, frozen=True):
    """One device as reported by one candidate."""

    gpu: GpuStatic
    sample: GpuSample  # the last value of every field, including processes
    missing: dict[str, str]  # field name to reason, for every null field of both
    checks: tuple[UnitCheck, ...]


class Tried(msgspec.Struct, frozen=True):
    """One backend that was tried, and the outcome."""

    vendor: str
    name: str
    why: str  # why it was tried, and at this place in the order
    failure: str | None  # None if it works
    first_look_ms: float | None  # from its start to its first sample of all devices
    meta: dict[str, Any]  # versions of wrapper, library and driver
    printed: tuple[str, ...]  # the last lines printed by it or its library
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
    settings: dict[str, str] = {}  # of processor and kernel


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """All findings about a box."""

    schema: str = DOCTOR_SCHEMA
    versions: dict[str, str | None]
    """Versions of vramp, Python, the system, packages, drivers and the vendors' stacks; None is "not here"."""
    user: str
    groups: tuple[str, ...]
    devices: tuple[DeviceFile, ...]
    nothing: str = ""  # why no candidate was tried
    tried: tuple[Tried, ...]
    host: HostExam
    outdated: tuple[Finding, ...] = ()
    probes: tuple[ProbeResult, ...] = ()  # of the vendors' own tools, if they were requested

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Vendors for which something was tried, but nothing works."""
        working = {each.vendor for each in self.tried if each.works}
        return tuple(dict.fromkeys(each.vendor for each in self.tried if each.vendor not in working))


class GpuPace(msgspec.Struct, frozen=True):
    """How fast the counters of a GPU grow."""

    link_read_bytes_per_s: float | None = None  # between the last two samples
    link_write_bytes_per_s: float | None = None
    energy_j: float | None = None  # since the run began
