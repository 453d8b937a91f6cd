"""HBM in use on each GPU, and by whom: before a start, so that it fits, and after a stop, so that it came back.

AMD is read from sysfs, NVIDIA asked with `nvidia-smi`: neither needs a vendor's library in this process. Invariants:
nothing sleeping is woken (the counters in sysfs are the driver's own, and `nvidia-smi` is not called while every
NVIDIA GPU is suspended); all amounts are bytes; a GPU is a whole socket, also where a partition mode (CPX and its
like) makes several devices of it, because only the socket has counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from loadgen.errors import TelemetryError, VrampError
from loadgen.server.process.guard_client import NOT_CHECKED
from loadgen.server.process.log import clean_line

_TIMEOUT_S = 5.0
_MIB = 1024**2
_GPU_FIELDS = "--query-gpu=index,uuid,name,memory.used,memory.total"
_APP_FIELDS = "--query-compute-apps=pid,gpu_uuid,used_memory"
_AMD, _NVIDIA = "0x1002", "0x10de"
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel's fixed number; elsewhere the pids that drivers report are not those of our `/proc`."""


@dataclass(frozen=True, slots=True)
class Holder:
    pid: int  # as the driver knows it; inside a container that is the host's number
    name: str  # the kernel's short name, empty where it cannot be seen
    used_bytes: int | None

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name})" if self.name else f"pid {self.pid}"


@dataclass(frozen=True, slots=True)
class GpuMemory:
    id: str  # the same at every look: PCI address (AMD) or UUID (NVIDIA)
    index: int  # as the vendor's runtime numbers sockets if no variable hides any
    name: str
    used_bytes: int
    total_bytes: int
    holders: tuple[Holder, ...] = ()  # the largest first
    devices: int = 1  # more than 1 if a partition mode makes several devices of this GPU


@dataclass(frozen=True, slots=True)
class StillHeld:
    gpu: GpuMemory
    excess_bytes: int
    holders: tuple[Holder, ...]  # those who were not there before, or have more than then

    def __str__(self) -> str:
        names = ", ".join(map(str, self.holders)) or "nobody who can be seen"
        return f"GPU {self.gpu.index} ({self.gpu.name}): {self.excess_bytes / 1024**3:.1f} GiB more, held by {names}"


def read_gpu_memory(
    *,
    sysfs: Path = Path("/sys"),
    proc: Path = Path("/proc"),
    path: str | None = None,
    platform: Literal["rocm", "cuda"] | None = None,
) -> list[GpuMemory]:
    """The memory of each GPU; raises `TelemetryError` with the reason if that of none can be read.

    `path` is where `nvidia-smi` is searched, by default our PATH; `platform` leaves out the other maker's GPUs. May
    take seconds where a driver hangs, at most 6.
    """
    gpus: list[GpuMemory] = []
    reasons: list[str] = []
    if platform != "cuda":
        gpus += _read_amd(sysfs, proc)
        reasons.append(f"no AMD GPU with memory counters in {sysfs / 'class/drm'}")
    if platform != "rocm":
        try:
            gpus += _read_nvidia(sysfs, proc, path)
        except TelemetryError as error:
            reasons.append(str(error))
    if not gpus:
        raise TelemetryError("the memory of no GPU can be read here: " + "; ".join(reasons))
    return gpus


def still_held(before: Sequence[GpuMemory], now: Sequence[GpuMemory], *, tolerance_bytes: int) -> list[StillHeld]:
    """The GPUs that have more in use than `before` and `tolerance_bytes`; one that was not there before had nothing."""
    earlier = {gpu.id: gpu for gpu in before}
    found: list[StillHeld] = []
    for gpu in now:
        old = earlier.get(gpu.id)
        excess_bytes = gpu.used_bytes - (old.used_bytes if old is not None else 0)
        if excess_bytes > tolerance_bytes:
            found.append(StillHeld(gpu, excess_bytes, _grown(old.holders if old is not None else (), gpu.holders)))
    return found


