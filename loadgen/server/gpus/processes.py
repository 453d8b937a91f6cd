"""Describes the processes that hold GPU memory: their users and commands, and which belong to the server."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

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
    reported = tuple(
        _described(process, None if server is None else process.pid in server, proc) for process in sample.processes
    )
    return msgspec.structs.replace(sample, processes=reported)


def _described(process: GpuProcess, of_server: bool | None, proc: Path) -> GpuProcess:
    try:
        user = user_name((proc / str(process.pid)).stat().st_uid)
    except OSError:  # it has ended, or is hidden from this user
        return msgspec.structs.replace(process, of_server=of_server)
    command = shown_command(tree.command_line(process.pid, proc))
    return msgspec.structs.replace(process, user=user, command=command, of_server=of_server)


def attached_pids(urls: Iterable[str]) -> set[int]:
    """The processes that listen at these URLs, as far as this user can see, and all their descendants.

    Slow: it examines every process of the box.
    """
    ports = {host_and_port(url)[1] for url in urls}
    roots = listeners(ports) - {os.getpid()}
    processes = tree.all_processes()
    return roots | {info.id.pid for root in roots for info in tree.descendants(root, processes)}
