"""AMD GPUs through the kernel's files: works without any library and without root.

The firmware's table (`gpu_metrics`) is used if its version is known, otherwise the driver's single files. Invariants:
read only; `pcie_bw` is never read (the driver sleeps for a second); a suspended GPU is not woken; the devices here are
sockets and dies, because partitions other than the first have no PCI device of their own; a file that is missing,
unreadable or malformed gives `Missing` with the reason.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadgen.errors import TelemetryError
from loadgen.format import harmless
from loadgen.schema.samples import GpuProcess, GpuSample, GpuStatic
from loadgen.system import has_host_pids
from loadgen.telemetry.amd import gpu_metrics
from loadgen.telemetry.amd.gpu_metrics import Residency, Table, counted_once, pair_dies
from loadgen.telemetry.amd.kernel import (
    ComputeNode,
    amd_cards,
    compute_nodes,
    firmware,
    held_bytes,
    socket_of,
    xgmi_peers,
)
from loadgen.telemetry.protocol import Backend, Opened
from loadgen.telemetry.readings import Measured, Missing, amount, divided, first, number, percent, split, value_of

_ASLEEP = Missing("suspended, and not woken")


@dataclass(slots=True)
class _Card:
    """A GPU's folder of files, and the throttling counters at the last sample."""

    folder: Path
    hwmon: Path
    static: GpuStatic
    nodes: tuple[ComputeNode, ...]  # amdkfd's, for it and its partitions
    before: Residency | None = None

    def table(self) -> Table | Missing:
        if known(self.folder / "power/runtime_status") == "suspended":
            return _ASLEEP
        blob = read_bytes(self.folder / "gpu_metrics")
        return blob if isinstance(blob, Missing) else gpu_metrics.decode(blob)


def open_amd_sysfs(sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> Backend:
    """Find the cards of the amdgpu driver; raises `TelemetryError` if there is none, or none with any values."""
    folders = amd_cards(sysfs)
    if not folders:
        raise TelemetryError(f"No GPU of AMD under {sysfs / 'class/drm'}: is the amdgpu driver loaded?")
    if not any((folder / "mem_info_vram_used").exists() for folder in folders):
        raise TelemetryError(f"No file of the amdgpu driver in {folders[0]}: is another driver bound to the GPU?")
    cards = [_card(sysfs, index, folder) for index, folder in enumerate(folders)]
    device_ids = [known(folder / "device") or "" for folder in folders]
    for card, static in zip(cards, pair_dies([card.static for card in cards], device_ids), strict=True):
        card.static = static
    versions = set[str]()
    for table in (card.table() for card in cards):
        if isinstance(table, Missing):
            versions.add(table.reason.removeprefix("gpu_metrics").lstrip(": "))
        else:
            versions.add(f"{table.format_revision}.{table.content_revision}")
    meta = {"driver": known(sysfs / "module/amdgpu/version"), "gpu_metrics": ", ".join(sorted(versions))}
    return Backend(
        opened=Opened("amd-sysfs", meta, tuple(card.static for card in cards)),
        sample=lambda slow, processes: tuple(_sample(card, sysfs, proc, slow, processes) for card in cards),
        close=lambda: None,
    )


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
        power_cap_default_w=value_of(_microwatts(hwmon / "power1_cap_default")),
        gfx_clock_max_mhz=value_of(highest_mhz(folder / "pp_dpm_sclk")),
        memory_clock_max_mhz=value_of(highest_mhz(folder / "pp_dpm_mclk")),
        pcie_width_max=value_of(_amount(folder / "max_link_width")),
        pcie_speed_max_gts=value_of(speed_gts(folder / "max_link_speed")),
        firmware=firmware(folder),
    )
    # Partitions other than the first have nodes, but no card.
    nodes = {number: node for number, node in enumerate(compute_nodes(sysfs)) if node.socket == socket_of(bdf)}
    card = _Card(folder, hwmon, static, tuple(nodes.values()))
    card.static = msgspec.structs.replace(
        static,
        arch=next((node.arch for node in card.nodes), None),
        engine_index=min(nodes, default=None),
        engine_devices=max(1, len(nodes)),
        engine_name=f"GPU-{static.uuid}" if static.uuid is not None else None,
        device_file=next((f"/dev/dri/{file.name}" for file in folder.glob("drm/renderD*")), None),
        links_total=value_of(gpu_metrics.links(card.table())[1]),
    )
    return card


def _sample(card: _Card, sysfs: Path, proc: Path, slow: bool, processes: bool) -> GpuSample:
    table = card.table()
    readings: dict[str, object] = {
        "hbm_used_bytes": _amount(card.folder / "mem_info_vram_used"),
        **gpu_metrics.readings(table),
        "throttle_percent": gpu_metrics.throttle_percent(table, card.before),
    }
    # What the table does not have is in single files, each of which costs a query to the GPU.
    for name, read in _SINGLE_FILES.items():
        absent = readings[name]
        if isinstance(absent, Missing) and table is not _ASLEEP:
            readings[name] = first(read(card), absent)
    t_s = time.monotonic()
    card.before = gpu_metrics.residency(table) or card.before
    if slow:
        readings |= ecc_counts(card.folder / "ras")
        # Older drivers wake a suspended GPU to read its power cap.
        cap = _ASLEEP if table is _ASLEEP else _microwatts(card.hwmon / "power1_cap")
        linked: Measured = Missing("amdkfd does not list it")
        if card.nodes:  # how many other GPUs it reaches over XGMI, according to amdkfd
            peers = {peer for node in card.nodes for peer in xgmi_peers(sysfs, node.number)}
            sockets = {node.socket for node in compute_nodes(sysfs) if node.number in peers}
            linked = len(sockets - {card.nodes[0].socket})
        readings |= {"power_cap_w": cap, "links_up": first(gpu_metrics.links(table)[0], linked)}
    if processes:
        readings["processes"] = _processes(sysfs, proc, [node.gpu_id for node in card.nodes])
    values, missing = split(counted_once(readings, card.static))
    return GpuSample(index=card.static.index, t_s=t_s, missing=missing, **values)


