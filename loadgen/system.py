"""This process and its machine: usable cores, resource limits, the death of its parent, small files of /proc and /sys.

Standard library only, and little of it, because the guard and every child import it and must start fast. What reads
files raises nothing: a file that is missing or unreadable is empty.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_LEAN = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "__all__"}
MAX_OPEN_FILES = 1 << 16  # more ports than a host has; programs that close every number up to the limit stay quick
MAX_DIGITS = 19  # of a 63-bit counter
_MAX_CPUS = 8192  # the most for which any Linux kernel is built
_CPU_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", re.ASCII)
ALL_CPUS = "all"  # `load.cpus` for workers that are not pinned
_PR_SET_PDEATHSIG = 1
_M_MMAP_THRESHOLD = -3  # in malloc.h
_LARGE_BYTES = 64 << 10
_chosen = _LEAN.keys() & os.environ.keys()  # those that the user has set


Cpus = frozenset[int]
"""CPUs as Linux numbers them: hardware threads of cores."""


def parse_cpus(text: str) -> Cpus:
    """The CPUs of a list such as `0-7,16`; raises `ValueError` if it is none."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        match = _CPU_RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        if not first <= last < _MAX_CPUS:
            raise ValueError(f"{part.strip()!r}: expected CPUs as Linux lists them, such as 0-7,16")
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


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


def raise_open_files() -> None:
    """Allow as many open files as the hard limit does, here and in children: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))


def map_large_blocks() -> None:
    """Have the C library map each large block of memory by itself, and give it back as soon as it is free.

    Arrays of histograms are allocated and freed at every tick. In the heap they would leave holes, which accumulate in
    a run of many stages. Only glibc supports this (mallopt(3)); elsewhere nothing happens.
    """
    import ctypes  # not at every start: `vramp --help` does without

    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def start_lean() -> None:
    """Keep numpy to one thread and pydantic without plugins, here and in children; call it before either is imported.

    OpenBLAS would start a thread for each core as it is loaded, which costs 60 ms of each start, and end the process
    where it may not; vramp multiplies no large matrices. pydantic would look through every installed package for
    plugins, which costs 30 ms, and run what it finds.
    """
    for name, value in _LEAN.items():
        os.environ.setdefault(name, value)


def own_variables() -> set[str]:
    """The environment variables that `start_lean` set because the user had not."""
    return _LEAN.keys() - _chosen


def inherited_environment() -> dict[str, str]:
    """The environment that vramp was started with, for servers: they choose their own threads and plugins."""
    ours = own_variables()
    return {name: value for name, value in os.environ.items() if name not in ours}


def resident_bytes() -> int:
    """Physical memory of this process. A worker reads it four times a second, and would import psutil for it alone."""
    return int(text_in(Path("/proc/self/statm")).split()[1]) * resource.getpagesize()


def signal_when_parent_dies(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the thread that started it ends, unless it has already.

    A stopped child cannot notice the death of its parent in any other way.
    """
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def text_in(path: Path) -> str:
    """The stripped text of a small file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):  # ValueError: a path with a zero byte
        return ""


def number_in(path: Path) -> int | None:
    """The decimal number that is all of a small file; None if there is none."""
    return decimal(text_in(path))


def decimal(text: str) -> int | None:
    """The number that this text is; None if it is none, or longer than a counter can be."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None


def has_host_pids(proc: Path = Path("/proc")) -> bool:
    """Whether the pids that drivers report are valid in this `/proc`; not in a container with its own pid namespace."""
    try:
        return str((proc / "self/ns/pid").readlink()) == "pid:[4026531836]"  # the kernel's fixed number
    except OSError:
        return False


def entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing if it cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []
