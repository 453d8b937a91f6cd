"""How many cores this process may use: what taskset, a container or systemd leaves of the machine."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def usable_cores(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> float:
    """The cores of its CPU affinity, or fewer where a cgroup (v1 or v2) has a quota; a quota can be a part of one."""
    cores = float(len(os.sched_getaffinity(0)))
    return min([cores, *_quotas(proc, cgroups)])


def _quotas(proc: Path, cgroups: Path) -> list[float]:
    """Of every group that this process is in, its own and all above."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[float] = []
    for line in lines:
        # "0::/path" in v2, "4:cpu,cpuacct:/path" in v1.
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            found += [quota for group in _up_from(cgroups, path) if (quota := _quota_v2(group)) is not None]
        elif "cpu" in controllers.split(","):
            mounts = (cgroups / controllers, cgroups / "cpu")
            folders = {folder for mount in mounts for folder in _up_from(mount, path)}
            found += [quota for folder in folders if (quota := _quota_v1(folder)) is not None]
    return found


def _up_from(mount: Path, path: str) -> list[Path]:
    """A group and those above it; in a container the path may be the host's, of which only the mount itself is here."""
    inside = PurePosixPath(path.lstrip("/"))
    return [mount / inside, *(mount / above for above in inside.parents)]


def _quota_v2(group: Path) -> float | None:
    words = _words(group / "cpu.max")
    return _cores(words[0], words[1]) if len(words) == 2 else None


def _quota_v1(group: Path) -> float | None:
    words = [*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")]
    return _cores(words[0], words[1]) if len(words) == 2 else None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except (OSError, UnicodeDecodeError):
        return []


def _cores(quota: str, period: str) -> float | None:
    """None for `max` and for -1, which are no limit."""
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(quota) and int(period) else None