def _processes(sysfs: Path, proc: Path, kfd_ids: Sequence[str]) -> tuple[GpuProcess, ...] | Missing:
    """The processes that hold memory of a GPU or its partitions; the pids are the host's."""
    held = held_bytes(sysfs)
    if not kfd_ids or held is None:
        return Missing("amdkfd does not list processes here")
    of_gpu = {pid: [by_gpu[kfd_id] for kfd_id in kfd_ids if kfd_id in by_gpu] for pid, by_gpu in held.items()}
    named = has_host_pids(proc)
    return tuple(
        GpuProcess(
            pid,
            known(proc / str(pid) / "comm") or "" if named else "",
            None if None in amounts else sum(filter(None, amounts)),
        )
        for pid, amounts in of_gpu.items()
        if any(amount != 0 for amount in amounts)
    )


def _amount(path: Path) -> Measured:
    return amount(read_number(path))


def _microwatts(path: Path) -> Measured:
    return divided(read_number(path), 1e6)


def _labelled(card: _Card, kind: str, label: str) -> Measured:
    """A sensor's input (`temp`, `freq`) in its raw unit, found by label: numbers differ between GPUs."""
    for path in sorted(card.hwmon.glob(f"{kind}*_label")):
        if known(path) == label:
            return _amount(card.hwmon / path.name.replace("_label", "_input"))
    return Missing(f"no {kind} labelled {label}")


_SINGLE_FILES: dict[str, Callable[[_Card], Measured]] = {
    "gfx_percent": lambda card: percent(read_number(card.folder / "gpu_busy_percent")),
    "memory_percent": lambda card: percent(read_number(card.folder / "mem_busy_percent")),
    # MI200 has the average, MI300 the current value.
    "power_w": lambda card: first(*(_microwatts(card.hwmon / name) for name in ("power1_average", "power1_input"))),
    "temperature_hotspot_c": lambda card: divided(_labelled(card, "temp", "junction"), 1e3),
    "temperature_memory_c": lambda card: divided(_labelled(card, "temp", "mem"), 1e3),
    "gfx_clock_mhz": lambda card: divided(_labelled(card, "freq", "sclk"), 1e6),
    "memory_clock_mhz": lambda card: divided(_labelled(card, "freq", "mclk"), 1e6),
    "pcie_width": lambda card: number(read_number(card.folder / "current_link_width")),
    "pcie_speed_gts": lambda card: speed_gts(card.folder / "current_link_speed"),
    "pcie_replays": lambda card: _amount(card.folder / "pcie_replay_count"),
}


def read_bytes(path: Path) -> bytes | Missing:
    try:
        return path.read_bytes()
    except OSError as error:
        return Missing(f"{path.name}: {error.strerror}")


def read_text(path: Path) -> str | Missing:
    """The text of a file, stripped and without control sequences."""
    content = read_bytes(path)
    return content if isinstance(content, Missing) else harmless(content.decode(errors="replace").strip())


def known(path: Path) -> str | None:
    """The text of a file; None if there is none."""
    content = read_text(path)
    return None if isinstance(content, Missing) else content or None


def read_number(path: Path) -> int | Missing:
    """A file that consists of one integer."""
    found = _found(path, r"-?\d{1,20}\Z")
    return found if isinstance(found, Missing) else int(found[0])


def speed_gts(path: Path) -> Measured:
    """GT/s of a PCIe link, from "32.0 GT/s PCIe"."""
    found = _found(path, r"\d{1,9}(?:\.\d{1,9})?(?= GT/s)")
    return found if isinstance(found, Missing) else float(found[0])


def highest_mhz(path: Path) -> Measured:
    """The highest clock in a table of states such as "1: 2100Mhz *"."""
    found = _found(path, r"(?s).*?:\s*\d{1,9}\s*[Mm][Hh]z.*")
    return found if isinstance(found, Missing) else max(map(float, re.findall(r":\s*(\d{1,9})\s*[Mm][Hh]z", found[0])))


def _found(path: Path, pattern: str) -> re.Match[str] | Missing:
    """A match at the beginning of a file's text."""
    content = read_text(path)
    if isinstance(content, Missing):
        return content
    return re.match(pattern, content) or Missing(f"{path.name}: {content[:40]!r}")


def ecc_counts(ras: Path) -> dict[str, Measured]:
    """Errors by kind, summed over all blocks of the chip (files with "ue: 0", "ce: 4", "de: 0"), and retired pages."""
    texts = [text for text in map(read_text, sorted(ras.glob("*_err_count"))) if not isinstance(text, Missing)]
    counts: dict[str, Measured] = {}
    for name, kind in (("ecc_correctable", "ce"), ("ecc_uncorrectable", "ue"), ("ecc_deferred", "de")):
        found = [int(count) for text in texts for count in re.findall(rf"\b{kind}: *(\d{{1,18}})\b", text)]
        counts[name] = sum(found) if found else Missing("no counters under ras")
    pages = read_text(ras / "gpu_vram_bad_pages")
    counts["bad_pages"] = pages if isinstance(pages, Missing) else len(pages.splitlines())
    return counts
