"""Reads AMD GPUs from sysfs: amdgpu's cards, and amdkfd's devices and links."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from loadgen.errors import TelemetryError
from loadgen.server.gpus.gpu import Gpu, named_holders, with_expected_links
from loadgen.server.process.log import clean_line
from loadgen.system import number_in, text_in
from loadgen.telemetry.amd.kernel import ComputeNode, amd_cards, compute_nodes, held_bytes, socket_of, xgmi_peers


def read_amd(sysfs: Path, proc: Path, _path: str | None) -> list[Gpu]:
    nodes = compute_nodes(sysfs)
    held = held_bytes(sysfs) or {}
    found: list[tuple[int, Gpu]] = []
    for card in amd_cards(sysfs):
        address = card.resolve().name
        own = [node for node in nodes if node.socket == socket_of(address)]
        gpu = _gpu(card, own)
        if gpu is not None:
            gpu = replace(gpu, links_up=_linked_sockets(sysfs, own, nodes))
            sums = [(pid, sum(by_gpu.get(node.gpu_id) or 0 for node in own)) for pid, by_gpu in held.items()]
            holders = named_holders([(pid, used_bytes) for pid, used_bytes in sums if used_bytes], proc)
            found.append((own[0].number if own else sys.maxsize, replace(gpu, holders=holders)))
    if not found:
        raise TelemetryError(f"no AMD GPU with memory counters in {sysfs / 'class/drm'}")
    found.sort(key=lambda entry: entry[0])  # runtimes number GPUs in amdkfd's order, not in that of the cards
    return with_expected_links([replace(gpu, index=index) for index, (_, gpu) in enumerate(found)])


def _gpu(card: Path, own: Sequence[ComputeNode]) -> Gpu | None:
    """The GPU of a card; None for a partition's card, because its socket's card has the counters."""
    used, total = number_in(card / "mem_info_vram_used"), number_in(card / "mem_info_vram_total")
    if used is None or not total:
        return None
    # Older drivers wake a sleeping GPU to read its power cap.
    asleep = text_in(card / "power/runtime_status") == "suspended"
    hwmon = None if asleep else next(iter(sorted((card / "hwmon").glob("hwmon*"))), None)
    return Gpu(
        id=card.resolve().name,
        name=clean_line(text_in(card / "product_name").encode()) or f"AMD {text_in(card / 'device') or 'GPU'}",
        arch=own[0].arch if own else None,
        hbm_bytes=total,
        used_bytes=used,
        devices=max(1, len(own)),
        compute_partition=text_in(card / "current_compute_partition") or None,
        memory_partition=text_in(card / "current_memory_partition") or None,
        power_cap_w=None if hwmon is None else _watts(hwmon / "power1_cap"),
        power_cap_default_w=None if hwmon is None else _watts(hwmon / "power1_cap_default"),
    )


def _linked_sockets(sysfs: Path, own: Sequence[ComputeNode], nodes: Sequence[ComputeNode]) -> int | None:
    """How many other GPUs this one reaches over XGMI; None if amdkfd does not list it."""
    peers = {peer for node in own for peer in xgmi_peers(sysfs, node.number)}
    sockets = {node.socket for node in nodes if node.number in peers}
    return len(sockets - {node.socket for node in own}) if own else None


def _watts(file: Path) -> float | None:
    microwatts = number_in(file)
    return None if microwatts is None else microwatts / 1e6
