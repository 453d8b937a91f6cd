"""NVIDIA's GPUs from `nvidia-smi`, which comes with every driver.

Fields that an older `nvidia-smi` does not know are not queried, and stay unknown.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

from msgspec.structs import replace

from loadgen.errors import TelemetryError
from loadgen.server.gpus.gpu import Gpu, named_holders, with_expected_links
from loadgen.server.process.log import clean_line
from loadgen.system import entries, text_in
from loadgen.vendors import NVIDIA

_TIMEOUT_S = 5.0
_MIB = 1024**2
_FIELDS = (
    *("index", "uuid", "name", "memory.used", "memory.total"),
    *("compute_cap", "power.limit", "power.default_limit", "mig.mode.current", "fabric.state"),  # newer drivers only
)
_CSV = "--format=csv,noheader,nounits"
_HOLDERS = ("--query-compute-apps=pid,gpu_uuid,used_memory", _CSV)
_LINKS = ("nvlink", "--status")
_FABRIC_STATES = ("Not Started", "In Progress", "Completed")  # any other state: the GPU is on no fabric
_UNKNOWN_FIELD = re.compile(r'Field "([\w.]+)" is not a valid field to query')


def read_nvidia(sysfs: Path, proc: Path, path: str | None) -> list[Gpu]:
    if _all_suspended(sysfs):
        raise TelemetryError("the NVIDIA GPUs are suspended, and asking would wake them")
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        raise TelemetryError("nvidia-smi is not on PATH")
    deadline = time.monotonic() + _TIMEOUT_S
    fields = list(_FIELDS)
    listed, apps, nvlinks = _ask(program, [_about(fields), _HOLDERS, _LINKS], deadline)
    while (unknown := _UNKNOWN_FIELD.search(listed)) is not None and unknown[1] in fields:
        fields.remove(unknown[1])
        (listed,) = _ask(program, [_about(fields)], deadline)
    gpus, held, links = parse_gpus(listed, fields), parse_holders(apps), parse_links(nvlinks)
    if not gpus:
        said = next((clean_line(line.encode()).strip() for line in listed.splitlines() if line.strip()), "")
        raise TelemetryError(f"{program} lists no GPU: {said or 'its output is empty'}")
    return with_expected_links(
        [replace(gpu, holders=named_holders(held.get(gpu.id, []), proc), links_up=links.get(gpu.id)) for gpu in gpus]
    )


def parse_gpus(text: str, fields: Sequence[str] = _FIELDS) -> list[Gpu]:
    """The GPUs from the output for these fields, which begin with index, UUID and name; `[N/A]` is unknown."""
    found: list[Gpu] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        after_name = len(cells) - len(fields) + 3  # a name may contain commas
        index = _decimal(cells[0])
        if after_name < 3 or index is None:
            continue
        values = dict(zip(fields[3:], cells[after_name:], strict=True))
        total = _mebibytes(values.get("memory.total", ""))
        capability = re.fullmatch(r"(\d+)\.(\d)", values.get("compute_cap", ""))
        gpu = Gpu(
            id=cells[1],
            index=index,
            name=clean_line(", ".join(cells[2:after_name]).encode()),
            arch=f"sm_{capability[1]}{capability[2]}" if capability is not None else None,
            hbm_bytes=total or None,
            used_bytes=_mebibytes(values.get("memory.used", "")) if total else None,
            compute_partition="MIG" if values.get("mig.mode.current") == "Enabled" else None,
            power_cap_w=_watts(values.get("power.limit", "")),
            power_cap_default_w=_watts(values.get("power.default_limit", "")),
            fabric=fabric if (fabric := values.get("fabric.state")) in _FABRIC_STATES else None,
        )
        found.append(gpu)
    return found


def parse_holders(text: str) -> dict[str, list[tuple[int, int | None]]]:
    """Pids and bytes (None if unknown) by the UUID of the GPU."""
    found: dict[str, list[tuple[int, int | None]]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        pid = _decimal(cells[0])
        if len(cells) == 3 and pid is not None:
            found.setdefault(cells[1], []).append((pid, _mebibytes(cells[2])))
    return found


def parse_links(text: str) -> dict[str, int]:
    """How many NVLinks of each GPU are up, by UUID; without GPUs that have none."""
    found: dict[str, int] = {}
    uuid = ""
    for line in text.splitlines():
        if (gpu := re.match(r"GPU \d+: .*\(UUID: ([\w-]+)\)", line)) is not None:
            uuid = gpu[1]
        elif uuid and (link := re.match(r"\s+Link \d+: (.*)", line)) is not None:
            found[uuid] = found.get(uuid, 0) + link[1].endswith("GB/s")
    return found


def _about(fields: Sequence[str]) -> Sequence[str]:
    return f"--query-gpu={','.join(fields)}", _CSV


def _all_suspended(sysfs: Path) -> bool:
    devices = [
        device
        for device in entries(sysfs / "bus/pci/devices")
        if text_in(device / "vendor") == NVIDIA.pci_id and text_in(device / "class").startswith("0x03")
    ]
    return bool(devices) and all(text_in(device / "power/runtime_status") == "suspended" for device in devices)


def _ask(program: str, questions: Sequence[Sequence[str]], deadline: float) -> list[str]:
    """The outputs of several queries, run at the same time."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for question in questions:
            running.append(subprocess.Popen([program, *question], stdin=DEVNULL, stdout=PIPE, stderr=STDOUT))
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
        # Bounded: a process that hangs in the driver of a broken GPU cannot be killed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    if process.stdout is not None:
        process.stdout.close()


def _mebibytes(cell: str) -> int | None:
    number = _decimal(cell)
    return None if number is None else number * _MIB


def _watts(cell: str) -> float | None:
    return float(cell) if re.fullmatch(r"\d{1,6}(\.\d+)?", cell) else None


def _decimal(cell: str) -> int | None:
    return int(cell) if cell.isascii() and cell.isdecimal() and len(cell) < 20 else None
