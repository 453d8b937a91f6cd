"""The number of cores that this process may use, as limited by taskset, a container or systemd."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def usable_cores(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> float:
    """The cores in the CPU affinity, or fewer if a cgroup (v1 or v2) has a quota, which need not be a whole number."""
    cores = float(len(os.sched_getaffinity(0)))
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return cores
    for line in lines:
        # "0::/path" in v2, "4:cpu,cpuacct:/path" in v1.
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            cores = min([cores, *_quotas(cgroups, path, "cpu.max")])
        elif "cpu" in controllers.split(","):
            for mount in (cgroups / controllers, cgroups / "cpu"):
                cores = min([cores, *_quotas(mount, path, "cpu.cfs_quota_us", "cpu.cfs_period_us")])
    return cores


def _quotas(mount: Path, path: str, *files: str) -> Iterator[float]:
    """The quotas of a cgroup and its ancestors; in a container, `path` may be the host's and only the mount exists."""
    inside = PurePosixPath(path.lstrip("/"))
    for group in (inside, *inside.parents):
        words: list[str] = []
        for file in files:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                words += (mount / group / file).read_text().split()
        # `max` and -1 are no limit.
        if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
            yield int(words[0]) / int(words[1])
