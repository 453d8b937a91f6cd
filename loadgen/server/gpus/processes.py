"""Describes the processes that hold GPU memory: their users and commands, and which belong to the server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import msgspec

from loadgen.format import user_name
from loadgen.masking import shown_command
from loadgen.schema.samples import GpuProcess, GpuSample
from loadgen.server.process import tree
from loadgen.server.process.ports import listeners
from loadgen.stream.request import host_and_port
from loadgen.system import has_host_pids


def described(sample: GpuSample, server: Collection[int] | None = None, *, proc: Path = Path("/proc")) -> GpuSample:
    """The sample with users and commands (without secrets) of its processes, and whether they are the server's.

    `server` are the server's pids; None if there is no server.
    """
    if not sample.processes or not has_host_pids(proc):  # drivers report host pids, which mean other processes here
        return sample
    reported: list[GpuProcess] = []
    for process in sample.processes:
        found: dict[str, Any] = {"of_server": None if server is None else process.pid in server}
        with contextlib.suppress(OSError):  # it has ended, or is hidden from this user
            found["user"] = user_name((proc / str(process.pid)).stat().st_uid)
            found["command"] = shown_command(tree.command_line(process.pid, proc))
        reported.append(msgspec.structs.replace(process, **found))
    return msgspec.structs.replace(sample, processes=tuple(reported))


def attached_pids(urls: Iterable[str]) -> set[int]:
    """The processes that listen at these URLs, as far as this user can see, and all their descendants.

    Slow: it examines every process of the box.
    """
    ports = {host_and_port(url)[1] for url in urls}
    roots = listeners(ports) - {os.getpid()}
    processes = tree.all_processes()
    return roots | {info.id.pid for root in roots for info in tree.descendants(root, processes)}
