"""HBM in use on each GPU, and by whom: before a start, so that it fits, and after a stop, so that it came back.

AMD is read from sysfs, NVIDIA asked with `nvidia-smi`: neither needs a vendor's library in this process. Invariants:
nothing sleeping is woken (the counters in sysfs are the driver's own, and `nvidia-smi` is not called while every
NVIDIA GPU is suspended); all amounts are bytes; a GPU is a whole socket, also where a partition mode (CPX and its
like) makes several devices of it, because only the socket has counters.

The driver may still give back what a process held when that is gone, and the next server would fail for want of memory:
so a stop waits until the memory is back at its level before the start, or says who holds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import pkgutil
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

from loadgen.amd_kernel import amd_cards, compute_nodes, entries, held_bytes, number_in, socket_of, text_in
from loadgen.errors import TelemetryError, VrampError
from loadgen.format import memory
from loadgen.server.process.guard_client import NOT_CHECKED
from loadgen.server.process.log import clean_line
from loadgen.vendors import NVIDIA, VENDORS, Platform

RELEASE_WAIT_S = 15.0
TOLERANCE_BYTES = 512 * 1024**2  # what a driver may keep for itself, and small neighbours may take meanwhile
_RELEASE_POLL_S = 0.5
_TIMEOUT_S = 5.0
_MIB = 1024**2
_QUESTIONS = ("--query-gpu=index,uuid,name,memory.used,memory.total", "--query-compute-apps=pid,gpu_uuid,used_memory")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has memory of a GPU."""

    pid: int  # as the driver knows it; inside a container that is the host's number
    name: str  # the kernel's short name, empty where it cannot be seen
    used_bytes: int | None

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name})" if self.name else f"pid {self.pid}"


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The memory of one GPU at one look."""

    id: str  # the same at every look: PCI address (AMD) or UUID (NVIDIA)
    index: int  # as the vendor's runtime numbers sockets if no variable hides any
    name: str
    used_bytes: int
    total_bytes: int
    holders: tuple[Holder, ...] = ()  # the largest first
    devices: int = 1  # more than 1 if a partition mode makes several devices of this GPU


def read_gpu_memory(
    *, sysfs: Path = Path("/sys"), proc: Path = Path("/proc"), path: str | None = None, platform: Platform | None = None
) -> list[GpuMemory]:
    """The memory of each GPU; raises `TelemetryError` with the reason if that of none can be read.

    `path` is where `nvidia-smi` is searched, by default our PATH; `platform` leaves out the other maker's GPUs. May
    take seconds where a driver hangs, at most 6.
    """
    gpus: list[GpuMemory] = []
    reasons: list[str] = []
    for vendor in VENDORS:
        if platform in (None, vendor.platform):
            try:
                gpus += pkgutil.resolve_name(vendor.memory_reader)(sysfs, proc, path)
            except TelemetryError as error:
                reasons.append(str(error))
    if not gpus:
        raise TelemetryError("the memory of no GPU can be read here: " + "; ".join(reasons))
    return gpus


def still_held(before: Sequence[GpuMemory], now: Sequence[GpuMemory], *, tolerance_bytes: int) -> list[str]:
    """In words, the GPUs that have more in use than `before` and `tolerance_bytes`, and who has more than then.

    A GPU that was not there before had nothing.
    """
    earlier = {gpu.id: gpu for gpu in before}
    found: list[str] = []
    for gpu in now:
        old = earlier.get(gpu.id) or replace(gpu, used_bytes=0, holders=())
        had = {holder.pid: holder.used_bytes or 0 for holder in old.holders}
        grown = [str(one) for one in gpu.holders if one.pid not in had or (one.used_bytes or 0) > had[one.pid]]
        excess_bytes = gpu.used_bytes - old.used_bytes
        if excess_bytes > tolerance_bytes:
            names = ", ".join(grown) or "nobody who can be seen"
            found.append(f"GPU {gpu.index} ({gpu.name}): {memory(excess_bytes)} more, held by {names}")
    return found


def read_amd(sysfs: Path, proc: Path, _path: str | None) -> list[GpuMemory]:
    nodes = compute_nodes(sysfs)
    held = held_bytes(sysfs) or {}
    found: list[tuple[int, GpuMemory]] = []
    for card in amd_cards(sysfs):
        used, total = number_in(card / "mem_info_vram_used"), number_in(card / "mem_info_vram_total")
        if used is None or not total:
            continue  # a partition's card has none: its socket's card has them
        address = card.resolve().name
        own = [node for node in nodes if node.socket == socket_of(address)]
        sums = [(pid, sum(by_gpu.get(node.gpu_id) or 0 for node in own)) for pid, by_gpu in held.items()]
        holders = _named([(pid, used_bytes) for pid, used_bytes in sums if used_bytes], proc)
        name = text_in(card / "product_name") or f"AMD {text_in(card / 'device') or 'GPU'}"
        gpu = GpuMemory(address, 0, name, used, total, holders, max(1, len(own)))
        found.append((own[0].number if own else sys.maxsize, gpu))
    if not found:
        raise TelemetryError(f"no AMD GPU with memory counters in {sysfs / 'class/drm'}")
    found.sort(key=lambda entry: entry[0])  # runtimes number as the compute driver does, not as the cards are
    return [replace(gpu, index=index) for index, (_, gpu) in enumerate(found)]


def read_nvidia(sysfs: Path, proc: Path, path: str | None) -> list[GpuMemory]:
    if _all_suspended(sysfs):
        raise TelemetryError("the NVIDIA GPUs are suspended, and asking would wake them")
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        raise TelemetryError("nvidia-smi is not on PATH")
    listed, apps = _ask(program)
    gpus, held = nvidia_gpus(listed), nvidia_holders(apps)
    if not gpus:
        said = next((clean_line(line.encode()).strip() for line in listed.splitlines() if line.strip()), "")
        raise TelemetryError(f"{program} lists no GPU's memory: {said or 'it says nothing'}")
    return [replace(gpu, holders=_named(held.get(gpu.id, []), proc)) for gpu in gpus]


def nvidia_gpus(text: str) -> list[GpuMemory]:
    """The GPUs of `nvidia-smi`'s answer, without those whose memory it does not say (`[N/A]`)."""
    found: list[GpuMemory] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < 5:
            continue
        index, used, total = _decimal(cells[0]), _decimal(cells[-2]), _decimal(cells[-1])
        if index is not None and used is not None and total:
            name = clean_line(", ".join(cells[2:-2]).encode())
            found.append(GpuMemory(cells[1], index, name, used * _MIB, total * _MIB))
    return found


