"""Tries every way to measure the GPUs of this box: opens it, watches it for some seconds, and checks the figures.

Each option runs as in a run, in its own child process, one after the other. Its figures are compared with what today's
hardware can do, and energy with power: a wrong unit is off by powers of ten, so the ranges are wide. Invariants: each
option has as long to open, and for each sample, as in a run, so that the total time is bounded whatever a library does;
nothing is left running; a missing value is not checked.
"""

from __future__ import annotations

import asyncio
import grp
import os
import platform
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import msgspec
import numpy as np

from loadgen.build import version_words
from loadgen.errors import TelemetryError
from loadgen.format import harmless, user_name
from loadgen.metrics.energy import increase, integral
from loadgen.schema.samples import (
    DeviceFile,
    Examination,
    GpuExam,
    GpuSample,
    GpuStatic,
    HostExam,
    HostSample,
    Tried,
    UnitCheck,
    carried,
)
from loadgen.system import text_in
from loadgen.telemetry.amd.kernel import rocm_version
from loadgen.telemetry.backends import BackendOption, backend_options, has_sign, package_version
from loadgen.telemetry.capture import Candidate, CapturedPart, Header
from loadgen.telemetry.host import SETTINGS, HostSampler, host_settings
from loadgen.telemetry.process import OPEN_S, last_lines, start_child
from loadgen.vendors import VENDORS, TelemetryMode, Vendor

NOTHING = (
    f"no sign of a GPU of {' or '.join(vendor.label for vendor in VENDORS)}: no card in /sys/class/drm, no device "
    "file, driver or library; --telemetry NAME tries one anyway"
)
_HOST_S = 0.3
_PRINTED_LINES = 5
_VARIABLES = (*(prefix for vendor in VENDORS for prefix in vendor.variables), "VRAMP_")
_VARIABLE_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")
_GIB = 1024.0**3
_ENERGY_WITHIN = 0.25
"""Sensors average over up to a second, which is much of the time watched; a wrong unit is off by far more."""
Describe = Callable[[GpuSample], GpuSample]
_MIN_S = 1.0
_MAX_GAP_S = 5.0


_Range = tuple[float, float, str, float]
"""The least and the most that is plausible, the unit, and what a raw value is divided by to be in it."""
_PERCENT: _Range = (0, 100, "%", 1.0)
_RANGES: dict[str, _Range] = {
    "hbm_total_bytes": (1, 1024, "GiB", _GIB),
    **dict.fromkeys(("gfx_percent", "memory_percent", "xcp_percent", "sm_percent", "dram_percent"), _PERCENT),
    **dict.fromkeys(("power_w", "power_cap_w", "power_cap_default_w"), (10, 2000, "W", 1.0)),
    **dict.fromkeys(("temperature_hotspot_c", "temperature_memory_c"), (5, 120, "C", 1.0)),
    **dict.fromkeys(("gfx_clock_mhz", "gfx_clock_max_mhz"), (50, 5000, "MHz", 1.0)),
    # For GDDR, the effective clock is reported.
    **dict.fromkeys(("memory_clock_mhz", "memory_clock_max_mhz"), (50, 20000, "MHz", 1.0)),
    **dict.fromkeys(("pcie_width", "pcie_width_max"), (1, 32, "lanes", 1.0)),
    **dict.fromkeys(("pcie_speed_gts", "pcie_speed_max_gts"), (2.5, 128, "GT/s", 1.0)),
}


@dataclass(frozen=True, slots=True)
class Pace:
    watch_s: float = 3.0  # for each vendor's first working option; the others are sampled once
    interval_s: float = 0.5
    open_s: float = OPEN_S
    grace_s: float = 1.0


DUMP_PACE = Pace(watch_s=10.0, interval_s=1.0)  # for a capture: the interval of a run


async def try_all(
    options: Mapping[str, list[BackendOption]], *, folder: Path, pace: Pace = Pace()
) -> list[CapturedPart]:
    """Try every option; their logs go to files in `folder`."""
    trials: list[CapturedPart] = []
    for vendor, each in options.items():
        works = False
        for option in each:
            trial = CapturedPart(Candidate(vendor, option.name, option.why))
            trials.append(trial)
            await _try(option, trial, folder / f"{len(trials)}.log", pace, watch_s=0.0 if works else pace.watch_s)
            works = works or trial.candidate.failure is None
    return trials


