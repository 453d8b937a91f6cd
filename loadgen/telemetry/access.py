"""What this user, this box and this installation bring: device files, groups, versions. It reads, and runs nothing."""

from __future__ import annotations

import grp
import importlib.metadata
import os
import platform
import pwd
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import loadgen
from loadgen.metrics.doctor import DeviceFile
from loadgen.telemetry.amd.amdsmi_library import rocm_version
from loadgen.telemetry.candidates import amd_is_here, nvidia_is_here

_PACKAGES = ("amdsmi", "nvidia-ml-py", "psutil")
_DEVICES = {
    "amd": ("dev/kfd", "dev/dri/renderD*"),
    "nvidia": ("dev/nvidiactl", "dev/nvidia[0-9]*"),
    "wsl": ("dev/dxg",),
}
_GROUPS_FIX = "sudo usermod -aG render,video $USER, then log in again"
_OWNER_FIX = "ls -l /dev/nvidia*; join their group"
_MODULE_FIX = {"amd": "sudo modprobe amdgpu", "nvidia": "sudo modprobe nvidia", "wsl": ""}
_NVIDIA_RELEASE = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)?\b")


def versions(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Of vramp, Python, the system, the packages, the drivers and ROCm; None for what is not here."""
    return {
        "vramp": loadgen.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "system": _system(root),
        **{name: _package(name) for name in _PACKAGES},
        "amdgpu driver": _text(root / "sys/module/amdgpu/version"),
        "nvidia driver": _nvidia_release(root),
        "rocm": rocm_version(Path(environ.get("ROCM_PATH") or root / "opt/rocm")) or None,
    }


def user_words() -> str:
    return f"{_user_name(os.geteuid())} (uid {os.geteuid()})"


def groups() -> tuple[str, ...]:
    """The names of this process's groups."""
    return tuple(sorted(_group_name(number) for number in {os.getegid(), *os.getgroups()}))


def device_files(root: Path = Path("/")) -> tuple[DeviceFile, ...]:
    """The files through which the GPUs of the vendors that are here are reached."""
    found: list[DeviceFile] = []
    if amd_is_here(root):
        found += _of_vendor("amd", _GROUPS_FIX, root)
    if nvidia_is_here(root=root):
        found += _of_vendor("wsl" if (root / "dev/dxg").exists() else "nvidia", _OWNER_FIX, root)
    return tuple(found)


def _of_vendor(vendor: str, denied_fix: str, root: Path) -> Iterator[DeviceFile]:
    for pattern in _DEVICES[vendor]:
        paths = sorted(root.glob(pattern))
        if not paths:
            fix = f"{_MODULE_FIX[vendor]}; in a container, pass the device in"
            yield DeviceFile(f"/{pattern}", "absent", fix=fix)
        for path in paths:
            usable = os.access(path, os.R_OK | os.W_OK)
            name = f"/{path.relative_to(root)}"
            yield DeviceFile(name, "usable" if usable else "denied", _owner(path), "" if usable else denied_fix)


def _owner(path: Path) -> str:
    try:
        status = path.stat()
    except OSError as error:
        return error.strerror or ""
    return f"{stat.filemode(status.st_mode)} {_user_name(status.st_uid)}:{_group_name(status.st_gid)}"


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # in a container, numbers of the host have no name
        return str(number)


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _package(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _system(root: Path) -> str | None:
    text = _text(root / "etc/os-release") or ""
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)', text, re.MULTILINE)
    return None if match is None else match[1]


def _nvidia_release(root: Path) -> str | None:
    match = _NVIDIA_RELEASE.search(_text(root / "proc/driver/nvidia/version") or "")
    return None if match is None else match[0]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # not loaded, not installed, or not told
        return None
