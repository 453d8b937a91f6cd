"""Every way to measure the GPUs of this box, tried in earnest: opened, watched for some seconds, judged.

Each candidate runs as it would in a run, in a child process of its own, one after the other. Invariants: each has 5 s
to open and as long for each look, so that the whole is bounded whatever a library does; nothing is left running.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.errors import TelemetryError
from loadgen.format import harmless
from loadgen.metrics.samples import Examination, GpuExam, GpuSample, GpuStatic, HostExam, HostSample, Tried, carried
from loadgen.telemetry.access import device_files, groups, user_words, versions
from loadgen.telemetry.capture import Candidate, Header, Part
from loadgen.telemetry.host import HostSampler
from loadgen.telemetry.options import BackendOption, backend_options
from loadgen.telemetry.process import Child, start_child
from loadgen.telemetry.sample import Opened, Order, Refused, Sampled, TelemetryLine
from loadgen.telemetry.units import unit_checks
from loadgen.vendors import VENDORS, TelemetryMode, VendorName

NOTHING = (
    f"no sign of a GPU of {' or '.join(vendor.label for vendor in VENDORS)}: no card in /sys/class/drm, no device "
    "file, driver or library; --telemetry NAME tries one all the same"
)
_HOST_S = 0.3
_PRINTED_LINES = 5
_PRINTED_BYTES = 16384
_VARIABLES = (*(prefix for vendor in VENDORS for prefix in vendor.variables), "VRAMP_")
_VARIABLE_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")


@dataclass(frozen=True, slots=True)
class Pace:
    """How long is looked, and how long is waited."""

    watch_s: float = 3.0  # for the first of each vendor that works; the others are looked at once
    interval_s: float = 0.5
    open_s: float = 5.0
    grace_s: float = 1.0


DUMP_PACE = Pace(watch_s=10.0, interval_s=1.0)  # for a capture: the beat of a run


@dataclass(slots=True)
class BackendTrial:
    """One candidate, and what it told until it was enough or failed."""

    vendor: VendorName
    attempt: BackendOption
    opened: Opened | None = None
    looks: list[Sampled] = field(default_factory=list)
    first_look_ms: float | None = None
    failure: str | None = None
    printed: tuple[str, ...] = ()


async def visit_all(
    attempts: Mapping[VendorName, list[BackendOption]],
    *,
    folder: Path,
    pace: Pace = Pace(),
) -> list[BackendTrial]:
    """Try every attempt; what they print goes to files in `folder`."""
    visits: list[BackendTrial] = []
    for vendor, each in attempts.items():
        works = False
        for attempt in each:
            watch_s = 0.0 if works else pace.watch_s
            visit = BackendTrial(vendor, attempt)
            visits.append(visit)
            await _visit(visit, folder / f"{len(visits)}.log", pace, watch_s)
            works = works or visit.failure is None
    return visits


async def examine(mode: TelemetryMode, *, folder: Path, pace: Pace = Pace()) -> tuple[Examination, list[BackendTrial]]:
    """Everything about this box, and the visits behind it."""
    visits = await visit_all(backend_options(mode), folder=folder, pace=pace)
    found = Examination(
        versions=versions(),
        user=user_words(),
        groups=groups(),
        devices=device_files(),
        nothing="" if visits else NOTHING,
        tried=tuple(tried(visit) for visit in visits),
        host=await examine_host(),
    )
    return found, visits


async def examine_host() -> HostExam:
    sampler = HostSampler()
    sampler.sample()
    await asyncio.sleep(_HOST_S)
    sample = sampler.sample()
    return HostExam(sample, {name: _host_reason(name) for name in _nulls(sample)})


def tried(visit: BackendTrial) -> Tried:
    return Tried(
        vendor=visit.vendor,
        name=visit.attempt.name,
        why=visit.attempt.why,
        failure=visit.failure,
        first_look_ms=visit.first_look_ms,
        meta={} if visit.opened is None else visit.opened.meta,
        printed=visit.printed,
        gpus=_gpus(visit),
    )


def header_of(found: Examination, environ: Mapping[str, str], captured_at: str) -> Header:
    """The header of a capture; `environ` comes without secrets, and of it only what steers the libraries is kept."""
    kept = {name: value for name, value in sorted(environ.items()) if _steers(name)}
    return Header(
        captured_at=captured_at,
        versions=found.versions,
        environment=kept,
        groups=found.groups,
        devices=found.devices,
    )


def part_of(visit: BackendTrial) -> Part:
    """A visit as a capture has it."""
    candidate = Candidate(visit.vendor, visit.attempt.name, visit.attempt.why, visit.failure, visit.printed)
    return Part(candidate, visit.opened, visit.looks)


def _steers(name: str) -> bool:
    return name.startswith(_VARIABLES) or name in _VARIABLE_NAMES


async def _visit(visit: BackendTrial, log_path: Path, pace: Pace, watch_s: float) -> None:
    began_s = time.monotonic()
    try:
        child = await _start(visit.attempt, log_path, pace)
        try:
            await _listen(visit, child, began_s, pace, watch_s)
        finally:
            await child.end(grace_s=pace.grace_s)
    except TelemetryError as error:
        visit.failure = harmless(str(error))
    visit.printed = _printed(log_path)


async def _start(attempt: BackendOption, log_path: Path, pace: Pace) -> Child:
    options = ("--backend", attempt.backend, "--interval-s", str(pace.interval_s), *attempt.arguments)
    return await start_child([*attempt.program, *options], attempt.env, log_path)


async def _listen(visit: BackendTrial, child: Child, began_s: float, pace: Pace, watch_s: float) -> None:
    visit.opened = _opened(await child.line(within_s=pace.open_s))
    child.tell(Order(processes=True))
    while True:
        look = _look(await child.line(within_s=pace.open_s))
        if visit.first_look_ms is None:
            visit.first_look_ms = (time.monotonic() - began_s) * 1000
        visit.looks.append(look)
        if look.t_s - visit.looks[0].t_s >= watch_s:
            return


def _opened(line: TelemetryLine) -> Opened:
    match line:
        case Opened():
            return line
        case Refused(reason=reason):
            raise TelemetryError(reason)
        case Sampled():
            raise TelemetryError("it sent a sample before it said what it samples")


def _look(line: TelemetryLine) -> Sampled:
    match line:
        case Sampled():
            return line
        case Refused(reason=reason):
            raise TelemetryError(reason)
        case Opened():
            raise TelemetryError("it opened twice")


def _printed(log_path: Path) -> tuple[str, ...]:
    try:
        text = log_path.read_bytes()[-_PRINTED_BYTES:].decode("utf-8", "replace")
    except FileNotFoundError:  # it was never started
        return ()
    lines = [harmless(line).strip() for line in text.split("\n") if line.strip()]
    return tuple(lines[-_PRINTED_LINES:])


def _gpus(visit: BackendTrial) -> tuple[GpuExam, ...]:
    if visit.opened is None:
        return ()
    exams = (_exam(gpu, visit, visit.opened.backend) for gpu in visit.opened.gpus)
    return tuple(exam for exam in exams if exam is not None)


def _exam(gpu: GpuStatic, visit: BackendTrial, backend: str) -> GpuExam | None:
    looks = [sample for look in visit.looks for sample in look.gpus if sample.index == gpu.index]
    latest: GpuSample | None = None
    for sample in looks:
        latest = carried(latest, sample)
    if latest is None:
        return None
    reasons = dict.fromkeys((*_nulls(gpu), *_nulls(latest)), f"{backend} does not tell it")
    return GpuExam(gpu, latest, reasons | latest.missing, unit_checks(gpu, latest, looks))


def _nulls(told: GpuStatic | GpuSample | HostSample) -> list[str]:
    return [name for name in told.__struct_fields__ if getattr(told, name) is None]


def _host_reason(name: str) -> str:
    if name.startswith("server_"):
        return "no server is watched"
    if name in ("cpu_mhz", "cpu_mhz_min", "governor"):
        return "the kernel does not tell it (no cpufreq; usual in virtual machines)"
    return "the kernel does not tell it"
