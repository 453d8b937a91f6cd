"""Checks what uses the GPUs before a start: memory in use and its holders, and running vLLM processes.

Leftovers of an earlier server hold GPU memory; they are found and named here, never ended. A process group counts as
one server or its leftovers; descendants of this process are not leftovers.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from loadgen.errors import ServerError
from loadgen.format import memory
from loadgen.masking import shown_command
from loadgen.schema.finding import ORPHANED, Finding
from loadgen.schema.samples import GpuProcess, GpuStatic
from loadgen.server.gpus.given import server_gpus
from loadgen.server.gpus.processes import described
from loadgen.server.preflight.facts import Box, Setup, memory_share
from loadgen.server.process.records import ServerRecord, find_servers, list_servers, orphan_words, servers_folder
from loadgen.server.process.tree import ProcessInfo, command_line, process_info
from loadgen.server.vllm.command import find_container_program
from loadgen.server.vllm.flags import devices_each, normal_args
from loadgen.system import has_host_pids, text_in
from loadgen.vendors import is_partition

_IDLE_SHARE = 0.05  # of a GPU's memory: an idle driver takes less
_SHOWN = 3  # how many processes of a GPU or server are named
_CONTAINER = re.compile(r"(docker|libpod)[-/]([0-9a-f]{12})[0-9a-f]{52}")


def gpu_memory(setup: Setup) -> Iterator[Finding]:
    needed = devices_each(setup.server.args) * setup.server.instances
    chosen = server_gpus(setup.server, setup.environment, setup.gpus)
    meant = [gpu for gpu in (setup.gpus if chosen is None else chosen) if gpu.hbm_total_bytes]
    share = memory_share(normal_args(setup.server.args), setup.vllm)
    # In a partitioned GPU, the memory in use may belong to partitions other than the server's.
    full = [gpu for gpu in meant if not is_partition(gpu.compute_partition) and _used_share(setup, gpu) > 1 - share]
    if full and len(meant) - len(full) < (needed if chosen is None else len(meant)):
        seen = "; ".join(_shown(setup, gpu) for gpu in full)
        why = f"vLLM takes {share:g} of a GPU's memory, and refuses to start where less is free"
        fix = "end those processes, choose other GPUs, or lower gpu-memory-utilization"
        yield Finding("gpu-memory-taken", "blocks", seen, why, fix)
        meant = [gpu for gpu in meant if gpu not in full]
    used = [gpu for gpu in meant if _used_share(setup, gpu) > _IDLE_SHARE]
    if used:
        seen = "; ".join(_shown(setup, gpu) for gpu in used)
        why = "another program computes there, or left memory behind: less room for the KV cache, and maybe less speed"
        yield Finding("gpu-memory-used", "warns", seen, why, "end those processes, or choose other GPUs")


def _used_share(setup: Setup, gpu: GpuStatic) -> float:
    return (setup.sample_of(gpu).hbm_used_bytes or 0) / (gpu.hbm_total_bytes or 1)


def _shown(setup: Setup, gpu: GpuStatic) -> str:
    sample = described(setup.sample_of(gpu), proc=setup.box.proc)
    processes = sorted(sample.processes or (), key=lambda process: (-(process.hbm_bytes or 0), process.pid))
    named = [_shown_process(process) for process in processes[:_SHOWN]]
    if len(processes) > _SHOWN:
        named.append(f"{len(processes) - _SHOWN} more")
    users = ", ".join(named) or "no visible process"
    amounts = f"{memory(sample.hbm_used_bytes or 0)} of {memory(gpu.hbm_total_bytes or 0)}"
    return f"GPU {gpu.index} ({gpu.name}): {amounts} in use by {users}"


def _shown_process(process: GpuProcess) -> str:
    amount = "" if process.hbm_bytes is None else f" with {memory(process.hbm_bytes)}"
    if not process.command:
        return f"{process}{amount}"
    user = f" of {process.user}" if process.user else ""
    return f"pid {process.pid}{user}{amount} ({process.command})"


def orphans(setup: Setup) -> Iterator[Finding]:
    """Servers left behind by a vramp that was killed together with its guard, found by their processes' marks."""
    try:
        servers_folder()
    except ServerError as error:
        seen, _, fix = str(error).partition("; ")
        why = "what is written there decides which processes are ended"
        starts = setup.server.engine not in ("attach", "none")
        yield Finding("state-folder", "blocks" if starts else "info", seen, why, fix)
        return
    programs: list[str] = []
    if setup.server.docker is not None:
        with contextlib.suppress(ServerError):  # the container check reports a missing program
            programs.append(find_container_program(setup.server, setup.server.docker))
    servers, doubts = find_servers(programs)
    for record in servers:
        if record.orphaned:
            seen = f"{orphan_words(record)}{_holding(setup, {process.pid for process in record.tree})}"
            why = "vramp and its guard were killed together: the server keeps running until somebody stops it"
            yield Finding(ORPHANED, "warns", seen, why, f"vramp stop {record.port}")
    for doubt in doubts:
        yield Finding("server-unknown", "info", doubt, "it is unknown whether anything of it is left")


