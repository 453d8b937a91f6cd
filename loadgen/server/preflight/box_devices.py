"""Checks of what a server takes of the box before it computes: its port, device files, shared memory, the container."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from loadgen.errors import ServerError
from loadgen.metrics.journal import Finding
from loadgen.server.preflight.box_view import GIB, Setup, gib
from loadgen.server.process.executable import find_executable
from loadgen.server.process.instances import devices_each
from loadgen.server.process.ports import require_free_port

_QUEUE_BYTES = 160 * 1024**2  # vLLM's queue between engine and workers: 10 chunks of VLLM_MQ_MAX_CHUNK_BYTES_MB = 16
_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": GIB}
_GROUPS_FIX = "sudo usermod -aG render,video $USER, then log in again"


def port(setup: Setup) -> Iterator[Finding]:
    """Ports that the profile wants and somebody has."""
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
    dev = setup.box.dev
    if setup.server.engine == "vllm" and setup.platform == "rocm":
        kfd = [path for path in [dev / "kfd"] if path.exists()]
        yield from _group("/dev/kfd", kfd, "load the driver: sudo modprobe amdgpu", _GROUPS_FIX)
        nodes = sorted((dev / "dri").glob("renderD*"))
        if kfd:  # the same driver makes both
            yield from _group("/dev/dri/renderD*", nodes, "load the driver: sudo modprobe amdgpu", _GROUPS_FIX)
    if setup.server.engine == "vllm" and setup.platform == "cuda" and not (dev / "dxg").exists():
        cards = sorted(dev.glob("nvidia[0-9]*"))
        yield from _group(
            "/dev/nvidia*", cards, "load the driver: sudo modprobe nvidia", "ls -l /dev/nvidia*; join their group"
        )


def shared_gpus(setup: Setup) -> Iterator[Finding]:
    """Instances that vramp cannot pin, because the profile does not say whose devices it means."""
    if setup.server.instances > 1 and setup.server.platform is None and setup.platform != "cpu":
        yield Finding(
            "instances-share-gpus",
            "blocks",
            f"server.instances = {setup.server.instances}, but server.platform is not set",
            "without it the instances are not pinned to devices of their own, and all of them take the first GPU",
            f'server.platform = "{setup.platform}"',
        )


def _group(name: str, paths: list[Path], absent_fix: str, denied_fix: str) -> Iterator[Finding]:
    if not paths:
        why = "without it the server finds no GPU; in a container, the device was not passed in"
        yield Finding("no-gpu-device", "blocks", f"there is no {name}", why, absent_fix)
        return
    denied = [path.name for path in paths if not os.access(path, os.R_OK | os.W_OK)]
    if denied:
        yield Finding(
            "gpu-device-denied",
            "blocks" if len(denied) == len(paths) else "warns",
            f"this user may not use {', '.join(denied)} ({name})",
            "the server does not see a GPU that it may not open",
            denied_fix,
        )


def container(setup: Setup) -> Iterator[Finding]:
    """What a container is made of: the program that runs it, and the devices that it is given."""
    docker = setup.server.docker
    if docker is None:
        return
    try:
        find_executable(setup.server, docker.executable, key="server.docker.executable")
    except ServerError as error:
        seen, _, fix = str(error).partition("; ")
        yield Finding("no-container-program", "blocks", seen, "it starts the container", fix)
    for device in docker.devices:
        path = device.partition(":")[0]
        if path.startswith("/dev/") and not setup.box.device(path).exists():  # others are names of a device interface
            yield Finding(
                "no-container-device",
                "blocks",
                f"server.docker.devices names {path}, which is not there",
                "no container is started with a device that the box does not have",
                "load its driver, or take it out",
            )


def shared_memory(setup: Setup) -> Iterator[Finding]:
    """The shared memory through which the processes of one server speak with each other."""
    several = devices_each(setup.server.args) > 1
    docker = setup.server.docker
    if docker is None or docker.ipc == "host":
        if several:
            free_bytes = shutil.disk_usage(setup.box.dev / "shm").free
            yield from _little(
                f"{gib(free_bytes)} free in /dev/shm", free_bytes, "sudo mount -o remount,size=16g /dev/shm"
            )
    elif docker.shm_size is not None:
        size_bytes = _size_bytes(docker.shm_size)
        if several and size_bytes is not None:
            yield from _little(f"server.docker.shm_size = {docker.shm_size}", size_bytes, 'shm_size = "16g"')
    elif docker.ipc in (None, "private", "shareable"):
        yield Finding(
            "shared-memory",
            "blocks" if several else "warns",
            "the container has neither ipc nor shm_size, so 64 MiB of shared memory",
            "vLLM's processes pass their messages through shared memory, several devices more than 160 MiB",
            'server.docker.ipc = "host"',
            "vLLM, Using Docker",
        )


def _little(seen: str, size_bytes: int, fix: str) -> Iterator[Finding]:
    if size_bytes < GIB:
        why = "vLLM's processes and the collective library pass messages through it, more than 160 MiB of them"
        yield Finding("shared-memory", "blocks" if size_bytes < _QUEUE_BYTES else "warns", seen, why, fix)


def _size_bytes(text: str) -> int | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([bkmg]?)b?", text.strip().lower())
    return None if match is None else int(float(match[1]) * _UNITS[match[2]])