async def examine(
    mode: TelemetryMode, *, folder: Path, pace: Pace = Pace(), described: Describe = lambda sample: sample
) -> tuple[Examination, list[CapturedPart]]:
    """Everything about this box, and the trials behind it; `described` adds details of processes.

    The trials do not have these details: a capture is sent to other people.
    """
    trials = await try_all(backend_options(mode), folder=folder, pace=pace)
    found = Examination(
        versions=versions(),
        user=user_words(),
        groups=groups(),
        devices=device_files(),
        nothing="" if trials else NOTHING,
        tried=tuple(tried(trial, described) for trial in trials),
        host=await _examine_host(),
    )
    return found, trials


async def _examine_host() -> HostExam:
    sampler = HostSampler()
    sampler.sample()
    await asyncio.sleep(_HOST_S)
    sample = sampler.sample()
    reasons = dict.fromkeys(_nulls(sample), "the kernel does not report it")
    for name in reasons:
        if name.startswith("server_"):
            reasons[name] = "no server is watched"
        elif name in ("cpu_mhz", "cpu_mhz_min", "governor"):
            reasons[name] += " (no cpufreq; usual in virtual machines)"
    settings = host_settings()
    reasons |= {name: "the kernel does not report it" for name in SETTINGS if name not in settings | reasons}
    return HostExam(sample, reasons, settings)


def tried(trial: CapturedPart, described: Describe = lambda sample: sample) -> Tried:
    opened = trial.opened
    candidate = msgspec.structs.asdict(trial.candidate)
    found = Tried(**candidate, first_look_ms=trial.first_sample_ms, meta={}, gpus=())
    if opened is None:
        return found
    exams = []
    for gpu in opened.gpus:
        samples = [sample for sampled in trial.samples for sample in sampled.gpus if sample.index == gpu.index]
        if not samples:
            continue
        latest = reduce(carried, samples)
        reasons = dict.fromkeys((*_nulls(gpu), *_nulls(latest)), f"{opened.backend} does not report it")
        exams.append(GpuExam(gpu, described(latest), reasons | latest.missing, unit_checks(gpu, latest, samples)))
    return msgspec.structs.replace(found, meta=opened.meta, gpus=tuple(exams))


def capture_header(found: Examination, environ: Mapping[str, str], captured_at: str) -> Header:
    """The header of a capture; of `environ`, only variables that affect the libraries are kept."""
    kept = {
        name: value for name, value in sorted(environ.items()) if name.startswith(_VARIABLES) or name in _VARIABLE_NAMES
    }
    return Header(
        captured_at=captured_at, versions=found.versions, environment=kept, groups=found.groups, devices=found.devices
    )


async def _try(option: BackendOption, trial: CapturedPart, log_path: Path, pace: Pace, *, watch_s: float) -> None:
    began_s = time.monotonic()
    try:
        child = await start_child(option.command(pace.interval_s), option.env, log_path)
        try:
            trial.opened = await child.opened(within_s=pace.open_s)
            child.show_processes(True)
            while not trial.samples or trial.samples[-1].t_s - trial.samples[0].t_s < watch_s:
                trial.samples.append(await child.sampled(within_s=pace.open_s))
                if trial.first_sample_ms is None:
                    trial.first_sample_ms = (time.monotonic() - began_s) * 1000
        finally:
            await child.end(grace_s=pace.grace_s)
    except TelemetryError as error:
        trial.candidate.failure = harmless(str(error))
    trial.candidate.printed = tuple(last_lines(log_path, _PRINTED_LINES))


def _nulls(reported: GpuStatic | GpuSample | HostSample) -> list[str]:
    return [name for name in reported.__struct_fields__ if getattr(reported, name) is None]


