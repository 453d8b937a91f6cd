"""Checks of how the box's GPUs are set up and connected: partitions, power caps, links, IOMMU, ACS.

Connections matter only to a server that uses several GPUs. A check that needs more rights than this user has raises
`OSError`, and the preflight reports that it was not checked.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from loadgen.format import GIB, memory
from loadgen.schema.finding import Finding
from loadgen.schema.samples import GpuStatic
from loadgen.server.gpus.given import server_devices
from loadgen.server.preflight.facts import Setup, read_setting
from loadgen.server.vllm.flags import devices_each, normal_args
from loadgen.system import entries, has_host_pids, text_in
from loadgen.vendors import is_partition, vendor_of

_LITTLE_LOCKED_BYTES = GIB  # Docker's daemon gives containers 8 MiB
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_EXTENDED, _ACS, _REDIRECTS = 0x100, 0x000D, 0b101100  # requests, completions and egress control


def _takes_several(setup: Setup) -> bool:
    return devices_each(setup.server.args) > 1


def _numbers(gpus: Sequence[GpuStatic]) -> str:
    return f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(str(gpu.index) for gpu in gpus)}"


def enough_devices(setup: Setup) -> Iterator[Finding]:
    """The devices that the server needs, against those that it may use on this box."""
    needed = devices_each(setup.server.args) * setup.server.instances
    visible = server_devices(setup.server, setup.environment, setup.gpus)
    split = any(gpu.compute_partition == "MIG" for gpu in setup.gpus)
    args = normal_args(setup.server.args)
    # With these flags it may span several boxes.
    spreads = any(name.startswith(("nnodes", "data-parallel-")) and name != "data-parallel-size" for name in args)
    spreads |= "ray" in (args.get("distributed-executor-backend"), args.get("data-parallel-backend"))
    if visible and len(visible) < needed and not split and not spreads:
        seen = f"the server takes {needed} devices, and there {'is' if len(visible) == 1 else 'are'} {len(visible)}"
        fix = "lower tensor-parallel-size or server.instances, or give it more GPUs"
        yield Finding("too-few-gpus", "blocks", seen, "vLLM refuses to start with more ranks than GPUs", fix)


def partitions(setup: Setup) -> Iterator[Finding]:
    split = [gpu for gpu in setup.taken_gpus if is_partition(gpu.compute_partition)]
    needed = devices_each(setup.server.args) * setup.server.instances
    devices = sum(gpu.engine_devices for gpu in setup.gpus)
    if not split or (split[0].compute_partition != "MIG" and needed >= devices):
        return  # a server that uses all devices of a box is meant to use partitions
    modes = " and ".join(mode for mode in (split[0].compute_partition, split[0].memory_partition) if mode)
    if split[0].compute_partition == "MIG":
        why = "a MIG instance is a part of a GPU, and there are no links between the instances of several"
        yield Finding("gpu-partitions", "warns", f"{_numbers(split)}: {modes}", why, "sudo nvidia-smi -mig 0")
        return
    count = split[0].engine_devices
    each = memory((split[0].hbm_total_bytes or 0) // count)
    seen = f"{_numbers(split)}: {modes}, {count} devices of {each} each; the server takes {needed} devices"
    why = "a device is a part of a GPU here, with a part of its compute units, of its memory and of its bandwidth"
    whole = split[0].memory_partition in (None, "NPS1")
    memory_first = "" if whole else "sudo amd-smi set --gpu all --memory-partition NPS1, then "
    fix = f"{memory_first}sudo amd-smi set --gpu all --compute-partition SPX"
    yield Finding("gpu-partitions", "warns", seen, why, fix, "RCCL, usage tips: partition modes of MI300")


def power_caps(setup: Setup) -> Iterator[Finding]:
    caps = [(gpu, setup.sample_of(gpu).power_cap_w, gpu.power_cap_default_w) for gpu in setup.taken_gpus]
    low = [(gpu, cap, default) for gpu, cap, default in caps if cap is not None and default and cap < default - 1]
    if low:
        seen = "; ".join(f"GPU {gpu.index}: {cap:g} W of {default:g} W" for gpu, cap, default in low)
        why = "the power cap was lowered: the GPUs clock down under load, and figures are not those of this GPU"
        each = f"sudo nvidia-smi -pl {low[0][2]:g}"
        fix = "sudo rocm-smi --resetpoweroverdrive" if setup.platform == "rocm" else each
        yield Finding("power-cap", "warns", seen, why, fix)


def links(setup: Setup) -> Iterator[Finding]:
    """Links that are down from the start: no counter shows them, only a comparison with the other GPUs."""
    if not _takes_several(setup):
        return
    most: dict[str, int] = {}  # of any GPU with that name
    for gpu in setup.gpus:
        most[gpu.name] = max(setup.sample_of(gpu).links_up or 0, most.get(gpu.name, 0))
    counts = [(gpu, setup.sample_of(gpu).links_up) for gpu in setup.taken_gpus if gpu.compute_partition != "MIG"]
    short = [(gpu, up) for gpu, up in counts if up is not None and up < most[gpu.name]]
    if short:
        kind, what = ("xgmi", "XGMI links") if setup.platform == "rocm" else ("nvlink", "NVLinks")
        seen = "; ".join(f"GPU {gpu.index} has {up} of {most[gpu.name]} {what}" for gpu, up in short)
        why = "other GPUs have more: tensor parallelism runs at the speed of the slowest link, or over PCIe"
        fix = (
            f"sudo dmesg | grep -i {kind}; restart the box, and look at the baseboard if it stays so; where only some "
            "cards have a bridge, choose those"
        )
        yield Finding("links-down", "warns", seen, why, fix)


def fabric(setup: Setup) -> Iterator[Finding]:
    """The NVSwitch fabric: until its manager has set it up, no program can use a GPU."""
    if setup.platform != "cuda":
        return
    why = (
        'the GPUs of a box with NVSwitches wait for the fabric manager; until then CUDA fails with error 802, "system '
        'not yet initialized"'
    )
    fix = "sudo systemctl restart nvidia-fabricmanager; from B200 on it needs nvlsm next to it"
    waiting = [gpu for gpu in setup.taken_gpus if setup.sample_of(gpu).fabric in ("Not Started", "In Progress")]
    if waiting:
        seen = f"{_numbers(waiting)}: fabric state {setup.sample_of(waiting[0]).fabric}"
        yield Finding("fabric-not-ready", "warns", seen, why, fix, "NVIDIA/NVSentinel issue 883")
    elif _switches_without_manager(setup):
        seen = "there are NVSwitches, and nv-fabricmanager does not run"
        yield Finding("fabric-not-ready", "warns", seen, why, fix, "NVIDIA/NVSentinel issue 883")


def _switches_without_manager(setup: Setup) -> bool:
    """Whether NVSwitches lack their manager, for drivers that do not report it; false if processes are not visible."""
    proc = setup.box.proc
    if not (setup.box.dev / "nvidia-nvswitchctl").exists() or any(setup.sample_of(gpu).fabric for gpu in setup.gpus):
        return False
    names = {text_in(folder / "comm") for folder in entries(proc) if folder.name.isdecimal()}
    return has_host_pids(proc) and "nv-fabricmanage" not in names  # the kernel keeps 15 characters


def _pci_gpus(setup: Setup) -> list[Path]:
    """The PCI folders of the platform's GPUs: display controllers and accelerators."""
    vendor = vendor_of(setup.platform)
    return [
        device
        for device in sorted(entries(setup.box.sys / "bus/pci/devices"))
        if vendor is not None
        and text_in(device / "vendor") == vendor.pci_id
        and text_in(device / "class").startswith(("0x03", "0x12"))
    ]