def _grown(before: Iterable[Holder], now: Iterable[Holder]) -> tuple[Holder, ...]:
    had = {holder.pid: holder.used_bytes or 0 for holder in before}
    return tuple(holder for holder in now if holder.pid not in had or (holder.used_bytes or 0) > had[holder.pid])


# AMD


@dataclass(frozen=True, slots=True)
class _Node:
    """A device of the compute driver: a GPU, or a partition of one."""

    number: int
    gpu_id: str
    place: tuple[int, int]
    """Domain, bus and device of its PCI address; the function bits of partitions say which partition it is."""


def _read_amd(sysfs: Path, proc: Path) -> list[GpuMemory]:
    nodes = _kfd_nodes(sysfs)
    held = _kfd_holders(sysfs)
    found: list[tuple[int, GpuMemory]] = []
    for card in _amd_cards(sysfs):
        used, total = _number(card / "mem_info_vram_used"), _number(card / "mem_info_vram_total")
        if used is None or not total:
            continue  # a partition's card has none: its socket's card has them
        address = card.resolve().name
        own = [node for node in nodes if node.place == _place(address)]
        holders = _named(_summed(held, own), proc)
        gpu = GpuMemory(address, 0, _amd_name(card), used, total, holders, max(1, len(own)))
        found.append((own[0].number if own else sys.maxsize, gpu))
    found.sort(key=lambda entry: entry[0])  # runtimes number as the compute driver does, not as the cards are
    return [replace(gpu, index=index) for index, (_, gpu) in enumerate(found)]


def _amd_cards(sysfs: Path) -> list[Path]:
    cards = [card for card in _entries(sysfs / "class/drm") if card.name.removeprefix("card").isdecimal()]
    devices = [card / "device" for card in sorted(cards, key=lambda card: int(card.name.removeprefix("card")))]
    return [device for device in devices if _text(device / "vendor") == _AMD]


def _amd_name(card: Path) -> str:
    product = _text(card / "product_name")
    return product or f"AMD {_text(card / 'device') or 'GPU'}"


def _kfd_nodes(sysfs: Path) -> list[_Node]:
    found: list[_Node] = []
    for folder in _entries(sysfs / "class/kfd/kfd/topology/nodes"):
        gpu_id = _text(folder / "gpu_id")
        if gpu_id in ("", "0") or not folder.name.isdecimal():  # a CPU, or a GPU that this container may not use
            continue
        values = dict(line.split(maxsplit=1) for line in _text(folder / "properties").splitlines() if " " in line)
        location, domain = values.get("location_id", ""), values.get("domain", "0")
        if location.isdecimal() and domain.isdecimal():
            found.append(_Node(int(folder.name), gpu_id, (int(domain), int(location) & 0xFFF8)))
    return sorted(found, key=lambda node: node.number)


def _place(address: str) -> tuple[int, int] | None:
    domain, _, rest = address.partition(":")
    bus, _, device = rest.partition(":")
    try:
        return int(domain, 16), int(bus, 16) << 8 | int(device.partition(".")[0], 16) << 3
    except ValueError:
        return None


def _kfd_holders(sysfs: Path) -> dict[int, dict[str, int]]:
    return {
        int(folder.name): {
            file.name.removeprefix("vram_"): _number(file) or 0
            for file in _entries(folder)
            if file.name.startswith("vram_")
        }
        for folder in _entries(sysfs / "class/kfd/kfd/proc")
        if folder.name.isdecimal()
    }


def _summed(held: Mapping[int, Mapping[str, int]], nodes: Sequence[_Node]) -> list[tuple[int, int | None]]:
    sums = ((pid, sum(by_gpu.get(node.gpu_id, 0) for node in nodes)) for pid, by_gpu in held.items())
    return [(pid, used_bytes) for pid, used_bytes in sums if used_bytes]


# NVIDIA


