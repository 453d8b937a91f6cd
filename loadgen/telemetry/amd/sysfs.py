"""AMD GPUs through the files of the kernel: works without any library and without root.

The firmware's table (`gpu_metrics`) is read where its version is known, the single files of the driver where it is not.
Invariants: read only; `pcie_bw` is never read (the driver sleeps for a second); a suspended GPU is not woken; the
devices here are sockets and dies, because partitions beside the first have no PCI device of their own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadgen.errors import TelemetryError
from loadgen.metrics.samples import GpuSample, GpuStatic
from loadgen.telemetry.amd import gpu_metrics
from loadgen.telemetry.amd.gpu_metrics import Residency, Table
from loadgen.telemetry.amd.sockets import counted_once, pair_dies
from loadgen.telemetry.amd.sysfs_files import (
    ecc_counts,
    highest_mhz,
    hwmon_labelled,
    kfd_gpu_id,
    kfd_processes,
    known,
    read_bytes,
    read_number,
    speed_gts,
)
from loadgen.telemetry.backend import Backend
from loadgen.telemetry.sample import Opened
from loadgen.telemetry.sanitize import Missing, Reading, amount, divided, first, number, percent, split, value_of

_AMD = "0x1002"
_ASLEEP = Missing("suspended, and not woken")


@dataclass(slots=True)
class _Card:
    """A GPU's folder of files, and the counters of throttling at the last look."""

    folder: Path
    hwmon: Path
    static: GpuStatic
    kfd_id: str | None
    before: Residency | None = None

    def table(self) -> Table | Missing:
        """The firmware's figures of this moment."""
        if known(self.folder / "power/runtime_status") == "suspended":
            return _ASLEEP
        blob = read_bytes(self.folder / "gpu_metrics")
        return blob if isinstance(blob, Missing) else gpu_metrics.decode(blob)


