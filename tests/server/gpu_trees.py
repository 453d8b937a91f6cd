"""Fake trees of sysfs and /proc with GPUs in them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

GIB = 1024**3
MIB = 1024**2


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def add_amd_gpu(sysfs: Path, card: int, bus: int, *, used: int, total: int = 192 * GIB, name: str = "MI300X") -> None:
    add_amd_card(sysfs, card, f"0000:{bus:02x}:00.0", used=used, device="0x74a1", product_name=name, vram_bytes=total)


def add_amd_card(
    sysfs: Path,
    card: int,
    address: str,
    *,
    used: int,
    device: str,
    vram_bytes: int,
    product_name: str = "",
    compute_partition: str | None = None,
    memory_partition: str | None = None,
    power_cap_w: float | None = None,
    power_cap_default_w: float | None = None,
    **_others: Any,
) -> None:
    """A card as the kernel shows it: a link to its PCI device, and connectors next to it."""
    folder = sysfs / f"devices/pci{address[:4]}:00/{address}"
    microwatts = {
        f"hwmon/hwmon{card}/{file}": None if watts is None else round(watts * 1e6)
        for file, watts in (("power1_cap", power_cap_w), ("power1_cap_default", power_cap_default_w))
    }
    files = {
        "vendor": "0x1002",
        "device": device,
        "class": "0x120000",
        "product_name": product_name or None,
        "mem_info_vram_used": used,
        "mem_info_vram_total": vram_bytes,
        "current_compute_partition": compute_partition,
        "current_memory_partition": memory_partition,
        **microwatts,
    }
    for name, value in files.items():
        if value is not None:
            write(folder / name, str(value))
    (sysfs / f"class/drm/card{card}").mkdir(parents=True)
    (sysfs / f"class/drm/card{card}/device").symlink_to(folder)
    (sysfs / f"class/drm/card{card}-DP-1").mkdir()
    (sysfs / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
    (sysfs / f"bus/pci/devices/{address}").symlink_to(folder)


def add_xcp_card(sysfs: Path, card: int) -> None:
    """The card of a partition next to the first: it has no PCI device and no counters."""
    device = sysfs / f"devices/platform/amdgpu_xcp.{card}"
    write(device / "modalias", "platform:amdgpu_xcp")
    (sysfs / f"class/drm/card{card}").mkdir(parents=True)
    (sysfs / f"class/drm/card{card}/device").symlink_to(device)


def add_kfd_node(
    sysfs: Path, number: int, gpu_id: int, location: int = 0, domain: int = 0, links: Iterable[int] = (), **more: int
) -> None:
    """A device of amdkfd, and its XGMI links to other nodes."""
    folder = sysfs / f"class/kfd/kfd/topology/nodes/{number}"
    write(folder / "gpu_id", str(gpu_id))
    values = {"simd_count": 304, "location_id": location, "domain": domain, "drm_render_minor": 128, **more}
    write(folder / "properties", "\n".join(f"{name} {value}" for name, value in values.items()))
    write(folder / "io_links/0/properties", f"type 2\nnode_from {number}\nnode_to 0\nweight 20")  # PCIe, to a CPU
    for link, node in enumerate(links, 1):
        write(folder / f"io_links/{link}/properties", f"type 11\nnode_from {number}\nnode_to {node}\nweight 15")


def add_kfd_process(sysfs: Path, pid: int, used: Mapping[int, int]) -> None:
    folder = sysfs / f"class/kfd/kfd/proc/{pid}"
    write(folder / "pasid", "32769")
    for gpu_id, amount_bytes in used.items():
        write(folder / f"vram_{gpu_id}", str(amount_bytes))


def add_process(
    proc: Path, pid: int, *words: str, name: str = "python3", parent: int = 1, group: int = 0, state: str = "S"
) -> None:
    folder = proc / str(pid)
    write(folder / "comm", name)
    (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
    middle, end = " ".join(["0"] * 15), " ".join(["0"] * 30)
    first = f"{pid} (odd) name) {state} {parent} {group or pid} {group or pid}"
    write(folder / "stat", f"{first} {middle} {pid * 10} {end}")


def initial_namespace(proc: Path, number: int = 4026531836) -> None:
    """The namespace of pids in which this /proc is: by default the first one, which is no container's."""
    (proc / "self/ns").mkdir(parents=True, exist_ok=True)
    (proc / "self/ns/pid").symlink_to(f"pid:[{number}]")
