"""Reads the files of AMD's kernel drivers: amdgpu's cards; amdkfd's devices, links and processes; ROCm's version.

Nothing here raises: values that are missing, unreadable or malformed, or of a device that does not answer, are omitted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from loadgen.system import decimal, entries, number_in, text_in
from loadgen.vendors import AMD

_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]{1,16}")
_XGMI = "11"  # a kind of link
_BUS_AND_DEVICE = 0xFFF8  # the rest of a location says which partition it is


class ComputeNode(NamedTuple):
    """A device of amdkfd: a GPU, or a partition of one."""

    number: int  # runtimes number devices in this order
    gpu_id: str
    domain: int
    location: int  # bus << 8 | device << 3 | function
    arch: str | None = None  # gfx942

    @property
    def socket(self) -> tuple[int, int]:
        return self.domain, self.location & _BUS_AND_DEVICE


def amd_cards(sysfs: Path) -> list[Path]:
    """The PCI folders of AMD's graphics cards, in the order of the cards' numbers."""
    cards = [card for card in entries(sysfs / "class/drm") if card.name.removeprefix("card").isdecimal()]
    devices = [card / "device" for card in sorted(cards, key=lambda card: int(card.name.removeprefix("card")))]
    return [device for device in devices if text_in(device / "vendor") == AMD.pci_id]


def compute_nodes(sysfs: Path) -> list[ComputeNode]:
    """The GPUs that amdkfd knows, by number."""
    found: list[ComputeNode] = []
    for folder in entries(sysfs / "class/kfd/kfd/topology/nodes"):
        gpu_id = text_in(folder / "gpu_id")
        if gpu_id in ("", "0") or not folder.name.isdecimal():  # a CPU, or a GPU that this container may not use
            continue
        values = _properties(folder)
        location, domain = decimal(values.get("location_id", "")), decimal(values.get("domain", "0"))
        if location is not None and domain is not None:
            # The compiler's name of an architecture: 90402 is gfx942, and 90010 gfx90a.
            version = decimal(values.get("gfx_target_version", "")) or 0
            major, minor, stepping = version // 10_000, version // 100 % 100, version % 100
            arch = f"gfx{major}{minor:x}{stepping:x}" if 0 < major < 100 else None
            found.append(ComputeNode(int(folder.name), gpu_id, domain, location, arch))
    return sorted(found)


def xgmi_peers(sysfs: Path, node: int) -> set[int]:
    """The numbers of the nodes that a node reaches over XGMI."""
    links = map(_properties, entries(sysfs / f"class/kfd/kfd/topology/nodes/{node}/io_links"))
    peers = {decimal(link.get("node_to", "")) for link in links if link.get("type") == _XGMI}
    return {peer for peer in peers if peer is not None}


def _properties(folder: Path) -> dict[str, str]:
    lines = (line.split(maxsplit=1) for line in text_in(folder / "properties").splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 2}


def firmware(device: Path) -> dict[str, str] | None:
    """The firmware versions of a card, without those that it does not load; None if its driver lists none."""
    files = sorted(entries(device / "fw_version"))
    found = {file.name.removesuffix("_fw_version"): text_in(file) for file in files}
    loaded = {name: text for name, text in found.items() if _HEXADECIMAL.fullmatch(text) and int(text, 16)}
    return loaded or None


def held_bytes(sysfs: Path) -> dict[int, dict[str, int | None]] | None:
    """The bytes that each process (by host pid) holds of each GPU id; None if amdkfd does not list processes."""
    folder = sysfs / "class/kfd/kfd/proc"
    if not folder.is_dir():
        return None
    processes = [process for process in entries(folder) if process.name.isdecimal()]
    return {
        int(process.name): {
            file.name.removeprefix("vram_"): number_in(file)
            for file in entries(process)
            if file.name.startswith("vram_")
        }
        for process in sorted(processes, key=lambda process: int(process.name))
    }


def socket_of(address: str) -> tuple[int, int] | None:
    """The `socket` of the nodes at a PCI address, which may be that of any partition; None if it is no address."""
    match = re.fullmatch(r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.[0-7]", address)
    return None if match is None else (int(match[1], 16), int(match[2], 16) << 8 | int(match[3], 16) << 3)


def rocm_version(folder: Path) -> str:
    """The version of the ROCm in this folder, such as 7.0.2; empty if it does not say."""
    return text_in(folder / ".info/version").partition("-")[0]
