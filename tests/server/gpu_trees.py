"""Fake trees of sysfs and /proc with GPUs in them, and a stand-in for nvidia-smi."""

from collections.abc import Mapping, Sequence
from pathlib import Path

GIB = 1024**3
MIB = 1024**2


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def add_amd_gpu(sysfs: Path, card: int, bus: int, *, used: int, total: int = 192 * GIB, name: str = "MI300X") -> None:
    """A card as the kernel shows it: a link to its PCI device, and connectors beside it."""
    device = sysfs / f"devices/pci0000:00/0000:{bus:02x}:00.0"
    write(device / "vendor", "0x1002")
    write(device / "device", "0x74a1")
    if name:
        write(device / "product_name", name)
    write(device / "mem_info_vram_used", str(used))
    write(device / "mem_info_vram_total", str(total))
    folder = sysfs / f"class/drm/card{card}"
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(device)
    (sysfs / f"class/drm/card{card}-DP-1").mkdir()


def add_kfd_node(sysfs: Path, number: int, gpu_id: int, location: int = 0, domain: int = 0) -> None:
    folder = sysfs / f"class/kfd/kfd/topology/nodes/{number}"
    write(folder / "gpu_id", str(gpu_id))
    write(folder / "properties", f"simd_count 304\nlocation_id {location}\ndomain {domain}\ndrm_render_minor 128")


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
    rest = " ".join(["0"] * 15)
    write(folder / "stat", f"{pid} (odd) name) {state} {parent} {group or pid} {group or pid} {rest} {pid * 10}")


def initial_namespace(proc: Path, number: int = 4026531836) -> None:
    """The namespace of pids in which this /proc is: by default the first one, which is no container's."""
    (proc / "self/ns").mkdir(parents=True, exist_ok=True)
    (proc / "self/ns/pid").symlink_to(f"pid:[{number}]")


def add_nvidia_smi(
    folder: Path,
    gpus: str,
    apps: str = "",
    ending: str = "exit 0",
    lacks: Sequence[str] = (),
    links: str = "",
    version: str = "",
) -> None:
    """An executable that answers as nvidia-smi does, to exactly the questions that are asked.

    Lines of `gpus` that end with the memory become those of an H200. It refuses the fields that it `lacks`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    more = "" if lacks else ", 9.0, 700.00, 700.00, Disabled, Completed"
    lines = [line + more if len(line.split(",")) == 5 else line for line in gpus.splitlines()]
    (folder / "gpus.csv").write_text("".join(f"{line}\n" for line in lines))
    for name, text in (("apps.csv", apps), ("links.txt", links), ("version.txt", version)):
        (folder / name).write_text(text)
    refusal = "  --query-gpu=*{0}*) echo 'Field \"{0}\" is not a valid field to query.'; exit 2 ;;\n"
    refusals = "".join(refusal.format(field) for field in lacks)
    csv = "*' --format=csv,noheader,nounits'"
    script = f"""#!/bin/sh
case "$*" in
{refusals}  --query-gpu=index,uuid,name,memory.used,memory.total{csv}) /bin/cat "{folder}/gpus.csv" ;;
  '--query-compute-apps=pid,gpu_uuid,used_memory --format=csv,noheader,nounits') /bin/cat "{folder}/apps.csv" ;;
  'nvlink --status') /bin/cat "{folder}/links.txt" ;;
  --version) /bin/cat "{folder}/version.txt" ;;
  *) exit 9 ;;
esac
{ending}
"""
    (folder / "nvidia-smi").write_text(script)
    (folder / "nvidia-smi").chmod(0o755)