def iommu(setup: Setup) -> Iterator[Finding]:
    kinds = {device.name: read_setting(device / "iommu_group/type") for device in _pci_gpus(setup)}
    translated = [name for name, kind in kinds.items() if kind is not None and kind.startswith("DMA")]
    if translated and _takes_several(setup):
        seen = f"the IOMMU translates what {len(translated)} of {len(kinds)} GPUs access ({kinds[translated[0]]})"
        why = "GPUs that reach each other through an IOMMU that is not in passthrough are slow, hang, or see wrong data"
        fix = "add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, sudo update-grub, and restart the box"
        source = "AMD Instinct MI300X system optimization; CUDA C++ Programming Guide, IOMMU on Linux"
        yield Finding("iommu-translates", "warns", seen, why, fix, source)


def access_control(setup: Setup) -> Iterator[Finding]:
    """ACS on the bridges above the GPUs; it matters if the GPUs are connected only by PCIe."""
    if not _takes_several(setup) or any(setup.sample_of(gpu).links_up for gpu in setup.gpus):
        return
    above = {parent for device in _pci_gpus(setup) for parent in device.resolve().parents}
    bridges = sorted(folder for folder in above if _PCI_ADDRESS.fullmatch(folder.name))
    redirecting = [folder.name for folder in bridges if _redirects(folder / "config")]
    if redirecting:
        seen = f"ACS is on at {', '.join(redirecting)}"
        why = "traffic between GPUs goes up to the CPU and back down: slow, and it may hang"
        fix = "switch ACS off in the BIOS; until the next start: sudo setpci -s ADDRESS ECAP_ACS+0x6.w=0000 for each"
        yield Finding("acs-on", "warns", seen, why, fix, "NCCL User Guide, PCI Access Control Services")