def open_amd_sysfs(sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> Backend:
    """Find the cards of the amdgpu driver; raises `TelemetryError` if there is none, or none that tells anything."""
    folders = _folders(sysfs)
    if not folders:
        raise TelemetryError(f"No GPU of AMD under {sysfs / 'class/drm'}: is the amdgpu driver loaded?")
    if not any((folder / "mem_info_vram_used").exists() for folder in folders):
        raise TelemetryError(f"No file of the amdgpu driver in {folders[0]}: is another driver bound to the GPU?")
    cards = _cards(sysfs, folders)
    return Backend(
        opened=Opened("amd-sysfs", _meta(sysfs, cards), tuple(card.static for card in cards)),
        sample=lambda slow, processes: tuple(_look(card, sysfs, proc, slow, processes) for card in cards),
        close=lambda: None,
    )


def _folders(sysfs: Path) -> list[Path]:
    cards = [path for path in (sysfs / "class/drm").glob("card*") if re.fullmatch(r"card\d+", path.name)]
    devices = [card / "device" for card in sorted(cards, key=lambda card: int(card.name.removeprefix("card")))]
    return [device for device in devices if known(device / "vendor") == _AMD]


def _meta(sysfs: Path, cards: Sequence[_Card]) -> dict[str, Any]:
    tables = {index: card.table() for index, card in enumerate(cards)}
    versions = {
        table.reason if isinstance(table, Missing) else f"{table.format_revision}.{table.content_revision}"
        for table in tables.values()
    }
    return {"driver": known(sysfs / "module/amdgpu/version"), "gpu_metrics": ", ".join(sorted(versions))}


def _cards(sysfs: Path, folders: Sequence[Path]) -> list[_Card]:
    cards = [_card(sysfs, index, folder) for index, folder in enumerate(folders)]
    ids = [known(folder / "device") or "" for folder in folders]
    for card, static in zip(cards, pair_dies([card.static for card in cards], ids), strict=True):
        card.static = static
    return cards


def _card(sysfs: Path, index: int, folder: Path) -> _Card:
    hwmon = next(iter(sorted((folder / "hwmon").glob("hwmon*"))), folder / "hwmon")
    bdf = folder.resolve().name
    static = GpuStatic(
        index=index,
        vendor="amd",
        name=known(folder / "product_name") or f"AMD GPU {known(folder / 'device') or 'of unknown kind'}",
        uuid=known(folder / "unique_id"),
        bdf=bdf,
        socket=bdf.rpartition(".")[0] or bdf,
        compute_partition=known(folder / "current_compute_partition"),
        memory_partition=known(folder / "current_memory_partition"),
        hbm_total_bytes=value_of(_amount(folder / "mem_info_vram_total")),
    )
    return _with_limits(_Card(folder, hwmon, static, kfd_gpu_id(sysfs, bdf)))


def _with_limits(card: _Card) -> _Card:
    card.static = msgspec.structs.replace(
        card.static,
        power_cap_default_w=value_of(_microwatts(card.hwmon / "power1_cap_default")),
        gfx_clock_max_mhz=value_of(highest_mhz(card.folder / "pp_dpm_sclk")),
        memory_clock_max_mhz=value_of(highest_mhz(card.folder / "pp_dpm_mclk")),
        pcie_width_max=value_of(_amount(card.folder / "max_link_width")),
        pcie_speed_max_gts=value_of(speed_gts(card.folder / "max_link_speed")),
        links_total=value_of(gpu_metrics.links(card.table())[1]),
    )
    return card


def _look(card: _Card, sysfs: Path, proc: Path, slow: bool, processes: bool) -> GpuSample:
    table = card.table()
    readings: dict[str, object] = {
        "hbm_used_bytes": _amount(card.folder / "mem_info_vram_used"),
        **_figures(card, table),
        "throttle_percent": gpu_metrics.throttle_percent(table, card.before),
    }
    t_s = time.monotonic()
    card.before = gpu_metrics.residency(table) or card.before
    if slow:
        corrected, uncorrected = ecc_counts(card.folder / "ras")
        readings |= {"ecc_correctable": corrected, "ecc_uncorrectable": uncorrected}
        readings |= {"power_cap_w": _microwatts(card.hwmon / "power1_cap"), "links_up": gpu_metrics.links(table)[0]}
    if processes:
        readings["processes"] = kfd_processes(sysfs, proc, card.kfd_id)
    values, missing = split(counted_once(readings, card.static))
    return GpuSample(index=card.static.index, t_s=t_s, missing=missing, **values)


def _figures(card: _Card, table: Table | Missing) -> dict[str, Reading]:
    """The table's figures; what it lacks, from the driver's single files, each of which costs a question to the GPU."""
    figures = gpu_metrics.readings(table)
    if table is _ASLEEP:
        return figures
    for name, read in _SINGLE_FILES.items():
        if isinstance(figures[name], Missing):
            figures[name] = first(read(card), figures[name])
    return figures


def _amount(path: Path) -> Reading:
    return amount(read_number(path))


def _microwatts(path: Path) -> Reading:
    return divided(read_number(path), 1e6)


def _power(card: _Card) -> Reading:
    """MI200 has the average, MI300 the moment."""
    return first(_microwatts(card.hwmon / "power1_average"), _microwatts(card.hwmon / "power1_input"))


_SINGLE_FILES: dict[str, Callable[[_Card], Reading]] = {
    "gfx_percent": lambda card: percent(read_number(card.folder / "gpu_busy_percent")),
    "memory_percent": lambda card: percent(read_number(card.folder / "mem_busy_percent")),
    "power_w": _power,
    "temperature_hotspot_c": lambda card: divided(hwmon_labelled(card.hwmon, "temp", "junction"), 1e3),
    "temperature_memory_c": lambda card: divided(hwmon_labelled(card.hwmon, "temp", "mem"), 1e3),
    "gfx_clock_mhz": lambda card: divided(hwmon_labelled(card.hwmon, "freq", "sclk"), 1e6),
    "memory_clock_mhz": lambda card: divided(hwmon_labelled(card.hwmon, "freq", "mclk"), 1e6),
    "pcie_width": lambda card: number(read_number(card.folder / "current_link_width")),
    "pcie_speed_gts": lambda card: speed_gts(card.folder / "current_link_speed"),
    "pcie_replays": lambda card: _amount(card.folder / "pcie_replay_count"),
}
