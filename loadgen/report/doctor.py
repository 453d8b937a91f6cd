"""What `vramp doctor` found, for a person and for a script.

A box has up to 64 devices that say much the same: each quantity is one line, with its lowest and its highest value, and
devices are named where they differ. The JSON has each of them apart.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from loadgen.format import GIB, counted, fixed, gib
from loadgen.metrics.samples import DeviceFile, Examination, GpuExam, GpuProcess, GpuStatic, HostExam, Tried, UnitCheck

_WIDTH = 100
_COLUMN = 16
_MOST_PROCESSES = 5
_COUNTED = (
    "energy_j",
    "pcie_replays",
    "link_read_bytes",
    "link_write_bytes",
    "links_up",
    "ecc_correctable",
    "ecc_uncorrectable",
)
_UNITS = {"bytes": (GIB, "GiB"), "bytes_per_s": (1e6, "MB/s"), "percent": (1, "%"), "mhz": (1, "MHz")}


def doctor_json(found: Examination) -> str:
    """One JSON object; a field of a sample that is absent is null, with its reason in `missing`."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1).decode()


def doctor_text(found: Examination) -> str:
    """Paragraphs: the box, each candidate, the host, and what it comes to."""
    paragraphs = [_box(found), *(_candidate(each) for each in found.tried), _host(found.host), verdict(found)]
    return "\n\n".join(paragraphs)


def verdict(found: Examination) -> str:
    """What it comes to, a line for each vendor."""
    if found.nothing:
        return _filled(f"GPUs: {found.nothing}")
    lines = []
    for vendor in dict.fromkeys(each.vendor for each in found.tried):
        best = next((each for each in found.tried if each.vendor == vendor and each.works), None)
        lines.append(f"{vendor}: {_measured(best)}")
    return "\n".join(lines)


def _measured(best: Tried | None) -> str:
    if best is None:
        return "nothing works"
    doubted = sum(not check.plausible for exam in best.gpus for check in exam.checks)
    doubt = f", {doubted} values that cannot be true" if doubted else ""
    return f"{counted(len(best.gpus), 'GPU')} measured with {best.name}{doubt}"


def _box(found: Examination) -> str:
    told = [f"{name} {version}" for name, version in found.versions.items() if version is not None]
    absent = [name for name, version in found.versions.items() if version is None]
    lines = [_entry("versions", ", ".join(told))]
    lines += [_entry("not here", ", ".join(absent))] if absent else []
    lines += [_entry("user", f"{found.user}, groups {', '.join(found.groups)}")]
    lines += [_entry("devices" if place == 0 else "", text) for place, text in enumerate(_devices(found.devices))]
    return "\n".join(lines)


def _devices(devices: Sequence[DeviceFile]) -> list[str]:
    if not devices:
        return ["no file of a GPU"]
    return [_device(each) for each in devices]


def _device(device: DeviceFile) -> str:
    words = {"usable": "usable", "denied": "this user may not use it", "absent": "not there"}[device.state]
    parts = [f"{device.path}: {words}", device.owner, f"fix: {device.fix}" if device.fix else ""]
    return "; ".join(filter(None, parts))


def _candidate(tried: Tried) -> str:
    told = _pairs(tried.meta)
    lines = [_filled(f"{tried.vendor}: {tried.name}: {_outcome(tried)}")]
    lines += [_entry("why", tried.why)] if tried.why else []
    lines += [_entry("told", told)] if told else []
    lines += [_entry("printed" if place == 0 else "", text) for place, text in enumerate(tried.printed)]
    if tried.gpus:
        lines += [*_gpu_lines(tried.gpus), *_values(tried.gpus), *_processes(tried.gpus), *_missing(tried.gpus)]
    return "\n".join(lines)


def _outcome(tried: Tried) -> str:
    if tried.failure is not None:
        return f"fails: {tried.failure}"
    took = f", first look after {tried.first_look_ms:.0f} ms" if tried.first_look_ms is not None else ""
    return f"works{took}"


def _pairs(meta: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in meta.items() if value is not None)


def _gpu_lines(exams: Sequence[GpuExam]) -> Iterator[str]:
    by_socket: dict[str, list[GpuStatic]] = {}
    for exam in exams:
        by_socket.setdefault(exam.gpu.socket or str(exam.gpu.index), []).append(exam.gpu)
    for devices in by_socket.values():
        yield _entry(f"GPU {_indices(gpu.index for gpu in devices)}", _identity(devices[0]))


def _identity(gpu: GpuStatic) -> str:
    parts = [gpu.name, gpu.bdf, gpu.arch, gpu.compute_partition, gpu.memory_partition, gpu.virtualization]
    return "  ".join(part for part in parts if part)


