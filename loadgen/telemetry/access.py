"""What this user may access and what is installed: device files, groups, versions. Reads files, runs nothing."""

from __future__ import annotations

import grp
import os
import platform
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from loadgen.build import version_words
from loadgen.format import user_name
from loadgen.schema.samples import DeviceFile
from loadgen.telemetry.amd.kernel import rocm_version
from loadgen.telemetry.backends import package_version
from loadgen.vendors import VENDORS, Vendor, matched


def versions(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """The versions of vramp, Python, the system, packages, drivers and ROCm; None for what is missing."""
    system = matched(root / "etc/os-release", '(?m)^PRETTY_NAME="?[^"\n]+') or ""
    packages = (*(name for vendor in VENDORS for name in vendor.packages), "psutil")
    return {
        "vramp": version_words(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "system": system.partition("=")[2].strip('"') or None,
        **{name: package_version(name) for name in packages},
        **{f"{vendor.module} driver": vendor.driver(root) for vendor in VENDORS},
        "rocm": rocm_version(Path(environ.get("ROCM_PATH") or root / "opt/rocm")) or None,
    }


def user_words() -> str:
    return f"{user_name(os.geteuid())} (uid {os.geteuid()})"


def groups() -> tuple[str, ...]:
    return tuple(sorted(_group_name(number) for number in {os.getegid(), *os.getgroups()}))


def device_files(root: Path = Path("/")) -> tuple[DeviceFile, ...]:
    """The device files of the GPUs of the vendors present."""
    return tuple(found for vendor in VENDORS if vendor.has_sign(root=root) for found in _device_files(vendor, root))


def _device_files(vendor: Vendor, root: Path) -> Iterator[DeviceFile]:
    dev = root / "dev"
    patterns = (*vendor.control_files, *vendor.device_files)
    for pattern in [vendor.windows_file] if vendor.on_windows(dev) else patterns:
        paths = sorted(dev.glob(pattern))
        if not paths:
            fix = f"sudo modprobe {vendor.module}; in a container, pass the device in"
            yield DeviceFile(f"/dev/{pattern}", "absent", fix=fix)
        for path in paths:
            usable = os.access(path, os.R_OK | os.W_OK)
            name = f"/{path.relative_to(root)}"
            try:
                status = path.stat()
                owner = f"{stat.filemode(status.st_mode)} {user_name(status.st_uid)}:{_group_name(status.st_gid)}"
            except OSError as error:
                owner = error.strerror or ""
            yield DeviceFile(name, "usable" if usable else "denied", owner, "" if usable else vendor.denied_fix)


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
