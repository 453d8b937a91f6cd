"""Which ways to measure are tried on this box, by vendor, and in which order.

Invariants: nothing of a vendor is imported or loaded here; without a sign of a vendor's GPU nothing of it is tried,
unless it was asked for by name; a box with GPUs of two vendors has both watched.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loadgen.telemetry.amd.amdsmi_candidates import amdsmi_candidates
from loadgen.telemetry.sample import BackendName

TelemetryMode = Literal["auto", "amdsmi", "amd-sysfs", "nvml", "sim", "off"]
Vendor = Literal["amd", "nvidia", "sim"]

# -P: what lies in the current folder is not ours to import.
PROGRAM = (sys.executable, "-P", "-m", "loadgen.telemetry")

_AMD, _NVIDIA = "0x1002", "0x10de"
_NVIDIA_DEVICES = ("dev/nvidiactl", "dev/nvidia0", "dev/dxg", "proc/driver/nvidia/version")
_NVML = "libnvidia-ml.so.1"
_LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "usr/lib/wsl/lib",
)


@dataclass(frozen=True, slots=True)
class BackendOption:
    """One way to measure: what its child is told."""

    name: str
    backend: BackendName
    arguments: tuple[str, ...] = ()  # beyond the backend and its beat
    env: Mapping[str, str] = field(default_factory=dict)  # what to add to the child's environment
    why: str = ""  # why it is tried, and in this place of the order
    program: tuple[str, ...] = PROGRAM  # what is run; tests put stand-ins here


def attempts_for(
    mode: TelemetryMode,
    *,
    url: str | None = None,
    sim_arguments: tuple[str, ...] = (),
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> dict[Vendor, list[BackendOption]]:
    """The attempts of each vendor, in order; nothing if there is nothing to measure.

    `url` is that of the simulator, for `sim`; `root` stands for the file system in tests.
    """
    match mode:
        case "off":
            return {}
        case "sim":
            arguments = (*(("--url", url) if url is not None else ()), *sim_arguments)
            return {"sim": [BackendOption("sim", "sim", arguments)]}
        case "nvml":
            return {"nvidia": [_nvml()]}
        case "amdsmi":
            return {"amd": _amdsmi(environ, root)}
        case "amd-sysfs":
            return {"amd": [_amd_sysfs()]}
        case "auto":
            return _present(environ, root)


def _present(environ: Mapping[str, str], root: Path) -> dict[Vendor, list[BackendOption]]:
    found: dict[Vendor, list[BackendOption]] = {}
    if amd_is_here(root):
        found["amd"] = [*_amdsmi(environ, root), _amd_sysfs()]
    if nvidia_is_here(environ, root):
        found["nvidia"] = [_nvml()]
    return found


def amd_is_here(root: Path = Path("/")) -> bool:
    """Whether there is a sign of a GPU of AMD, with a driver that works or not."""
    return (root / "dev/kfd").exists() or _has_vendor(root, "sys/class/drm/card*/device", _AMD)


def nvidia_is_here(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> bool:
    """Whether there is a sign of a GPU of NVIDIA or of its library, with a driver that works or not."""
    if any((root / path).exists() for path in _NVIDIA_DEVICES):
        return True
    named = [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders = [*named, *(root / folder for folder in _LIBRARY_FOLDERS)]
    return any((folder / _NVML).exists() for folder in folders) or _has_vendor(
        root, "sys/class/drm/card*/device", _NVIDIA
    )


def _has_vendor(root: Path, pattern: str, vendor: str) -> bool:
    return any(text == vendor for text in _vendors(root, pattern))


def _vendors(root: Path, pattern: str) -> Iterator[str]:
    for device in root.glob(pattern):
        try:
            yield (device / "vendor").read_text(encoding="ascii", errors="replace").strip()
        except OSError:  # not a PCI device, or gone
            continue


def _amdsmi(environ: Mapping[str, str], root: Path) -> list[BackendOption]:
    candidates = amdsmi_candidates(environ, root)
    return [BackendOption(each.name, "amdsmi", env=each.env, why=each.why) for each in candidates]


def _amd_sysfs() -> BackendOption:
    return BackendOption("amd-sysfs", "amd-sysfs", why="the kernel's own files, without a library")


def _nvml() -> BackendOption:
    return BackendOption("nvml", "nvml", why="the library of NVIDIA's driver")