def _read_nvidia(sysfs: Path, proc: Path, path: str | None) -> list[GpuMemory]:
    if _all_suspended(sysfs):
        raise TelemetryError("the NVIDIA GPUs are suspended, and asking would wake them")
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        raise TelemetryError("nvidia-smi is not on PATH")
    listed, apps = _ask(program)
    gpus, held = nvidia_gpus(listed), nvidia_holders(apps)
    if not gpus:
        raise TelemetryError(f"{program} lists no GPU's memory: {_first_line(listed)}")
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
        for device in _entries(sysfs / "bus/pci/devices")
        if _text(device / "vendor") == _NVIDIA and _text(device / "class").startswith("0x03")
    ]
    return bool(devices) and all(_text(device / "power/runtime_status") == "suspended" for device in devices)


def _ask(program: str) -> tuple[str, str]:
    deadline = time.monotonic() + _TIMEOUT_S
    running: list[subprocess.Popen[bytes]] = []
    try:
        running += (_started(program, fields) for fields in (_GPU_FIELDS, _APP_FIELDS))
        listed, apps = (_answer(process, deadline) for process in running)
        return listed, apps
    except subprocess.TimeoutExpired:
        raise TelemetryError(f"{program} did not answer within {_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise TelemetryError(f"{program} cannot be run: {error.strerror}") from None
    finally:
        for process in running:
            _end(process)


def _started(program: str, fields: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [program, fields, "--format=csv,noheader,nounits"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _answer(process: subprocess.Popen[bytes], deadline: float) -> str:
    output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    return output.decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        # Not for ever: what hangs in the driver of a broken GPU cannot be killed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    if process.stdout is not None:
        process.stdout.close()


def _first_line(text: str) -> str:
    lines = [clean_line(line.encode()).strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "it says nothing"


# Both


def _named(held: Iterable[tuple[int, int | None]], proc: Path) -> tuple[Holder, ...]:
    ours = _is_initial_namespace(proc)
    holders = [Holder(pid, _comm(proc, pid) if ours else "", used_bytes) for pid, used_bytes in held]
    return tuple(sorted(holders, key=lambda holder: (-(holder.used_bytes or 0), holder.pid)))


def _is_initial_namespace(proc: Path) -> bool:
    try:
        return str((proc / "self/ns/pid").readlink()) == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def _comm(proc: Path, pid: int) -> str:
    return clean_line(_text(proc / str(pid) / "comm").encode())


def _decimal(cell: str) -> int | None:
    text = cell.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _number(path: Path) -> int | None:
    return _decimal(_text(path))


def _text(path: Path) -> str:
    """What a file of the kernel says, empty if it is not there, not ours to read, or its device does not answer."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


WAIT_S = 15.0
TOLERANCE_BYTES = 512 * 1024**2  # what a driver may keep for itself, and small neighbours may take meanwhile
_POLL_S = 0.5

HeldSince = Callable[[], str]
"""Who holds memory beyond the level at which it was made, in words; "" if nobody does. Raises `VrampError`."""
NoteLevel = Callable[[], HeldSince]
"""Notes the level at which the memory is now. Raises `VrampError` if it cannot be read; both may block."""


def gpu_level(read: Callable[[], list[GpuMemory]] = read_gpu_memory) -> HeldSince:
    """Note the level of all GPUs; several servers that start together share what one call returned."""
    before = read()
    return lambda: "; ".join(str(gpu) for gpu in still_held(before, read(), tolerance_bytes=TOLERANCE_BYTES))


async def level_now(note: NoteLevel = gpu_level) -> HeldSince | str:
    """The level before a start; or in words why it is not known."""
    try:
        return await asyncio.to_thread(note)
    except VrampError as error:
        return f"{NOT_CHECKED}: {error}"


async def wait_back(held: HeldSince | str, hurried: asyncio.Event) -> str:
    """Wait until it is back at that level, at most `WAIT_S` and not once `hurried`; says in words how it ended."""
    if isinstance(held, str):
        return held
    began = time.monotonic()
    try:
        while holders := await asyncio.to_thread(held):
            elapsed_s = time.monotonic() - began
            if hurried.is_set() or elapsed_s >= WAIT_S:
                return f"{elapsed_s:.0f} s after the end of the processes still held: {holders}"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hurried.wait(), _POLL_S)
    except VrampError as error:
        return f"{NOT_CHECKED}: {error}"
    return "back at its level before the start"
