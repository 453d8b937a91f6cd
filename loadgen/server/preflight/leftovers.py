"""vLLM processes that run already, whoever started them: what an earlier server left behind holds the GPU's memory.

Only found and named, never ended. One group of processes is one server or what is left of it; those that descend from
this process are no leftovers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen.metrics.journal import Finding
from loadgen.server.preflight.box_view import Box, Setup, command_of, gib, shown_command
from loadgen.server.process.records import ServerRecord, read_record, servers_folder

_TITLE = "VLLM::"
_MODULE = "vllm.entrypoints."
_CONTAINER = re.compile(r"(docker|libpod)[-/]([0-9a-f]{12})[0-9a-f]{52}")
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Leftover:
    """One process of a vLLM server."""

    pid: int
    parent: int
    group: int
    start_ticks: int
    words: tuple[str, ...]


def leftover_findings(setup: Setup) -> Iterator[Finding]:
    """What runs of vLLM, one finding for each group of processes."""
    groups = leftovers(setup.box)
    records = _records() if groups else []
    for group in groups:
        pids = {process.pid for process in group}
        held_bytes = sum(
            holder.used_bytes or 0
            for gpu in setup.gpus
            for holder in gpu.holders
            if holder.name and holder.pid in pids  # without a name, the pid is not one of ours
        )
        holding = f", holding {gib(held_bytes)} of GPU memory" if held_bytes else ""
        yield Finding(
            "leftover-server",
            "warns",
            f"vLLM runs already: {_shown(group)}{holding}",
            "it takes memory and time of GPUs and processors from the server that is to be measured",
            _remedy(setup.box, group, records),
        )


def leftovers(box: Box) -> list[list[Leftover]]:
    """Every vLLM process that this process did not start, by process group."""
    groups: dict[int, list[Leftover]] = {}
    for process in _vllm_processes(box):
        if not _descends(box.proc, process, os.getpid()):
            groups.setdefault(process.group, []).append(process)
    return list(groups.values())


def _vllm_processes(box: Box) -> Iterator[Leftover]:
    pids = sorted(int(name) for name in os.listdir(box.proc) if name.isdecimal())  # noqa: PTH208 - names suffice
    for pid in pids:
        words = command_of(box, pid)
        fields = _stat(box.proc, pid) if is_vllm(words) else None
        if fields is not None and fields[0] not in "ZX":
            yield Leftover(pid, int(fields[1]), int(fields[2]), int(fields[19]), tuple(words))


def is_vllm(words: Sequence[str]) -> bool:
    """Whether this is the command line, or the title, of a process of a vLLM server."""
    if not words:
        return False
    if words[0].startswith(_TITLE):
        return True
    # `vllm serve`, by its script's name or as what Python runs; a word further back is somebody's argument.
    names = [word.rpartition("/")[2] for word in words[:3]]
    served = "vllm" in names and "serve" in words[names.index("vllm") + 1 : names.index("vllm") + 2]
    return served or any(word.startswith(_MODULE) for word in words[1:4])


def _stat(proc: Path, pid: int) -> list[str] | None:
    """The fields of `stat` from the state on; None if the process is gone."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def _descends(proc: Path, process: Leftover, ancestor: int) -> bool:
    pid = process.parent
    while pid > 1 and pid != ancestor:
        fields = _stat(proc, pid)
        pid = int(fields[1]) if fields is not None else 0
    return pid == ancestor


def _shown(group: Sequence[Leftover]) -> str:
    shown = ", ".join(f"pid {process.pid} ({shown_command(process.words)})" for process in group[:_SHOWN])
    return f"{shown} and {len(group) - _SHOWN} more" if len(group) > _SHOWN else shown


def _records() -> list[ServerRecord]:
    records = (read_record(path) for path in servers_folder().glob("*.json"))
    return [record for record in records if record is not None]


def _remedy(box: Box, group: Sequence[Leftover], records: Sequence[ServerRecord]) -> str:
    known = {(process.pid, process.start_ticks) for process in group}
    for record in records:
        if known & {(one.pid, one.start_ticks) for one in (record.server, *record.tree)}:
            return f"vramp stop {record.port}"
    inside = _CONTAINER.search(_cgroup(box, group[0].pid))
    if inside is not None:
        return f"{'docker' if inside[1] == 'docker' else 'podman'} stop {inside[2]}"
    ours = all((box.proc / str(process.pid)).stat().st_uid == os.getuid() for process in group)
    return f"{'' if ours else 'sudo '}kill {' '.join(str(process.pid) for process in group)}"


def _cgroup(box: Box, pid: int) -> str:
    try:
        return (box.proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
