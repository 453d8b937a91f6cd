"""Whether the kernel killed something for want of memory: its counters, and its own words where they may be read.

A counter is only worth something as a difference: read it before the start and after the end. Nothing here needs
privileges, and what cannot be read is None or empty, never an error.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from loadgen.server.process.log_text import clean_line

_KILL = re.compile(r"[Oo]ut of memory(?: \([^)]*\))?: Kill(?:ed)? process \d+")
_COUNTER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_MAX_RECORDS = 100_000
_RECORD_BYTES = 8192


def is_oom_kill(line: str) -> bool:
    """Whether the kernel says here that it killed a process for want of memory."""
    return _KILL.search(line) is not None


def read_oom_kills(proc: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """How many processes of this process' control group the kernel has killed for want of memory; None if unknown.

    Where the group has no counter, as outside of containers with cgroup v2, the whole machine's is taken.
    """
    for path in [*_counters(proc, cgroup_root), proc / "vmstat"]:
        match = _COUNTER.search(_text(path))
        if match is not None:
            return int(match[1])
    return None


def kernel_kills(since_s: float, kmsg: Path = Path("/dev/kmsg")) -> list[str]:
    """What the kernel says about such kills since `since_s` (CLOCK_MONOTONIC); empty where its log may not be read."""
    try:
        log = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        records = _records(log)
    finally:
        os.close(log)
    return [text for at_s, text in map(_parsed, records) if at_s >= since_s and is_oom_kill(text)]


def _counters(proc: Path, root: Path) -> list[Path]:
    """Where the counter may be: the group's own file, and that of the root, which is the group inside a container."""
    found: list[Path] = []
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        group = group.strip().lstrip("/")
        if "memory" in controllers.split(","):
            found += [root / "memory" / group / "memory.oom_control", root / "memory" / "memory.oom_control"]
        elif controllers == "":
            found += [root / group / "memory.events", root / "memory.events"]
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # ValueError: a group's name with a zero byte
        return ""


def _records(log: int) -> list[bytes]:
    """One record a read, until there is none; records that were overwritten meanwhile are skipped by the kernel."""
    data: list[bytes] = []
    for _ in range(_MAX_RECORDS):
        try:
            record = os.read(log, _RECORD_BYTES)
        except BrokenPipeError:
            continue
        except OSError:  # no more records, or not ours to read after all
            break
        if not record:
            break
        data.append(record)
    return b"".join(data).splitlines()


def _parsed(record: bytes) -> tuple[float, str]:
    """The time in seconds since boot, and the message, of `6,1234,5678000,-;message`."""
    head, _, message = record.partition(b";")
    fields = head.split(b",")
    at_us = int(fields[2]) if len(fields) > 2 and fields[2].isdigit() else -1
    return at_us / 1e6, clean_line(message)