def unit_checks(gpu: GpuStatic, sample: GpuSample, samples: Sequence[GpuSample]) -> tuple[UnitCheck, ...]:
    """The checks of one device: `sample` has all its latest values, `samples` those over some seconds."""
    most = gpu.hbm_total_bytes / _GIB if gpu.hbm_total_bytes is not None else 1024
    throttling = (sample.throttle_percent or {}).items()
    found = [
        *((name, getattr(gpu, name, None), limits) for name, limits in _RANGES.items()),
        ("hbm_used_bytes", sample.hbm_used_bytes, (0, most, "GiB", _GIB)),
        *((name, getattr(sample, name, None), limits) for name, limits in _RANGES.items()),
        *((f"throttle_percent.{reason}", share, _PERCENT) for reason, share in throttling),
        *_energy(samples),
    ]
    checks: list[UnitCheck] = []
    for name, raw, (low, high, unit, divisor) in found:
        if raw is not None:
            value = raw / divisor
            checks.append(UnitCheck(name, raw, value, unit, low, high, plausible=low <= value <= high))
    return tuple(checks)


def _energy(samples: Sequence[GpuSample]) -> Iterator[tuple[str, float, _Range]]:
    """The growth of the energy counter over the samples, against the power in between."""
    times_s = np.array([sample.t_s for sample in samples])
    # None becomes NaN.
    joules = np.array([sample.energy_j for sample in samples], dtype=np.float64)
    watts = np.array([sample.power_w for sample in samples], dtype=np.float64)
    energy_times_s, power_times_s = times_s[~np.isnan(joules)], times_s[~np.isnan(watts)]
    if not len(energy_times_s) or not len(power_times_s):
        return
    window_s = max(energy_times_s[0], power_times_s[0]), min(energy_times_s[-1], power_times_s[-1])
    counter = increase(times_s, joules, *window_s)
    power = integral(times_s, watts, *window_s, longest_gap_s=_MAX_GAP_S)
    if min(counter.covered_s, power.covered_s) >= _MIN_S:
        around = (power.amount * (1 - _ENERGY_WITHIN), power.amount * (1 + _ENERGY_WITHIN), "J", 1.0)
        yield "energy_j against power", counter.amount, around


def versions(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """The versions of vramp, Python, the system, packages, drivers and ROCm; None for what is missing."""
    system = matched(root / "etc/os-release", '(?m)^PRETTY_NAME="?[^"\n]+') or ""
    packages = (*(name for vendor in VENDORS for name in vendor.packages), "psutil")
    return {
        "vramp": version_words(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "system": system.partition("=")[2].strip('"') or None,
        **{name: package_version(name) for name in packages},
        **{
            f"{vendor.module} driver": matched(root / vendor.driver_version[0], vendor.driver_version[1])
            for vendor in VENDORS
        },
        "rocm": rocm_version(Path(environ.get("ROCM_PATH") or root / "opt/rocm")) or None,
    }


def user_words() -> str:
    return f"{user_name(os.geteuid())} (uid {os.geteuid()})"


def groups() -> tuple[str, ...]:
    return tuple(sorted(_group_name(number) for number in {os.getegid(), *os.getgroups()}))


def device_files(root: Path = Path("/")) -> tuple[DeviceFile, ...]:
    return tuple(found for vendor in VENDORS if has_sign(vendor, root=root) for found in _device_files(vendor, root))


def _device_files(vendor: Vendor, root: Path) -> Iterator[DeviceFile]:
    dev = root / "dev"
    patterns = (*vendor.control_files, *vendor.device_files)
    for pattern in [vendor.windows_file] if vendor.on_windows(dev) else patterns:
        paths = sorted(dev.glob(pattern))
        if not paths:
            fix = f"sudo modprobe {vendor.module}; in a container, pass the device in"
            yield DeviceFile(f"/dev/{pattern}", "absent", fix=fix)
        for path in paths:
            usable = os.access(path, os.R_OK | os.W_OK)
            name = f"/{path.relative_to(root)}"
            try:
                status = path.stat()
                owner = f"{stat.filemode(status.st_mode)} {user_name(status.st_uid)}:{_group_name(status.st_gid)}"
            except OSError as error:
                owner = error.strerror or ""
            yield DeviceFile(name, "usable" if usable else "denied", owner, "" if usable else vendor.denied_fix)


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def matched(file: Path, pattern: str) -> str | None:
    """What of a file's text is first to match; None if nothing does, or there is no such file."""
    match = re.search(pattern, text_in(file))
    return None if match is None else match[0].strip()