def nvidia_holders(text: str) -> dict[str, list[tuple[int, int | None]]]:
    """Pids and their bytes, None where it does not say, by the UUID of the GPU."""
    found: dict[str, list[tuple[int, int | None]]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        pid = _decimal(cells[0])
        if len(cells) == 3 and pid is not None:
            used = _decimal(cells[2])
            found.setdefault(cells[1], []).append((pid, None if used is None else used * _MIB))
    return found


def _all_suspended(sysfs: Path) -> bool:
    devices = [
        device
        for device in entries(sysfs / "bus/pci/devices")
        if text_in(device / "vendor") == NVIDIA.pci_id and text_in(device / "class").startswith("0x03")
    ]
    return bool(devices) and all(text_in(device / "power/runtime_status") == "suspended" for device in devices)


def _ask(program: str) -> list[str]:
    """The answers to both questions, asked at the same time."""
    deadline = time.monotonic() + _TIMEOUT_S
    running: list[subprocess.Popen[bytes]] = []
    try:
        for question in _QUESTIONS:
            command = [program, question, "--format=csv,noheader,nounits"]
            running.append(subprocess.Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT))
        answers = [process.communicate(timeout=max(0.0, deadline - time.monotonic()))[0] for process in running]
        return [answer.decode("utf-8", "replace") for answer in answers]
    except subprocess.TimeoutExpired:
        raise TelemetryError(f"{program} did not answer within {_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise TelemetryError(f"{program} cannot be run: {error.strerror}") from None
    finally:
        for process in running:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        # Not for ever: what hangs in the driver of a broken GPU cannot be killed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    if process.stdout is not None:
        process.stdout.close()


def _named(held: Iterable[tuple[int, int | None]], proc: Path) -> tuple[Holder, ...]:
    try:
        # The kernel's fixed number; elsewhere the pids that drivers report are not those of our `/proc`.
        ours = str((proc / "self/ns/pid").readlink()) == "pid:[4026531836]"
    except OSError:
        ours = False
    largest_first = sorted(held, key=lambda entry: (-(entry[1] or 0), entry[0]))
    names = (clean_line(text_in(proc / str(pid) / "comm").encode()) if ours else "" for pid, _ in largest_first)
    return tuple(Holder(pid, name, used) for (pid, used), name in zip(largest_first, names, strict=True))


def _decimal(cell: str) -> int | None:
    return int(cell) if cell.isascii() and cell.isdecimal() and len(cell) < 20 else None


HeldSince = Callable[[], str]
"""Who holds memory beyond the level at which it was made, in words; "" if nobody does. It may block, and raises
`VrampError` if that cannot be read."""


def gpu_level(read: Callable[[], list[GpuMemory]] = read_gpu_memory) -> HeldSince:
    """Note the level of all GPUs; several servers that start together share what one call returned."""
    before = read()
    return lambda: "; ".join(still_held(before, read(), tolerance_bytes=TOLERANCE_BYTES))


async def level_now(note: Callable[[], HeldSince] = gpu_level) -> HeldSince | str:
    """The level before a start; or in words why it is not known."""
    try:
        return await asyncio.to_thread(note)
    except VrampError as error:
        return f"{NOT_CHECKED}: {error}"


async def wait_back(held: HeldSince | str, hurried: asyncio.Event) -> str:
    """Wait until it is back at that level, at most `RELEASE_WAIT_S` and not once `hurried`; says how it ended."""
    if isinstance(held, str):
        return held
    began = time.monotonic()
    try:
        while holders := await asyncio.to_thread(held):
            elapsed_s = time.monotonic() - began
            if hurried.is_set() or elapsed_s >= RELEASE_WAIT_S:
                return f"{elapsed_s:.0f} s after the end of the processes still held: {holders}"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hurried.wait(), _RELEASE_POLL_S)
    except VrampError as error:
        return f"{NOT_CHECKED}: {error}"
    return "back at its level before the start"
