"""Check of the GPUs' memory: what is in use before the start, by whom, and whether the rest suffices."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen.metrics.journal import Finding
from loadgen.server.preflight.box import Box, Setup, command_of, gib, shown_command
from loadgen.server.preflight.flags import normal_args
from loadgen.server.process.gpu_memory import GpuMemory, Holder
from loadgen.server.process.locks import ServerRecord, read_record, servers_folder
from loadgen.server.vllm.command import devices_each
from loadgen.vendors import vendor_of

_IDLE_SHARE = 0.05  # of a GPU's memory: an idle driver takes less
_UTILIZATION = 0.9  # vLLM's default of gpu-memory-utilization; later versions ask for a little more
_SHOWN_HOLDERS = 3


def gpu_memory(setup: Setup) -> Iterator[Finding]:
    """GPUs of the server that are in use already."""
    needed = devices_each(setup.server.args) * setup.server.instances
    chosen = _chosen(setup, needed)
    meant = [gpu for gpu in setup.gpus if chosen is None or gpu.index in chosen]
    share = _utilization(setup)
    full = [gpu for gpu in meant if gpu.total_bytes - gpu.used_bytes < share * gpu.total_bytes]
    if full and len(meant) - len(full) < (needed if chosen is None else len(meant)):
        yield Finding(
            "gpu-memory-taken",
            "blocks",
            "; ".join(_shown(setup.box, gpu) for gpu in full),
            f"vLLM takes {share:g} of a GPU's memory, and refuses to start where less is free",
            "end those processes, choose other GPUs, or lower gpu-memory-utilization",
        )
        meant = [gpu for gpu in meant if gpu not in full]
    used = [gpu for gpu in meant if gpu.used_bytes > _IDLE_SHARE * gpu.total_bytes]
    if used:
        yield Finding(
            "gpu-memory-used",
            "warns",
            "; ".join(_shown(setup.box, gpu) for gpu in used),
            "somebody else computes there, or left memory behind: it costs room for the KV cache, and maybe speed",
            "end those processes, or choose other GPUs",
        )


def _shown(box: Box, gpu: GpuMemory) -> str:
    held = [_holder(box, holder) for holder in gpu.holders[:_SHOWN_HOLDERS]]
    more = len(gpu.holders) - len(held)
    names = ", ".join([*held, *([f"{more} more"] if more else [])]) or "nobody who can be seen"
    return f"GPU {gpu.index} ({gpu.name}): {gib(gpu.used_bytes)} of {gib(gpu.total_bytes)} in use by {names}"


def _holder(box: Box, holder: Holder) -> str:
    # Without a name the pid is another namespace's, and ours of that number is somebody else.
    words = command_of(box, holder.pid) if holder.name else []
    return f"pid {holder.pid} ({shown_command(words)})" if words else str(holder)


def _utilization(setup: Setup) -> float:
    value = normal_args(setup.server.args).get("gpu-memory-utilization", _UTILIZATION)
    try:
        return float(value)
    except (TypeError, ValueError):
        return _UTILIZATION  # vLLM says what is wrong with it


def _chosen(setup: Setup, needed: int) -> set[int] | None:
    """The GPUs that the server will take; None if that cannot be told."""
    docker = setup.server.docker
    if any(gpu.devices > 1 for gpu in setup.gpus) or (docker is not None and docker.gpus not in (None, "all")):
        return None
    if docker is not None and any("renderD" in device for device in docker.devices):
        return None
    visible: list[int] | None = sorted(gpu.index for gpu in setup.gpus)
    vendor = vendor_of(setup.platform)
    for names in (vendor.renumbering, vendor.visible) if vendor is not None else ():
        visible = _narrowed(visible, names, setup.environment)
    return None if visible is None else set(visible[:needed])


def _narrowed(visible: list[int] | None, names: Sequence[str], environment: Mapping[str, str]) -> list[int] | None:
    """What the first variable that is set leaves of the devices, in its order; None if it uses other names for them."""
    listed = next((environment[name] for name in names if environment.get(name)), None)
    if listed is None or visible is None:
        return visible
    positions = [word.strip() for word in listed.split(",")]
    if not all(word.isdecimal() and int(word) < len(visible) for word in positions):
        return None
    return [visible[int(word)] for word in positions]


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
            f"vLLM runs already: {_listed(group)}{holding}",
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


def _listed(group: Sequence[Leftover]) -> str:
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
