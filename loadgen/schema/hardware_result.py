"""The hardware part of a result: each GPU over a stage and over the run, their energy and computation."""

from __future__ import annotations

from typing import Literal

import msgspec

from loadgen.schema.bounds import Columns, DevicesBy


class GpuFigure(msgspec.Struct, frozen=True):
    """One quantity of one GPU over a window."""

    min: float
    mean: float
    p50: float
    p95: float
    max: float


class GpuStage(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU over the window of a stage; None is unavailable, with its reason in `missing`."""

    index: int
    name: str
    looks: int
    of_server: bool | None = None  # whether the server computes on it
    hbm_used_bytes_max: int | None = None
    hbm_total_bytes: int | None = None
    gfx_percent: GpuFigure | None = None
    memory_percent: GpuFigure | None = None
    xcp_percent: GpuFigure | None = None
    sm_percent: GpuFigure | None = None
    dram_percent: GpuFigure | None = None
    power_w: GpuFigure | None = None
    temperature_hotspot_c: GpuFigure | None = None
    temperature_memory_c: GpuFigure | None = None
    gfx_clock_mhz: GpuFigure | None = None
    memory_clock_mhz: GpuFigure | None = None
    throttled_percent: dict[str, float] = {}
    """Mean share of the time throttled, by reason, without zeros."""
    pcie_replays: int | None = None
    ecc_correctable: int | None = None
    """New errors, like all counts here: between the last check before the stage and the first after it, every ten
    seconds."""
    ecc_uncorrectable: int | None = None
    ecc_deferred: int | None = None
    bad_pages: int | None = None
    rows_remapped: int | None = None
    xids: int | None = None
    xid_last: int | None = None  # the number of the latest Xid error, if there is a new one
    link_read_bytes_per_s: float | None = None
    link_write_bytes_per_s: float | None = None
    missing: dict[str, str] = {}


class GpuSeries(msgspec.Struct, frozen=True):
    """One GPU over the run."""

    index: int
    columns: Columns


EnergySource = Literal["counter", "power"]


class SocketEnergy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one socket used in a window."""

    socket: str
    index: int  # the device that has the socket's figures
    joules: float | None
    source: EnergySource | None
    counter_joules: float | None = None
    power_joules: float | None = None
    distrusted: bool = False
    """Power is used instead: the counter deviates from it by more than a tenth, over at least ten seconds."""


class EnergyResult(msgspec.Struct, frozen=True):
    """The energy of the server's sockets in the measured window: no CPU, no network, no fans."""

    joules: float | None
    source: EnergySource | None
    distrusted: bool  # the counters deviate from the integrated power, which is used instead
    window_s: float
    joules_per_output_token: float | None
    tokens_per_s_per_w: float | None  # output tokens per second per watt, that is per joule
    sockets: tuple[SocketEnergy, ...]
    devices_by: DevicesBy | None = None
    """How the server's GPUs were determined, see `ServerDevices.by`."""


class ComputeResult(msgspec.Struct, frozen=True):
    """What each GPU of the server computed, by the engine's own estimate, and the share of its peak (MFU)."""

    tflops_per_gpu: float  # TFLOP/s between the engine's readings, including warm-up and waits
    precision: str | None = None  # of the peak: `bf16`, `fp16` or `fp8`
    peak_tflops: float | None = None  # dense, of one GPU
    mfu_percent: float | None = None  # the share of the peak
    why: str = ""  # why the peak is unknown
    hbm_bytes_per_s: float | None = None  # read and written by each GPU, by the same estimate
    peak_hbm_bytes_per_s: float | None = None  # of one GPU; null where the peak is unknown
    hbm_bandwidth_percent: float | None = None  # the share of that peak
