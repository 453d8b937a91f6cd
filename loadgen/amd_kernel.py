"""What AMD's kernel drivers tell under /sys: the cards of amdgpu, and the devices and processes of amdkfd (compute).

Nothing here raises: what is not there, not ours to read, no number, or on a device that does not answer is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from loadgen.vendors import AMD

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
        values = dict(line.split(maxsplit=1) for line in text_in(folder / "properties").splitlines() if " " in line)
        location, domain = values.get("location_id", ""), values.get("domain", "0")
        if location.isdecimal() and domain.isdecimal():
            arch = _arch(values.get("gfx_target_version", ""))
            found.append(ComputeNode(int(folder.name), gpu_id, int(domain), int(location), arch))
    return sorted(found)


def _arch(version: str) -> str | None:
    """The compiler's name: 90402 is gfx942, and 90010 gfx90a."""
    if not (version.isascii() and version.isdecimal() and 5 <= len(version) <= 7):
        return None
    major, minor, stepping = int(version) // 10_000, int(version) // 100 % 100, int(version) % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def held_bytes(sysfs: Path) -> dict[int, dict[str, int | None]] | None:
    """How much each process (pids are the host's) holds of each GPU id; None where amdkfd does not tell processes."""
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


def pci_location(address: str) -> tuple[int, int] | None:
    """Domain and location of a PCI address, as amdkfd writes them; None if it is no address."""
    domain, _, rest = address.partition(":")
    bus, _, rest = rest.partition(":")
    device, _, function = rest.partition(".")
    try:
        return int(domain, 16), int(bus, 16) << 8 | int(device, 16) << 3 | int(function, 16)
    except ValueError:
        return None


def socket_of(address: str) -> tuple[int, int] | None:
    """The `socket` of the nodes at a PCI address, whatever partition it is the address of."""
    location = pci_location(address)
    return None if location is None else (location[0], location[1] & _BUS_AND_DEVICE)


def number_in(path: Path) -> int | None:
    text = text_in(path)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def text_in(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
