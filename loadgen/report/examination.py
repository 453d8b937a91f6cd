"""The findings of a preflight and the output of `vramp doctor`, as text and as JSON.

Up to 64 devices report much the same, so each quantity is one line with its lowest and highest value, and devices are
named where they differ. The JSON has every device.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from loadgen.format import GIB, counted, fixed, memory, number, ranges, scale
from loadgen.grouping import by_key
from loadgen.parts import part_called
from loadgen.report.tabular import Column, json_text, text_lines
from loadgen.schema.finding import Finding, Severity, by_severity
from loadgen.schema.samples import (
    DeviceFile,
    Examination,
    GpuExam,
    GpuProcess,
    HostExam,
    ProbeFigure,
    ProbeResult,
    Tried,
    UnitCheck,
)

_WIDTH = 100
_COLUMN = 16
_MAX_PROCESSES = 5
_COUNTED = {
    **dict.fromkeys(("pcie_replays", "links_up", "ecc_correctable", "ecc_uncorrectable", "ecc_deferred"), ""),
    **dict.fromkeys(("bad_pages", "rows_remapped", "xids"), ""),
    **{"energy_j": "J", "link_read_bytes": "B", "link_write_bytes": "B", "pcie_bytes_per_s": "B/s"},
}
"""Counters by unit, and other quantities without a plausible range."""
_MAIN = ("gfx_percent", "hbm_used_bytes", "power_w", "temperature_hotspot_c", "gfx_clock_mhz")
"""Without one of these, a verdict on the GPUs is missing."""
_LARGE = 1e6  # from here on, a number is shown as three digits and a letter
_UNITS = {"bytes": (GIB, "GiB"), "bytes_per_s": (1e6, "MB/s"), "percent": (1, "%"), "mhz": (1, "MHz")}
_SEVERITIES: dict[Severity, tuple[str, str]] = {
    "blocks": ("blocks", "block"),
    "warns": ("warning", "warnings"),
    "info": ("note", "notes"),
}


def findings_json(findings: Sequence[Finding]) -> str:
    """A JSON list of objects with id, severity, seen, why, fix and source."""
    return json_text(by_severity(findings))


def findings_text(findings: Sequence[Finding]) -> str:
    """Each finding in a few lines, what was not checked, and a last line with counts."""
    blocks = [_finding(finding) for finding in by_severity(findings) if not finding.skipped]
    rules = by_key((one.reason, one.rule) for finding in findings for one in finding.skipped)
    skipped = [_wrapped(f"not checked: {', '.join(names)} - {reason}", "  ") for reason, names in rules.items()]
    return "\n\n".join(filter(None, [*blocks, "\n".join(skipped), findings_count(findings)]))


def findings_count(findings: Sequence[Finding]) -> str:
    """How many findings there are of each severity, and how many rules were not checked."""
    shown = [finding.severity for finding in findings if not finding.skipped]
    counts = {severity: shown.count(severity) for severity in _SEVERITIES}
    words = [f"{count} {_SEVERITIES[severity][count > 1]}" for severity, count in counts.items() if count]
    skipped = sum(len(finding.skipped) for finding in findings)
    return ", ".join([*(words or ["nothing found"]), *([f"{skipped} not checked"] if skipped else [])])


def _finding(finding: Finding) -> str:
    head = _wrapped(f"{finding.severity:<6} {finding.id}: {finding.seen}", " " * 7)
    details = {"why": finding.why, "fix": finding.fix, "source": finding.source}
    return "\n".join([head, *(_wrapped(f"       {name}: {text}", " " * 9) for name, text in details.items() if text)])


def doctor_text(found: Examination) -> str:
    """Paragraphs: the box, each candidate, the host, what is old, and the conclusion."""
    tried, outdated = map(_candidate, found.tried), map(_finding, by_severity(found.outdated))
    probes = map(_probe, found.probes)
    return "\n\n".join([_box(found), *tried, _host(found.host), *outdated, *probes, verdict(found)])


def _probe(result: ProbeResult) -> str:
    """One tool: its outcome, its figures, and where its output is; of figures of one name the least."""
    least: dict[str, ProbeFigure] = {}
    for figure in result.figures:
        other = least.get(figure.name)
        if other is None or figure.is_bad or (not other.is_bad and (figure.value or 0.0) < (other.value or 0.0)):
            least[figure.name] = figure
    took = f", {result.took_s:.0f} s" if result.took_s else ""
    head = f"probe {result.name}: {result.state}{took}{f': {result.why}' if result.why else ''}"
    kept = [f"output: {result.output_path}"] if result.output_path else []
    return "\n".join(
        [_wrapped(head, "  "), *(f"  {figure.words}" for figure in least.values()), *map("  ".__add__, kept)]
    )


def verdict(found: Examination) -> str:
    """The conclusion, a line per vendor."""
    if found.nothing:
        return _wrapped(f"GPUs: {found.nothing}", "  ")
    lines = []
    for vendor in dict.fromkeys(each.vendor for each in found.tried):
        best = next((each for each in found.tried if each.vendor == vendor and each.works), None)
        if best is None:
            lines.append(f"{vendor}: nothing works")
            continue
        doubted = sum(not check.plausible for exam in best.gpus for check in exam.checks)
        doubt = f", {doubted} impossible values" if doubted else ""
        absent = [name for name in _MAIN if any(getattr(exam.sample, name) is None for exam in best.gpus)]
        without = f", without {', '.join(absent)}" if absent else ""
        lines.append(f"{vendor}: {counted(len(best.gpus), 'GPU')} measured with {best.name}{without}{doubt}")
    return "\n".join(lines)


def _box(found: Examination) -> str:
    reported = [f"{name} {version}" for name, version in found.versions.items() if version is not None]
    absent = [name for name, version in found.versions.items() if version is None]
    return "\n".join(
        [
            *_entries("versions", ", ".join(reported)),
            *_entries("not here", ", ".join(absent)),
            *_entries("user", f"{found.user}, groups {', '.join(found.groups)}"),
            *_entries("devices", *(map(_device, found.devices) if found.devices else ["no file of a GPU"])),
        ]
    )


def _device(device: DeviceFile) -> str:
    words = {"usable": "usable", "denied": "this user may not use it", "absent": "not there"}[device.state]
    parts = [f"{device.path}: {words}", device.owner, f"fix: {device.fix}" if device.fix else ""]
    return "; ".join(filter(None, parts))


def _candidate(tried: Tried) -> str:
    reported = ", ".join(f"{name} {value}" for name, value in tried.meta.items() if value is not None)
    took = f", first look after {tried.first_look_ms:.0f} ms" if tried.first_look_ms is not None else ""
    outcome = f"works{took}" if tried.failure is None else f"fails: {tried.failure}"
    lines = [
        _wrapped(f"{tried.vendor}: {tried.name}: {outcome}", "  "),
        *_entries("why", tried.why),
        *_entries("reported", reported),
        *_entries("printed", *tried.printed),
    ]
    if tried.gpus:
        lines += [*_gpu_lines(tried.gpus), *_rated(tried.gpus), *_firmware(tried.gpus)]
        lines += [*text_lines(_VALUES, list(_values(tried.gpus)))]
        lines += [*_processes(tried.gpus), *_missing(tried.gpus)]
    return "\n".join(lines)


def _gpu_lines(exams: Sequence[GpuExam]) -> Iterator[str]:
    for devices in by_key((exam.gpu.socket or str(exam.gpu.index), exam.gpu) for exam in exams).values():
        gpu = devices[0]
        parts = [gpu.name, gpu.bdf, gpu.arch, gpu.compute_partition, gpu.memory_partition, gpu.virtualization]
        yield from _entries(f"GPU {ranges(each.index for each in devices)}", "  ".join(filter(None, parts)))


def _rated(exams: Sequence[GpuExam]) -> Iterator[str]:
    """The figures of the data sheet; a ? marks those that are from memory or inferred."""
    for part in dict.fromkeys(part_called(exam.gpu.name) for exam in exams):
        if part is not None:
            names = {"clock_mhz": "MHz", "power_w": "W", "hbm_gb_per_s": "GB/s memory", "fabric_gb_per_s": "GB/s links"}
            rated = {name: getattr(part, name) for name in names}
            words = [
                f"{value:g}{'?' if name in part.unsure else ''} {names[name]}" for name, value in rated.items() if value
            ]
            yield from _entries("data sheet", f"{part.word.upper()}: {', '.join(words)}")


def _firmware(exams: Sequence[GpuExam]) -> Iterator[str]:
    """Each distinct set of versions, with the devices that have it."""
    devices = by_key(
        (", ".join(f"{name} {version}" for name, version in gpu.firmware.items()), gpu.index)
        for gpu in (exam.gpu for exam in exams)
        if gpu.firmware
    )
    alike = len(devices) == 1
    texts = [words if alike else f"GPU {ranges(indices)}: {words}" for words, indices in devices.items()]
    yield from _entries("firmware", *texts)


class _Quantity(NamedTuple):
    name: str
    low: float
    high: float
    unit: str = ""
    possible: str = ""


_VALUES: tuple[Column[_Quantity], ...] = (
    Column("  value", lambda one: f"  {one.name}", words=True, width=32),
    Column("lowest", lambda one: _number(one.low), width=12),
    Column("highest", lambda one: _number(one.high), width=12),
    Column("unit", lambda one: one.unit, words=True, width=8),
    Column("can be", lambda one: one.possible, words=True),
)


def _values(exams: Sequence[GpuExam]) -> Iterator[_Quantity]:
    """Quantities with a plausible range, then those without."""
    judged = by_key((check.quantity, (exam.gpu.index, check)) for exam in exams for check in exam.checks)
    yield from map(_judged, judged.values())
    for name, unit in _COUNTED.items():
        values = [value for exam in exams if (value := getattr(exam.sample, name)) is not None]
        if values:
            divisor, scaled = scale(max(values), unit) if unit else (1, "")
            yield _Quantity(name, min(values) / divisor, max(values) / divisor, scaled)


def _judged(checks: Sequence[tuple[int, UnitCheck]]) -> _Quantity:
    values = [check.value for _, check in checks]
    low, high = min(check.low for _, check in checks), max(check.high for _, check in checks)
    wrong = [(index, check) for index, check in checks if not check.plausible]
    raw = f", raw {wrong[0][1].raw:g}" if wrong else ""
    mark = f"  CANNOT BE: GPU {ranges(index for index, _ in wrong)}{raw}" if wrong else ""
    possible = f"{_number(low)} to {_number(high)}{mark}"
    first = checks[0][1]
    return _Quantity(first.quantity, min(values), max(values), first.unit, possible)


def _processes(exams: Sequence[GpuExam]) -> Iterator[str]:
    """Each distinct list of processes, with the devices that have it."""
    holders = by_key((_listed(exam.sample.processes), exam.gpu.index) for exam in exams if exam.sample.processes)
    for listed, indices in holders.items():
        yield from _entries(f"on GPU {ranges(indices)}", *listed)


def _listed(processes: Sequence[GpuProcess]) -> tuple[str, ...]:
    lines = []
    for process in processes[:_MAX_PROCESSES]:
        held = f" {memory(process.hbm_bytes)}" if process.hbm_bytes is not None else ""
        user = f", {process.user}" if process.user else ""
        command = f": {process.command}" if process.command else ""
        lines.append(f"{process.name or '?'} ({process.pid}{user}){held}{command}")
    more = len(processes) - _MAX_PROCESSES
    return (*lines, f"{more} more") if more > 0 else tuple(lines)


def _missing(exams: Sequence[GpuExam]) -> list[str]:
    """Missing fields by reason, with the devices if not all lack them."""
    by_field = by_key((missing, exam.gpu.index) for exam in exams for missing in exam.missing.items())
    alike = by_key(((reason, tuple(devices)), name) for (name, reason), devices in by_field.items())
    texts = []
    for (reason, indices), names in alike.items():
        where = "" if len(indices) == len(exams) else f" (GPU {ranges(indices)})"
        texts.append(f"{', '.join(names)}: {reason}{where}")
    return _entries("null", *texts)


def _host(host: HostExam) -> str:
    reported = msgspec.to_builtins(host.sample)
    values = [_host_value(name, value) for name, value in reported.items() if name != "t_s" and value != {}]
    by_reason = by_key((reason, name) for name, reason in host.missing.items())
    missing = [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]
    settings = ", ".join(f"{name} {value}" for name, value in host.settings.items() if name not in reported)
    shown = {"value": [", ".join(values)], "settings": [settings], "null": missing}
    return "\n".join(["host", *(line for name, texts in shown.items() for line in _entries(name, *texts))])


def _host_value(name: str, value: float | str) -> str:
    for suffix, (divisor, unit) in _UNITS.items():
        if name.endswith(f"_{suffix}") and not isinstance(value, str):
            return f"{name.removesuffix(f'_{suffix}')} {_number(value / divisor)} {unit}"
    return f"{name} {value if isinstance(value, str) else _number(value)}"


def _entries(name: str, *texts: str) -> list[str]:
    """Texts next to a name, which is on the first line; empty ones are left out."""
    return [
        _wrapped(text, " " * _COLUMN, f"  {name if place == 0 else '':<{_COLUMN - 2}}")
        for place, text in enumerate(filter(None, texts))
    ]


def _wrapped(text: str, indent: str, head: str = "") -> str:
    # A command must stay copyable: never break it inside a word.
    return textwrap.fill(
        text, _WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _number(value: float) -> str:
    if abs(value) >= _LARGE:
        return number(value)
    return str(value) if isinstance(value, int) else fixed(value).rstrip("0").rstrip(".")