def _holding(setup: Setup, pids: Collection[int]) -> str:
    if not has_host_pids(setup.box.proc):
        return ""
    held = [process for gpu in setup.gpus for process in setup.sample_of(gpu).processes or () if process.pid in pids]
    held_bytes = sum(process.hbm_bytes or 0 for process in held)
    return f", holding {memory(held_bytes)} of GPU memory" if held_bytes else ""


def leftover_servers(setup: Setup) -> Iterator[Finding]:
    groups = leftovers(setup.box)
    records: list[ServerRecord] = []
    if groups:
        with contextlib.suppress(ServerError):  # `orphans` reports what is wrong with the folder
            records = list_servers()
    orphaned = {process for record in records if record.orphaned for process in record.tree}
    for group in groups:
        if orphaned & {process.id for process in group}:
            continue  # reported by `orphans`
        pids = [process.id.pid for process in group]
        holding = _holding(setup, pids)
        shown = ", ".join(f"pid {pid} ({shown_command(command_line(pid, setup.box.proc))})" for pid in pids[:_SHOWN])
        more = f" and {len(group) - _SHOWN} more" if len(group) > _SHOWN else ""
        seen = f"vLLM runs already: {shown}{more}{holding}"
        why = "it takes memory and time of GPUs and processors from the server that is to be measured"
        yield Finding("leftover-server", "warns", seen, why, _remedy(setup.box, group, records))


def leftovers(box: Box) -> list[list[ProcessInfo]]:
    """Every vLLM process that this process did not start, by process group."""
    groups: dict[int, list[ProcessInfo]] = {}
    pids = sorted(int(name) for name in os.listdir(box.proc) if name.isdecimal())  # noqa: PTH208 - names suffice
    for pid in pids:
        info = process_info(pid, box.proc) if is_vllm(command_line(pid, box.proc)) else None
        if info is not None and info.alive and not _is_ours(box.proc, info):
            groups.setdefault(info.group, []).append(info)
    return list(groups.values())


def is_vllm(words: Sequence[str]) -> bool:
    """Whether this is the command line or process title of a vLLM server process."""
    if not words:
        return False
    if words[0].startswith("VLLM::"):
        return True
    # `vllm serve`, by its script's name or as what Python runs; a later word is an argument.
    names = [word.rpartition("/")[2] for word in words[:3]]
    served = "vllm" in names and "serve" in words[names.index("vllm") + 1 : names.index("vllm") + 2]
    return served or any(word.startswith("vllm.entrypoints.") for word in words[1:4])


def _is_ours(proc: Path, info: ProcessInfo | None) -> bool:
    while info is not None and info.parent not in (0, 1, os.getpid()):
        info = process_info(info.parent, proc)
    return info is not None and info.parent == os.getpid()


def _remedy(box: Box, group: Sequence[ProcessInfo], records: Sequence[ServerRecord]) -> str:
    known = {process.id for process in group}
    for record in records:
        if known & set(record.tree):
            return f"vramp stop {record.port}"
    pids = [str(process.id.pid) for process in group]
    inside = _CONTAINER.search(text_in(box.proc / pids[0] / "cgroup"))
    if inside is not None:
        return f"{'docker' if inside[1] == 'docker' else 'podman'} stop {inside[2]}"
    ours = all((box.proc / pid).stat().st_uid == os.getuid() for pid in pids)
    return f"{'' if ours else 'sudo '}kill {' '.join(pids)}"
