"""Checks what a server needs from the box before it computes, and operating system settings.

Ports, device files, shared memory, the container, process limits, and settings that silently cost speed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from loadgen.errors import ServerError
from loadgen.format import GIB, memory
from loadgen.schema.finding import Finding, Severity
from loadgen.server.preflight.facts import Setup, read_setting
from loadgen.server.process.ports import require_free_port
from loadgen.server.vllm.command import find_container_program
from loadgen.server.vllm.flags import devices_each
from loadgen.telemetry.host import is_boosted
from loadgen.vendors import AMD, NVIDIA, Vendor, vendor_of

_QUEUE_BYTES = 160 * 1024**2  # vLLM's queue between engine and workers: 10 chunks of VLLM_MQ_MAX_CHUNK_BYTES_MB = 16
_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": GIB}


def governor(setup: Setup) -> Iterator[Finding]:
    files = (setup.box.sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    found = {file.parent: read_setting(file) for file in files}
    slow = [folder for folder, name in found.items() if name not in (None, "performance")]
    # CPUs that choose their own frequency follow a preference, whatever the governor is called.
    slow = [folder for folder in slow if read_setting(folder / "energy_performance_preference") != "performance"]
    if slow:
        names = ", ".join(sorted({found[folder] or "" for folder in slow}))
        seen = f"{len(slow)} of {len(found)} CPUs have the governor {names}"
        why = (
            "the processor rises to full speed only after load has come: powersave alone has doubled the TTFT that a "
            "client measured, with the engine unchanged"
        )
        fix = "sudo cpupower frequency-set -g performance"
        yield Finding("cpu-governor", "warns", seen, why, fix, "aiperf issue 1424")


def boost(setup: Setup) -> Iterator[Finding]:
    if is_boosted(setup.box.sys) is False:
        seen = "the processor's boost is switched off"
        why = "the processor stays at its nominal frequency: each step of the server's scheduler takes longer"
        fix = "switch it on in the BIOS, or: echo 1 | sudo tee /sys/devices/system/cpu/cpufreq/boost"
        yield Finding("boost-off", "warns", seen, why, fix, "Hyperloom platform_audit")


def clock(setup: Setup) -> Iterator[Finding]:
    if setup.box.clock_synchronised is False:
        why = (
            "times in logs and results cannot be compared with those of other machines, and a daemon that starts "
            "during a run may step the clock, which spoils the streams that it hits"
        )
        fix = "sudo timedatectl set-ntp true, and wait until timedatectl says that it is synchronised"
        yield Finding("clock-unsynchronised", "info", "the kernel's clock is not synchronised", why, fix)


def numa_balancing(setup: Setup) -> Iterator[Finding]:
    value = read_setting(setup.box.proc / "sys/kernel/numa_balancing")
    if value is None or value == "0":
        return
    severity: Severity = "info" if setup.platform == "cpu" else "warns"
    why, source = "the kernel unmaps pages again and again to see who uses them, which stalls the server", ""
    if setup.platform == "rocm":
        why += "; on AMD's GPUs it can make them hang until the balancing is done"
        source = "Serving LLMs on AMD MI300X: Best Practices, case 5"
    fix = "sudo sh -c 'echo 0 > /proc/sys/kernel/numa_balancing'"
    yield Finding("numa-balancing", severity, f"kernel.numa_balancing is {value}", why, fix, source)


def huge_pages(setup: Setup) -> Iterator[Finding]:
    value = read_setting(setup.box.sys / "kernel/mm/transparent_hugepage/enabled")
    if value is not None and "[never]" in value:
        severity: Severity = "warns" if setup.platform == "cpu" else "info"
        seen = "transparent huge pages are switched off"
        why = "programs that ask for large pages do not get them, which costs time at each new page of host memory"
        fix = "sudo sh -c 'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled'"
        yield Finding("huge-pages", severity, seen, why, fix, "AMD ZenDNN user guide (57300): madvise for LLMs")


def port(setup: Setup) -> Iterator[Finding]:
    server = setup.server
    for number in range(server.port, server.port + server.instances) if server.port else ():
        try:
            require_free_port(server.host, number)
        except ServerError as error:
            seen, separator, fix = str(error).rpartition("; ")
            why = "the server could not listen there"
            yield Finding("port-taken", "blocks", seen if separator else fix, why, fix if separator else "")


def gpu_devices(setup: Setup) -> Iterator[Finding]:
    """The device files of the platform, for a server that opens them as this user."""
    dev, vendor = setup.box.dev, vendor_of(setup.platform)
    if vendor is None or vendor.on_windows(dev):
        return
    for pattern in vendor.device_files:
        paths = sorted(dev.glob(pattern))
        yield from _group(f"/dev/{pattern.replace('[0-9]', '')}", paths, vendor)
        if not paths:  # the same driver creates the other files
            return


def shared_gpus(setup: Setup) -> Iterator[Finding]:
    """Instances that vramp cannot pin, because the profile does not name the platform."""
    if setup.server.instances > 1 and setup.server.platform is None and setup.platform != "cpu":
        seen = f"server.instances = {setup.server.instances}, but server.platform is not set"
        why = "without it the instances are not pinned to devices of their own, and all of them take the first GPU"
        yield Finding("instances-share-gpus", "blocks", seen, why, f'server.platform = "{setup.platform}"')


def _group(name: str, paths: list[Path], vendor: Vendor) -> Iterator[Finding]:
    if not paths:
        why = "without it the server finds no GPU; in a container, the device was not passed in"
        fix = f"load the driver: sudo modprobe {vendor.module}"
        yield Finding("no-gpu-device", "blocks", f"there is no {name}", why, fix)
        return
    denied = [path.name for path in paths if not os.access(path, os.R_OK | os.W_OK)]
    if denied:
        severity: Severity = "blocks" if len(denied) == len(paths) else "warns"
        seen = f"this user may not use {', '.join(denied)} ({name})"
        why = "the server does not see a GPU that it may not open"
        yield Finding("gpu-device-denied", severity, seen, why, vendor.denied_fix)


def container(setup: Setup) -> Iterator[Finding]:
    docker = setup.server.docker
    if docker is None:
        return
    try:
        find_container_program(setup.server, docker)
    except ServerError as error:
        seen, _, fix = str(error).partition("; ")
        yield Finding("no-container-program", "blocks", seen, "it starts the container", fix)
    # Anything but a path names a CDI device.
    paths = [device.partition(":")[0] for device in docker.devices if device.startswith("/dev/")]
    gone = [path for path in paths if not (setup.box.dev / path.removeprefix("/dev/")).exists()]
    named = [f"server.docker.devices: there is no {', '.join(gone)}"] if gone else []
    # `--gpus` works with NVIDIA's GPUs, or with AMD's if its runtime is installed (moby pull request 49952).
    runtime = shutil.which("amd-container-runtime", path=setup.box.environ.get("PATH"))
    has_gpus = NVIDIA.computes_here(setup.box.dev) or (runtime is not None and AMD.computes_here(setup.box.dev))
    if docker.gpus is not None and not has_gpus:
        named.append(f"server.docker.gpus = {docker.gpus}: no NVIDIA GPU, nor AMD's with its container toolkit")
    if named:
        why = "no container is started with a device that the box does not have"
        yield Finding("no-container-device", "blocks", "; ".join(named), why, "load the driver, or take it out")


def other_platform(setup: Setup) -> Iterator[Finding]:
    """A profile for other GPUs than those that were named; on the box itself, their device files are missed."""
    wanted = setup.server.platform
    if wanted not in (None, setup.platform):
        seen = f"server.platform = {wanted}, and {setup.gpus[0].name} computes with {setup.platform}"
        why = "this recipe's vLLM and flags are made for other GPUs"
        yield Finding("other-platform", "blocks", seen, why, "name a box for this recipe, or take another recipe")


def shared_memory(setup: Setup) -> Iterator[Finding]:
    docker = setup.server.docker
    if devices_each(setup.server.args) > 1 and (docker is None or docker.ipc == "host"):
        free_bytes = shutil.disk_usage(setup.box.dev / "shm").free
        fix = "sudo mount -o remount,size=16g /dev/shm"
        yield from _little(f"{memory(free_bytes)} free in /dev/shm", free_bytes, fix)


def container_memory(setup: Setup) -> Iterator[Finding]:
    """The shared memory that a container gets of its own."""
    several = devices_each(setup.server.args) > 1
    docker = setup.server.docker
    if docker is None or docker.ipc == "host":
        return
    if docker.shm_size is not None:
        size = re.fullmatch(r"(\d+(?:\.\d+)?)([bkmg]?)b?", docker.shm_size.strip().lower())
        if several and size is not None:
            size_bytes = int(float(size[1]) * _UNITS[size[2]])
            yield from _little(f"server.docker.shm_size = {docker.shm_size}", size_bytes, 'shm_size = "16g"')
    elif docker.ipc in (None, "private", "shareable"):
        severity: Severity = "blocks" if several else "warns"
        seen = "the container has neither ipc nor shm_size, so 64 MiB of shared memory"
        why = "vLLM's processes pass their messages through shared memory, several devices more than 160 MiB"
        yield Finding("shared-memory", severity, seen, why, 'server.docker.ipc = "host"', "vLLM, Using Docker")


def _little(seen: str, size_bytes: int, fix: str) -> Iterator[Finding]:
    if size_bytes < GIB:
        why = "vLLM's processes and the collective library pass messages through it, more than 160 MiB of them"
        yield Finding("shared-memory", "blocks" if size_bytes < _QUEUE_BYTES else "warns", seen, why, fix)
