"""A snapshot of the box's GPUs, without a vendor's library in this process.

AMD's are read from sysfs, NVIDIA's from `nvidia-smi`. Invariants: no sleeping GPU is woken (the files of sysfs that are
read are the driver's own, and `nvidia-smi` is not called while every NVIDIA GPU is suspended); amounts are bytes and
watts; a GPU is a whole socket even if a partition mode (such as CPX) splits it into several devices, because only the
socket has counters; what cannot be read is None.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from loadgen.errors import TelemetryError
from loadgen.server.process.log import clean_line
from loadgen.system import text_in
from loadgen.vendors import VENDORS, Platform, is_partition


class Holder(msgspec.Struct, frozen=True):
    """A process that holds memory of a GPU."""

    pid: int  # as the driver reports it: inside a container, still the host's pid
    name: str  # the kernel's short name; empty if not visible
    used_bytes: int | None

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name})" if self.name else f"pid {self.pid}"


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU; None is unknown."""

    id: str = ""  # stable: PCI address (AMD) or UUID (NVIDIA)
    index: int = 0  # the runtime's number for the socket if no variable hides any
    name: str
    arch: str | None = None  # gfx942, gfx1100; NVIDIA's compute capability as sm_90, sm_100
    hbm_bytes: int | None = None
    used_bytes: int | None = None
    holders: tuple[Holder, ...] = ()  # largest first
    devices: int = 1  # more than 1 if a partition mode makes several devices of this GPU
    compute_partition: str | None = None  # SPX, DPX, QPX, CPX; MIG
    memory_partition: str | None = None  # NPS1, NPS2, NPS4
    power_cap_w: float | None = None
    power_cap_default_w: float | None = None
    links_up: int | None = None  # GPUs reached over XGMI, or NVLinks
    links_expected: int | None = None  # the most links of any GPU of the same kind on the box
    fabric: str | None = None  # of an NVSwitch: Completed, In Progress, Not Started

    @property
    def split(self) -> bool:
        """Whether it is partitioned, so that a server's device is only a part of it."""
        return is_partition(self.compute_partition)


def read_gpus(
    *, sysfs: Path = Path("/sys"), proc: Path = Path("/proc"), path: str | None = None, platform: Platform | None = None
) -> list[Gpu]:
    """The GPUs in the runtimes' order; raises `TelemetryError` with the reason if none can be read.

    `path` is searched for `nvidia-smi`, by default our PATH; `platform` restricts it to one vendor's GPUs. May take up
    to 6 s where a driver hangs.
    """
    gpus: list[Gpu] = []
    reasons: list[str] = []
    for vendor in VENDORS:
        if platform in (None, vendor.platform):
            try:
                gpus += pkgutil.resolve_name(vendor.gpu_reader)(sysfs, proc, path)
            except TelemetryError as error:
                reasons.append(str(error))
    if not gpus:
        raise TelemetryError("no GPU can be read here: " + "; ".join(reasons))
    return gpus


def with_expected_links(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Set `links_expected`: links that were down when the driver loaded are visible only by comparing GPUs."""
    most: dict[str, int] = {}
    for gpu in gpus:
        most[gpu.name] = max(gpu.links_up or 0, most.get(gpu.name, 0))
    return [replace(gpu, links_expected=most[gpu.name] or None) for gpu in gpus]


def has_host_pids(proc: Path) -> bool:
    """Whether the pids that drivers report are valid in this `/proc`; not in a container with its own pid namespace."""
    try:
        return str((proc / "self/ns/pid").readlink()) == "pid:[4026531836]"  # the kernel's fixed number
    except OSError:
        return False


def named_holders(held: Iterable[tuple[int, int | None]], proc: Path) -> tuple[Holder, ...]:
    """Holders from pids and bytes, largest first, with the names of visible processes."""
    ours = has_host_pids(proc)
    largest_first = sorted(held, key=lambda entry: (-(entry[1] or 0), entry[0]))
    names = (clean_line(text_in(proc / str(pid) / "comm").encode()) if ours else "" for pid, _ in largest_first)
    return tuple(Holder(pid, name, used) for (pid, used), name in zip(largest_first, names, strict=True))