def _values(exams: Sequence[GpuExam]) -> Iterator[str]:
    """A line for each quantity that was judged, then those that no range is known of."""
    yield f"  {'value':<30}{'lowest':>12}{'highest':>12}  {'unit':<6}  can be"
    judged: dict[str, list[tuple[int, UnitCheck]]] = {}
    for exam in exams:
        for check in exam.checks:
            judged.setdefault(check.quantity, []).append((exam.gpu.index, check))
    for quantity, checks in judged.items():
        yield _judged(quantity, checks)
    for name in _COUNTED:
        yield from _counted(name, exams)


def _judged(quantity: str, checks: Sequence[tuple[int, UnitCheck]]) -> str:
    values = [check.value for _, check in checks]
    one = checks[0][1]
    low, high = min(check.low for _, check in checks), max(check.high for _, check in checks)
    wrong = [(index, check) for index, check in checks if not check.plausible]
    raw = f", raw {wrong[0][1].raw:g}" if wrong else ""
    mark = f"  CANNOT BE: GPU {_indices(index for index, _ in wrong)}{raw}" if wrong else ""
    return _row(quantity, min(values), max(values), one.unit, f"{_number(low)} to {_number(high)}{mark}")


def _counted(name: str, exams: Sequence[GpuExam]) -> Iterator[str]:
    values = [value for exam in exams if (value := getattr(exam.sample, name)) is not None]
    if values:
        yield _row(name, min(values), max(values), "", "")


def _row(name: str, low: float, high: float, unit: str, note: str) -> str:
    return f"  {name:<30}{_number(low):>12}{_number(high):>12}  {unit:<6}  {note}".rstrip()


def _processes(exams: Sequence[GpuExam]) -> Iterator[str]:
    """A line for each list of processes, with the devices that have it."""
    holders: dict[str, list[int]] = {}
    for exam in exams:
        if exam.sample.processes:
            holders.setdefault(_listed(exam.sample.processes), []).append(exam.gpu.index)
    for listed, indices in holders.items():
        yield _entry(f"on GPU {_indices(indices)}", listed)


def _listed(processes: Sequence[GpuProcess]) -> str:
    more = f", {len(processes) - _MOST_PROCESSES} more" if len(processes) > _MOST_PROCESSES else ""
    return ", ".join(_process(each) for each in processes[:_MOST_PROCESSES]) + more


def _process(process: GpuProcess) -> str:
    held = f" {fixed(gib(process.hbm_bytes), 1)} GiB" if process.hbm_bytes is not None else ""
    return f"{process.name or '?'} ({process.pid}){held}"


def _missing(exams: Sequence[GpuExam]) -> Iterator[str]:
    """Null fields by reason, with the devices if it is not all of them."""
    by_field: dict[tuple[str, str], list[int]] = {}
    for exam in exams:
        for name, reason in exam.missing.items():
            by_field.setdefault((name, reason), []).append(exam.gpu.index)
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (name, reason), devices in by_field.items():
        alike.setdefault((reason, tuple(devices)), []).append(name)
    for place, ((reason, indices), names) in enumerate(alike.items()):
        where = "" if len(indices) == len(exams) else f" (GPU {_indices(indices)})"
        yield _entry("null" if place == 0 else "", f"{', '.join(names)}: {reason}{where}")


def _host(host: HostExam) -> str:
    told = msgspec.to_builtins(host.sample)
    values = [_host_value(name, value) for name, value in told.items() if name != "t_s" and value != {}]
    lines = ["host", _entry("value", ", ".join(values))]
    by_reason: dict[str, list[str]] = {}
    for name, reason in host.missing.items():
        by_reason.setdefault(reason, []).append(name)
    texts = [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]
    lines += [_entry("null" if place == 0 else "", text) for place, text in enumerate(texts)]
    return "\n".join(lines)


def _host_value(name: str, value: float | str) -> str:
    for suffix, (divisor, unit) in _UNITS.items():
        if name.endswith(f"_{suffix}") and not isinstance(value, str):
            return f"{name.removesuffix(f'_{suffix}')} {_number(value / divisor)} {unit}"
    return f"{name} {value if isinstance(value, str) else _number(value)}"


def _indices(indices: Iterable[int]) -> str:
    """0-3, 5 for 0, 1, 2, 3, 5."""
    ranges: list[list[int]] = []
    for index in sorted(indices):
        if ranges and index == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], index]
        else:
            ranges.append([index, index])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _entry(name: str, text: str) -> str:
    head = f"  {name:<{_COLUMN - 2}}"
    indent = " " * _COLUMN
    return textwrap.fill(
        text, _WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.2f}".rstrip("0").rstrip(".")
