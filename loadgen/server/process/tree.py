"""Finds the processes that belong to a server, and signals exactly those.

Relations come from `/proc/PID/stat`: one read gives identity, parent, session and state. A process is identified by its
pid and its start time in clock ticks since boot, which no clock step moves and no reuse of the pid repeats. Standard
library only, because the guard imports it and must start fast.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.05
_TRACKER_S = 0.3  # for processes that ignore SIGTERM, once the others are gone


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, past or present; equal only if it is the same process, not the same number."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    id: ProcessId
    name: str
    parent: int
    group: int
    session: int
    alive: bool  # false for a zombie, which holds no memory and which only its parent can reap
    ignores_sigterm: bool = False


def process_info(pid: int, proc: Path = Path("/proc")) -> ProcessInfo | None:
    """What `/proc` says of a process; None if it is gone or hidden from this user (mount option hidepid)."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    head, _, tail = text.rpartition(")")  # the name itself may contain blanks and parentheses
    fields = tail.split()
    state, threads = fields[0], int(fields[17])
    return ProcessInfo(
        id=ProcessId(pid, int(fields[19])),
        name=head.partition("(")[2],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        # A zombie with more than one thread is a process whose first thread ended while others run on.
        alive=state not in "ZX" or threads > 1,
        ignores_sigterm=bool(int(fields[30]) >> (signal.SIGTERM - 1) & 1),
    )


def command_line(pid: int, proc: Path = Path("/proc")) -> list[str]:
    """The words of a process's command line; empty if it is gone, a kernel thread or hidden."""
    try:
        data = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [word.decode("utf-8", "replace") for word in data.split(b"\0") if word]


def lives(target: ProcessId) -> bool:
    info = process_info(target.pid)
    return info is not None and info.id == target and info.alive


def all_processes() -> dict[int, ProcessInfo]:
    found = (process_info(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208 - names suffice
    return {info.id.pid: info for info in found if info is not None}


def descendants(root: int, processes: Mapping[int, ProcessInfo] | None = None) -> list[ProcessInfo]:
    """The living descendants of `root`, parents before their children; `root` itself is left out."""
    by_parent: dict[int, list[ProcessInfo]] = {}
    for info in (all_processes() if processes is None else processes).values():
        by_parent.setdefault(info.parent, []).append(info)
    found: list[ProcessInfo] = []
    frontier = [root]
    while frontier:
        children = by_parent.pop(frontier.pop(), [])
        found += children
        frontier += [child.id.pid for child in children]
    return [info for info in found if info.alive]


def send_signal(target: ProcessId, number: signal.Signals) -> bool:
    """Signal exactly this process, never one that reused its pid; False if it is gone or no longer ours."""
    try:
        handle = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return False
    except OSError:  # no pidfds in this kernel or container: check right before the signal instead
        handle = None
    try:
        info = process_info(target.pid)
        if info is None or info.id != target:  # the open handle keeps this true until the signal is sent
            return False
        if handle is None:
            os.kill(target.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
        return True
    except (ProcessLookupError, PermissionError):  # it is gone, or changed its user and is reported as left
        return False
    finally:
        if handle is not None:
            os.close(handle)


def abort_without_core(target: ProcessId) -> bool:
    """Send SIGABRT, but let no core be written: one of a server's takes as long and as much as its memory."""
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.prlimit(target.pid, resource.RLIMIT_CORE)
        # 1 and not 0, which the kernel ignores where cores go to a program.
        resource.prlimit(target.pid, resource.RLIMIT_CORE, (1 if most else 0, most))
    return send_signal(target, signal.SIGABRT)


def kill_seen(
    seen: Iterable[ProcessId], *, within_s: float, grace_s: float = 0.0
) -> tuple[list[ProcessInfo], list[ProcessInfo]]:
    """End these processes and all that belong to them, without a guard; returns those killed and those left.

    Blocks for about `within_s` at most. Sends SIGTERM first, and SIGKILL after `grace_s`. Without the guard, orphans
    cannot be traced by parent; but a session that contains one of `seen` is the server's own: processes cannot join a
    session, only create or inherit one.
    """
    known, requested = set(seen), set[ProcessId]()
    killed: dict[ProcessId, ProcessInfo] = {}
    began = spared = time.monotonic()
    while living := _related(known):
        now = time.monotonic()
        known |= {info.id for info in living}
        # Python's shared-memory tracker ignores SIGTERM: it frees what the others leave behind, and ends after them.
        hearing = [info for info in living if not info.ignores_sigterm]
        for info in hearing:
            if info.id not in requested:
                requested.add(info.id)
                send_signal(info.id, signal.SIGTERM)
        spared = now if hearing else spared
        due = hearing if now >= began + grace_s else []
        for info in due if now < spared + _TRACKER_S else living:
            if send_signal(info.id, signal.SIGKILL):
                killed[info.id] = info
        if now >= began + within_s:
            return list(killed.values()), living
        time.sleep(_POLL_S)
    return list(killed.values()), []


def _related(known: set[ProcessId]) -> list[ProcessInfo]:
    processes = all_processes()
    living = [info for info in processes.values() if info.id in known and info.alive]
    sessions = {info.session for info in living} - {os.getsid(0)}
    related = {info.id: info for info in processes.values() if info.session in sessions and info.alive}
    for info in living:
        related[info.id] = info
        related |= {child.id: child for child in descendants(info.id.pid, processes)}
    return list(related.values())