def _redirects(config: Path) -> bool:
    """Whether a bridge redirects traffic between its devices; raises `PermissionError` if only root can read that."""
    data = config.read_bytes()
    if len(data) <= _EXTENDED:
        raise PermissionError(errno.EACCES, "only root may read it whole", str(config))
    offset = _EXTENDED
    for _ in range(64):  # bounded, in case the list is circular
        header = int.from_bytes(data[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS:
            return bool(int.from_bytes(data[offset + 6 : offset + 8], "little") & _REDIRECTS)
        offset = header >> 20
        if offset < _EXTENDED:
            break
    return False


def locked_memory(setup: Setup) -> Iterator[Finding]:
    """The limit of locked memory, if there is a network adapter that registers memory."""
    if not _takes_several(setup) or not entries(setup.box.sys / "class/infiniband"):
        return
    docker = setup.server.docker
    if docker is not None and any(limit.startswith("memlock=") for limit in docker.ulimits):
        return
    contained = docker is not None
    limit = _limit_of_daemon(setup.box.proc) if contained else setup.box.locked_memory
    if limit is not None and limit < _LITTLE_LOCKED_BYTES:
        seen = f"a process{' of a container' if contained else ''} may lock {memory(limit)} of memory"
        why = "NCCL and RCCL register memory with InfiniBand or RoCE, and fail with ibv_reg_mr: Cannot allocate memory"
        shell = "sudo prlimit --pid $$ --memlock=unlimited, in the shell that starts vramp"
        fix = 'server.docker.ulimits = ["memlock=-1"]' if contained else shell
        source = "mlcommons/mlperf-automations issue 664"
        yield Finding("locked-memory", "info", seen, why, fix, source)


def _limit_of_daemon(proc: Path) -> int | None:
    """The limit that containers inherit; None if unlimited or unknown."""
    for folder in entries(proc):
        if folder.name.isdecimal() and text_in(folder / "comm") == "dockerd":
            match = re.search(r"(?m)^Max locked memory\s+(\d+)", text_in(folder / "limits"))
            return None if match is None else int(match[1])
    return None
