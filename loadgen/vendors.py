"""GPU vendors, a row each: what vramp has to know of one outside its own backends.

A new vendor is a row, its words in the `Literal`s and the modules that the row names; telemetry, doctor, preflight,
profiles and the pinning of instances read the rows. Nothing of a vendor is imported before its part is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

VendorName = Literal["amd", "nvidia", "sim"]
Platform = Literal["rocm", "cuda", "cpu"]
LocalBackend = Literal["amdsmi", "amd-sysfs", "nvml", "sim"]
BackendName = Literal[LocalBackend, "exporter"]
TelemetryMode = Literal["auto", LocalBackend, "off"]


class BackendEntry(msgspec.Struct, frozen=True):
    """A way to measure the GPUs of a vendor; functions are named `module:function`."""

    name: BackendName
    opener: str  # `open_...() -> Backend`, called in a child process only
    why: str = ""
    options: str = ""
    """`(environ, root) -> list[BackendOption]`, for a backend that can be started in several ways."""


class Vendor(msgspec.Struct, frozen=True):
    """What differs between vendors; files are patterns under /dev, unless said otherwise."""

    name: VendorName
    label: str
    platform: Platform  # the word for it in profiles and rules
    pci_id: str  # as sysfs writes it
    arch_prefix: str  # how the names of its architectures begin
    device_files: tuple[str, ...]  # through which its GPUs are reached; the first says that a server can compute on it
    backends: tuple[BackendEntry, ...]  # the best first; the last, which needs the least, is also used by the preflight
    module: str  # the kernel's
    driver_version: tuple[str, str]  # a file under / and the pattern of the version in it
    denied_fix: str  # what gives a user access to the device files
    packages: tuple[str, ...]  # Python packages of its backends
    variables: tuple[str, ...]  # prefixes of the environment variables that steer its libraries
    visible: tuple[str, ...]  # variables that choose devices; all have to be the same
    renumbering: tuple[str, ...] = ()  # variables below those: what they leave is numbered from 0 again
    control_files: tuple[str, ...] = ()  # device files that belong to no single GPU
    windows_file: str = ""  # the only device file where Linux runs inside Windows
    driver_files: tuple[str, ...] = ()  # under /; a sign of the driver
    library: str = ""  # a sign of the driver too
    integrated: bool = False  # ordinary processors bring small GPUs of this vendor along
    whole_gpu: str = ""  # the compute partition that is no partition

    def on_windows(self, dev: Path) -> bool:
        return bool(self.windows_file) and (dev / self.windows_file).exists()

    def computes_here(self, dev: Path) -> bool:
        """Whether there is a device file that a server computes through."""
        return any(dev.glob(self.device_files[0])) or self.on_windows(dev)


AMD = Vendor(
    name="amd",
    label="AMD",
    platform="rocm",
    pci_id="0x1002",
    arch_prefix="gfx",
    device_files=("kfd", "dri/renderD*"),
    backends=(
        BackendEntry(
            "amdsmi",
            "loadgen.telemetry.amd.amdsmi:open_amdsmi",
            options="loadgen.telemetry.amd.amdsmi_library:amdsmi_options",
        ),
        BackendEntry(
            "amd-sysfs",
            "loadgen.telemetry.amd.sysfs:open_amd_sysfs",
            "the kernel's own files, without a library",
        ),
    ),
    module="amdgpu",
    driver_version=("sys/module/amdgpu/version", r".+"),
    denied_fix="sudo usermod -aG render,video $USER, then log in again",
    packages=("amdsmi",),
    variables=("AMDSMI_", "GPU_", "HIP_", "HSA_", "ROCM_", "ROCR_", "RSMI_"),
    visible=("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),  # vLLM refuses to start when both are set and differ
    renumbering=("ROCR_VISIBLE_DEVICES",),
    integrated=True,
    whole_gpu="SPX",
)
NVIDIA = Vendor(
    name="nvidia",
    label="NVIDIA",
    platform="cuda",
    pci_id="0x10de",
    arch_prefix="sm_",
    device_files=("nvidia[0-9]*",),
    backends=(BackendEntry("nvml", "loadgen.telemetry.nvml:open_nvml", "the library of NVIDIA's driver"),),
    module="nvidia",
    driver_version=("proc/driver/nvidia/version", r"\b\d{3,}\.\d+(?:\.\d+)?\b"),
    denied_fix="ls -l /dev/nvidia*; join their group",
    packages=("nvidia-ml-py",),
    variables=("CUDA_", "NVIDIA_"),
    visible=("CUDA_VISIBLE_DEVICES",),
    control_files=("nvidiactl",),
    windows_file="dxg",
    driver_files=("proc/driver/nvidia/version",),
    library="libnvidia-ml.so.1",
)
VENDORS = (AMD, NVIDIA)
_WHOLE = frozenset(vendor.whole_gpu for vendor in VENDORS)


def is_partition(mode: str | None) -> bool:
    """Whether a device in this compute partition mode is a part of a GPU only; an unknown mode is none."""
    return bool(mode) and mode not in _WHOLE


def vendor_of(platform: str | None) -> Vendor | None:
    """The vendor of a platform; None for one without GPUs."""
    return next((vendor for vendor in VENDORS if vendor.platform == platform), None)


def platform_of(arch: str) -> Platform | None:
    """The platform of an architecture such as gfx942; None for other words."""
    return next((vendor.platform for vendor in VENDORS if arch.startswith(vendor.arch_prefix)), None)


def platform_here(dev: Path = Path("/dev")) -> Platform:
    """What the device files say that this box computes on; an integrated GPU counts only where there is no other."""
    present = [vendor for vendor in VENDORS if vendor.computes_here(dev)]
    return min(present, key=lambda vendor: vendor.integrated).platform if present else "cpu"
