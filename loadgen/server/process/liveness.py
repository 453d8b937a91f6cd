"""Signs of life of a server that says nothing: a start can be silent for minutes while it compiles or reads weights.

The server's processes come and go while they are looked at; one that is gone, or not ours to see, counts as nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import psutil

from loadgen.metrics.snapshot import Liveness


class CpuTime(NamedTuple):
    """What a tree of processes had used by one look, to be given to the next."""

    at_s: float
    used_s: float


def signs_of_life(
    pids: Iterable[int],
    before: CpuTime | None,
    *,
    now_s: float,
    last_line_s: float | None = None,
    hbm_used_bytes: int | None = None,
) -> tuple[Liveness, CpuTime]:
    """Look at the tree once; `now_s` and `last_line_s`, when the last line came, are of the same monotonic clock."""
    seen = [usage for pid in pids if (usage := _usage(pid)) is not None]
    cpu = CpuTime(now_s, sum(used_s for used_s, _ in seen))
    liveness = Liveness(
        cpu_percent=None if before is None else _percent(before, cpu),
        rss_bytes=sum(rss for _, rss in seen),
        last_line_age_s=None if last_line_s is None else max(0.0, now_s - last_line_s),
        hbm_used_bytes=hbm_used_bytes,
    )
    return liveness, cpu


def _usage(pid: int) -> tuple[float, int] | None:
    """CPU seconds and resident bytes of a process, or None if it is gone.

    With the seconds of its children that ended: a compiler that came and went within a second has worked, too.
    """
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            used_s = times.user + times.system + times.children_user + times.children_system
            return used_s, process.memory_info().rss
    except psutil.Error:
        return None


def _percent(before: CpuTime, now: CpuTime) -> float | None:
    if now.at_s <= before.at_s:
        return None
    # A process whose parent is not of the tree takes its seconds with it.
    return max(0.0, 100 * (now.used_s - before.used_s) / (now.at_s - before.at_s))
