"""Readers of what the kernel, drivers and their tools say, and of what vramp notes about this machine."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import msgspec

from loadgen.masking import shown_command
from loadgen.run.placement import format_cpus, read_topology
from loadgen.server.preflight import box_hardware, box_model
from loadgen.server.process import container, records, tree
from loadgen.server.vllm import installation
from loadgen.server.vllm.diagnosis import read_oom_kills
from loadgen.system import parse_cpus
from loadgen.telemetry import child
from loadgen.telemetry.amd import gpu_metrics, sysfs
from loadgen.telemetry.amd.kernel import compute_nodes, held_bytes, rocm_version, socket_of, xgmi_peers
from loadgen.telemetry.host import read_frequency
from loadgen.telemetry.readings import Missing
from tests.fuzz.checks import done, require_amounts, require_same, require_showable, scratch, written
from tests.server.gpu_trees import GIB, add_amd_gpu, add_kfd_node, add_kfd_process

_MAX_ORDER = 512

# What tools print.


def docker_id(data: bytes) -> str:
    return str(container.read_id(str(written("container.id", data))) is not None)


# What the kernel shows.


def gpu_table(data: bytes) -> object:
    """The driver's binary table, twice, because throttling is what has happened in between."""
    half = len(data) // 2
    before, table = gpu_metrics.decode(data[:half]), gpu_metrics.decode(data[half:])
    for each in (before, table, gpu_metrics.decode(data)):
        for value in (*gpu_metrics.readings(each).values(), *gpu_metrics.links(each), gpu_metrics.xcp_percent(each, 0)):
            if not isinstance(value, Missing):
                require_amounts(value)
        now = gpu_metrics.throttle_percent(each, gpu_metrics.residency(before))
        if not isinstance(now, Missing):
            require_amounts(now)
            assert all(share <= 100 for share in now.values())
    return type(table).__name__


_NODE = "class/kfd/kfd/topology/nodes/1"
_CARD = "devices/pci0000:00/0000:05:00.0"
_FILES = (
    *(f"{_NODE}/gpu_id", f"{_NODE}/properties", f"{_NODE}/io_links/0/properties"),
    "class/kfd/kfd/proc/4242/vram_7",
    *(f"{_CARD}/{name}" for name in ("mem_info_vram_used", "mem_info_vram_total", "product_name", "unique_id")),
    *(f"{_CARD}/{name}" for name in ("pp_dpm_sclk", "max_link_speed", "max_link_width", "current_compute_partition")),
    *(f"{_CARD}/{name}" for name in ("gpu_busy_percent", "pcie_replay_count", "ras/umc_err_count", "gpu_metrics")),
    *(f"{_CARD}/hwmon/hwmon0/{name}" for name in ("power1_cap", "power1_average", "temp2_label", "temp2_input")),
)


_WRITTEN: dict[str, bytes] = {}


@cache
def _tree() -> Path:
    root = scratch() / "sys"
    add_amd_gpu(root, 0, 5, used=GIB)
    add_kfd_node(root, 1, 7, location=0x500)
    add_kfd_process(root, 4242, {7: GIB})
    for name in _FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    return root


def amd_files(data: bytes) -> object:
    """Files of amdgpu and amdkfd, one after another, separated by NUL."""
    root = _tree()
    contents = data.split(b"\0", len(_FILES) - 1)
    for name, content in zip(_FILES, contents + [b""] * len(_FILES), strict=False):
        if _WRITTEN.get(name) != content:
            (root / name).write_bytes(content)
            _WRITTEN[name] = content
    for node in compute_nodes(root):
        xgmi_peers(root, node.number)
    require_amounts(held_bytes(root))
    backend = sysfs.open_amd_sysfs(root, root)
    require_amounts(backend.opened.gpus)
    all_of_them = not crc32(data) % 2  # every file, or those of most samples
    for sample in backend.sample(all_of_them, all_of_them):
        require_amounts(sample)
        msgspec.json.encode(sample)
        for process in sample.processes or ():
            require_showable(process.name)
    for gpu in backend.opened.gpus:
        require_showable(gpu.name)
    return len(backend.opened.gpus)


def processes(data: bytes) -> object:
    """The name, the command line and the environment of a process are its own choice; the rest is the kernel's."""
    name, _, rest = data.partition(b"\n--\n")
    fields = b"S 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 345 0 0 0 0 0 0 0 0 16384 0 0 0 0 0 0 0 0 0 0 0 0"
    written("proc/7/stat", b"7 (" + name[:15] + b") " + fields + b"\n")
    written("proc/7/cmdline", rest)
    written("proc/7/environ", rest)
    found = tree.process_info(7, scratch() / "proc")
    assert found is not None
    require_same((found.parent, found.session, found.id.start_ticks), (1, 7, 345))
    shown_command(tree.command_line(7, scratch() / "proc"))
    with patch.object(records, "_PROC", scratch() / "proc"):
        records._mark_of(7, "0123456789ab")
    mark = records.read_mark(rest.decode("utf-8", "replace"))
    assert mark is None or records.read_mark(str(mark)) == mark
    return mark is not None


def cpu_lists(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    socket_of(text)
    cpus = parse_cpus(text)
    require_same(cpus, parse_cpus(format_cpus(cpus)))
    written("cpus/devices/system/node/node0/cpulist", data)
    written("cpus/devices/system/cpu/cpu0/topology/thread_siblings_list", data)
    return bool(read_topology(scratch() / "cpus").nodes)


def small_files(data: bytes) -> object:
    """Counters of the kernel and versions in a file, which are left out where they cannot be read."""
    written("small/vmstat", data)
    written("small/.info/version", data)
    written("small/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", data)
    root = scratch() / "small"
    kills = read_oom_kills(root, root, own_group=False)
    require_amounts(kills or 0)
    rocm_version(root)
    require_amounts([value for value in read_frequency(root).values() if not isinstance(value, str)])
    return kills is not None


def pci_config(data: bytes) -> object:
    try:
        return box_hardware._redirects(written("config", data))
    except PermissionError:
        return "not whole"


# What vramp notes, and tells itself.


def server_record(data: bytes) -> str:
    found = records._read(written("record.json", data))
    if isinstance(found, records.ServerRecord):
        str(found.mark)
    return type(found).__name__


def installed(data: bytes) -> str:
    """What a Python said of its vLLM, as it was kept; asked again if that is damaged."""
    entry = written("installed.json", data)

    async def requested(*_: object) -> installation.Installation:
        return _recorded()

    # No vLLM is imported a million times.
    with (
        patch.object(installation, "_cache_entry", lambda *_: entry),
        patch.object(installation, "_requested", requested),
    ):
        done(installation.ask_installation(Path("python"), cache=scratch()))
    return "installed"


@cache
def _recorded() -> installation.Installation:
    return installation.newest_recorded()


def weight_index(data: bytes) -> int:
    """The index of a model's files."""
    folder = written("weights/model.safetensors.index.json", data).parent
    (folder / "config.json").touch()
    found: Iterator[Any] = box_model._incomplete("server.model", folder)
    return len(list(found))


def telemetry_orders(data: bytes) -> object:
    """What a child that measures GPUs is sent."""
    orders = child.Orders()
    path = written("orders", data[:_MAX_ORDER])
    with (
        path.open("rb") as file,
        contextlib.redirect_stderr(io.StringIO()),
        # In this process, which must not end: a mock of what ends it.
        patch.object(os, "_exit", lambda _: None),
        patch.object(child, "_HANG_S", 0),
    ):
        orders._read(file.fileno())
    assert orders.ended.is_set()
    return orders.processes
