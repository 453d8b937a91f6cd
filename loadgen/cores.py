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
    found: list[float | None] = []
    for line in lines:
        # "0::/path" in v2, "4:cpu,cpuacct:/path" in v1.
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            found += [_cores(_words(group / "cpu.max")) for group in _up_from(cgroups, path)]
        elif "cpu" in controllers.split(","):
            mounts = (cgroups / controllers, cgroups / "cpu")
            for group in {group for mount in mounts for group in _up_from(mount, path)}:
                found.append(_cores([*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")]))
    return [quota for quota in found if quota is not None]


def _up_from(mount: Path, path: str) -> list[Path]:
    """A group and those above it; in a container the path may be the host's, of which only the mount itself is here."""
    inside = PurePosixPath(path.lstrip("/"))
    return [mount / inside, *(mount / above for above in inside.parents)]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except (OSError, UnicodeDecodeError):
        return []


def _cores(words: list[str]) -> float | None:
    """Quota by period; None for `max` and for -1, which are no limit, and for what is neither."""
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):
        return None
    return int(words[0]) / int(words[1])
