"""Fake boxes: one that has nothing against any run, and those that were described from what real ones published.

The descriptions are in `described/`, where each value has its source, and what is a guess says so. How the kernel lays
its files out is that of amdgpu and amdkfd; partitions are laid out as in ROCm/legacy-rocm-build issue 4439 (addresses)
and ROCm/k8s-device-plugin issue 157 (cards without a PCI device).
"""

import shutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadgen.errors import TelemetryError
from loadgen.plan.from_profile import stages_of
from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.schema.finding import Finding, not_checked
from loadgen.schema.samples import GpuProcess, GpuSample, GpuStatic
from loadgen.server.preflight.check import box_findings
from loadgen.server.preflight.facts import Box, Setup
from loadgen.telemetry.amd.sysfs import open_amd_sysfs
from loadgen.telemetry.gpus_now import GpusNow, whole_gpus
from loadgen.telemetry.protocol import Opened, Sampled
from loadgen.vendors import Platform
from tests.server.gpu_trees import (
    MIB,
    add_amd_card,
    add_kfd_node,
    add_xcp_card,
    initial_namespace,
    write,
)


def healthy_box(tmp_path: Path, **fields: Any) -> Box:
    """All that a check may look at is there, and as it should be."""
    proc, sys, dev = tmp_path / "proc", tmp_path / "sys", tmp_path / "dev"
    initial_namespace(proc)
    write(proc / "sys/kernel/numa_balancing", "0")
    write(proc / "sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
    write(proc / "sys/net/ipv4/ip_local_reserved_ports", "\n")
    write(sys / "kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    for cpu in range(2):
        write(sys / f"devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", "performance")
    write(sys / "devices/system/cpu/cpufreq/boost", "1")
    for name in ("kfd", "dri/renderD128", "nvidia0", "shm/x"):
        write(dev / name, "")
    home = tmp_path / "home"
    home.mkdir()
    normal: dict[str, Any] = {
        "open_files": 65536,
        "locked_memory": None,
        "clock_synchronised": True,
        "environ": {"PATH": str(tmp_path / "bin")},
    }
    return Box(root=tmp_path, home=home, **(normal | fields))


DESCRIBED = ("mi210", "mi300x", "mi355x", "h100", "b200")
_DEVICES_OF = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}


def described_box(tmp_path: Path, name: str, changes: Mapping[str, Any] | None = None, **fields: Any) -> Box:
    """A healthy box with the GPUs of a description, but for what is changed of them."""
    path = Path(__file__).parent / "described" / f"{name}.toml"
    described = tomllib.loads(path.read_text(encoding="utf-8"))
    gpu = described["gpu"] | (changes or {})
    box = healthy_box(tmp_path, **fields)
    shutil.rmtree(box.dev)
    write(box.dev / "shm/x", "")
    if described["platform"] == "rocm":
        _add_amd_box(box, described, gpu)
    else:
        _nvidia_gpus(box, described, gpu)
    return box


def _add_amd_box(box: Box, described: Mapping[str, Any], gpu: Mapping[str, Any]) -> None:
    write(box.dev / "kfd", "")
    add_kfd_node(box.sys, 0, 0)  # a processor
    each = _DEVICES_OF[gpu.get("compute_partition", "SPX")]
    nodes = len(described["addresses"]) * each
    for index, address in enumerate(described["addresses"]):
        add_amd_card(box.sys, index * each, address, used=300 * MIB, **gpu)
        domain, bus = (int(part, 16) for part in address.split(":")[:2])
        for part in range(each):
            number = 1 + index * each + part
            links = [node for node in range(1, nodes + 1) if node != number] if described["xgmi"] else []
            kinds = {"simd_count": gpu["simd_count"] // each, "gfx_target_version": gpu["gfx_target_version"]}
            add_kfd_node(box.sys, number, 1000 + number, bus << 8 | part, domain, links, **kinds)
            write(box.dev / f"dri/renderD{127 + number}", "")
            if part:
                add_xcp_card(box.sys, index * each + part)


def _nvidia_gpus(box: Box, described: Mapping[str, Any], gpu: Mapping[str, Any]) -> None:
    gpus, samples = [], []
    write(box.dev / "nvidiactl", "")
    for index in range(described["count"]):
        write(box.dev / f"nvidia{index}", "")
        static = GpuStatic(
            index=index,
            vendor="nvidia",
            name=gpu["name"],
            engine_index=index,
            engine_name=f"GPU-{index}",
            arch="sm_" + gpu["compute_cap"].replace(".", ""),
            compute_partition="MIG" if gpu["mig"] == "Enabled" else None,
            hbm_total_bytes=gpu["memory_mib"] * MIB,
            power_cap_default_w=gpu["power_default_limit_w"],
        )
        links_up = gpu["nvlinks"] - (index == gpu.get("nvlink_down_on"))
        now = {"power_cap_w": gpu["power_limit_w"], "links_up": links_up, "fabric": gpu["fabric"]}
        samples.append(GpuSample(index, 0.0, hbm_used_bytes=MIB, **now))
        gpus.append(static)
    add_nvidia_gpus(box, gpus, samples)


def add_nvidia_gpus(box: Box, gpus: Sequence[GpuStatic], samples: Sequence[GpuSample]) -> None:
    """What NVIDIA's library would report there."""
    (box.root / "nvidia.json").write_bytes(msgspec.json.encode((gpus, samples)))


def add_h200(box: Box, used_bytes: int, *processes: GpuProcess) -> None:
    gpu = GpuStatic(0, "nvidia", "H200", engine_index=0, hbm_total_bytes=143771 * MIB)
    add_nvidia_gpus(box, [gpu], [GpuSample(0, 0.0, hbm_used_bytes=used_bytes, processes=processes)])


def gpus_of(box: Box, platform: Platform) -> GpusNow:
    """The GPUs of a fake box, with AMD's read as the telemetry child reads them."""
    if platform == "rocm":
        backend = open_amd_sysfs(box.sys, box.proc)
        gpus, samples = backend.opened.gpus, backend.sample(True, True)
    elif (box.root / "nvidia.json").exists():
        text = (box.root / "nvidia.json").read_bytes()
        gpus, samples = msgspec.json.decode(text, type=tuple[tuple[GpuStatic, ...], tuple[GpuSample, ...]])
    else:
        raise TelemetryError("libnvidia-ml.so.1 was not found")
    return whole_gpus(Opened("nvml", {}, gpus), Sampled(0.0, 0.0, samples))


def setup_of(box: Box, profile: Profile, platform: Platform, **more: Any) -> Setup:
    try:
        now, problem = GpusNow((), {}) if platform == "cpu" else gpus_of(box, platform), ""
    except TelemetryError as error:
        now, problem = GpusNow((), {}), str(error)
    return Setup(profile, stages_of(profile), box, platform, now.gpus, now.samples, no_gpus=problem, **more)


def profile_of(tmp_path: Path, *overrides: str, **server: Any) -> Profile:
    """A profile of a vLLM whose model is a folder, unless told otherwise."""
    model = tmp_path / "model"
    write(model / "config.json", "{}")
    defaults: dict[str, Any] = {"engine": "vllm", "model": str(model)}
    return build_profile({"name": "p", "server": defaults | server}, where="p.toml", overrides=overrides)


def check(box: Box, profile: Profile, platform: Platform = "cpu") -> list[Finding]:
    found, skipped = box_findings(setup_of(box, profile, platform))
    return [*not_checked(skipped), *found]


def only(box: Box, profile: Profile, platform: Platform = "cpu") -> Finding:
    """The one finding that there is."""
    (finding,) = check(box, profile, platform)
    return finding


def ids(box: Box, profile: Profile, platform: Platform = "cpu") -> list[str]:
    return [finding.id for finding in check(box, profile, platform)]
