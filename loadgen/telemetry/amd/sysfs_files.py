"""The formats of the files that the amdgpu and amdkfd drivers keep under /sys, one function each.

Invariants: a file that is not there, cannot be read or says nonsense gives `Missing` with the reason, and
never raises.
"""

from __future__ import annotations

import re
from pathlib import Path

from loadgen.format import harmless
from loadgen.metrics.samples import GpuProcess
from loadgen.telemetry.sanitize import Missing, Reading, amount, value_of


def read_bytes(path: Path) -> bytes | Missing:
    try:
        return path.read_bytes()
    except OSError as error:
        return Missing(f"{path.name}: {error.strerror}")


def read_text(path: Path) -> str | Missing:
    """The text of a file, harmless and without the space around it."""
    content = read_bytes(path)
    return content if isinstance(content, Missing) else harmless(content.decode(errors="replace").strip())


def read_number(path: Path) -> int | Missing:
    """The whole number that is all of a file."""
    content = read_text(path)
    if isinstance(content, Missing):
        return content
    return int(content) if re.fullmatch(r"-?\d{1,20}", content) else Missing(f"{path.name}: {content[:40]!r}")


def known(path: Path) -> str | None:
    """The text of a file; None if there is none."""
    content = read_text(path)
    return None if isinstance(content, Missing) else content or None


def hwmon_labelled(hwmon: Path, kind: str, label: str) -> Reading:
    """The input of a sensor (`temp`, `freq`) in its raw unit, found by label: numbers differ between GPUs."""
    for path in sorted(hwmon.glob(f"{kind}*_label")):
        if known(path) == label:
            return amount(read_number(hwmon / path.name.replace("_label", "_input")))
    return Missing(f"no {kind} labelled {label}")


def speed_gts(path: Path) -> Reading:
    """GT/s of a PCIe link: "32.0 GT/s PCIe"."""
    content = read_text(path)
    if isinstance(content, Missing):
        return content
    match = re.match(r"(\d+(?:\.\d+)?) GT/s", content)
    return float(match[1]) if match else Missing(f"{path.name}: {content[:40]!r}")


def highest_mhz(path: Path) -> Reading:
    """The highest of the clocks in a table of states: "1: 2100Mhz *"."""
    content = read_text(path)
    if isinstance(content, Missing):
        return content
    clocks = [int(clock) for clock in re.findall(r":\s*(\d+)\s*[Mm][Hh]z", content)]
    return float(max(clocks)) if clocks else Missing(f"{path.name}: {content[:40]!r}")


def ecc_counts(ras: Path) -> tuple[Reading, Reading]:
    """Errors that were corrected and that were not, over all blocks of the chip: "ue: 0", "ce: 4" in each file."""
    texts = [text for text in map(read_text, sorted(ras.glob("*_err_count"))) if not isinstance(text, Missing)]
    corrected = [int(count) for text in texts for count in re.findall(r"\bce: *(\d+)", text)]
    uncorrected = [int(count) for text in texts for count in re.findall(r"\bue: *(\d+)", text)]
    absent = Missing("no counters under ras")
    return sum(corrected) if corrected else absent, sum(uncorrected) if uncorrected else absent


def kfd_gpu_id(sysfs: Path, bdf: str) -> str | None:
    """The number by which amdkfd knows a GPU; None if it does not."""
    match = re.fullmatch(r"([0-9a-f]{4,}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", bdf)
    if not match:
        return None
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    wanted = (str(domain), str(bus << 8 | device << 3 | function))
    for node in sorted((sysfs / "class/kfd/kfd/topology/nodes").glob("*")):
        properties = dict(re.findall(r"^(\w+) (\d+)$", known(node / "properties") or "", re.MULTILINE))
        if (properties.get("domain", "0"), properties.get("location_id")) == wanted:
            return known(node / "gpu_id")
    return None


def kfd_processes(sysfs: Path, proc: Path, gpu_id: str | None) -> tuple[GpuProcess, ...] | Missing:
    """The processes that hold memory of a GPU; the pids are the host's."""
    if gpu_id is None or not (sysfs / "class/kfd/kfd/proc").is_dir():
        return Missing("amdkfd does not tell processes here")
    files = sorted((sysfs / "class/kfd/kfd/proc").glob(f"[0-9]*/vram_{gpu_id}"), key=lambda file: int(file.parent.name))
    return tuple(process for file in files if (process := _process(file, proc)).hbm_bytes != 0)


def _process(file: Path, proc: Path) -> GpuProcess:
    pid = file.parent.name
    return GpuProcess(int(pid), known(proc / pid / "comm") or "", value_of(amount(read_number(file))))
