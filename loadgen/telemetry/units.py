"""Whether what a backend says can be true: each value against what hardware of today can have, energy against power.

A wrong unit is wrong by powers of ten, so the ranges are wide: they are to find microwatts that are taken for watts,
not hot GPUs. Invariants: pure; a value that is not there is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from loadgen.metrics.energy import increase, integral
from loadgen.metrics.samples import GpuSample, GpuStatic, UnitCheck

_GIB = 1024.0**3


class _Range(NamedTuple):
    low: float
    high: float
    unit: str
    divisor: float = 1.0


_PERCENT = _Range(0, 100, "%")
_WATTS = _Range(10, 2000, "W")
_CELSIUS = _Range(5, 120, "C")
_MHZ = _Range(50, 5000, "MHz")
_MEMORY_MHZ = _Range(50, 20000, "MHz")  # GDDR tells its effective clock
_LANES = _Range(1, 32, "lanes")
_GTS = _Range(2.5, 128, "GT/s")

_OF_STATIC = {
    "hbm_total_bytes": _Range(1, 1024, "GiB", _GIB),
    "power_cap_default_w": _WATTS,
    "gfx_clock_max_mhz": _MHZ,
    "memory_clock_max_mhz": _MEMORY_MHZ,
    "pcie_width_max": _LANES,
    "pcie_speed_max_gts": _GTS,
}
_OF_SAMPLE = {
    "gfx_percent": _PERCENT,
    "memory_percent": _PERCENT,
    "power_w": _WATTS,
    "power_cap_w": _WATTS,
    "temperature_hotspot_c": _CELSIUS,
    "temperature_memory_c": _CELSIUS,
    "gfx_clock_mhz": _MHZ,
    "memory_clock_mhz": _MEMORY_MHZ,
    "pcie_width": _LANES,
    "pcie_speed_gts": _GTS,
}
_ENERGY_WITHIN = 0.25
"""Sensors average over up to a second of the few that are looked at; a wrong unit is off by far more."""
_SHORTEST_S = 1.0
_LONGEST_GAP_S = 5.0


def unit_checks(gpu: GpuStatic, sample: GpuSample, looks: Sequence[GpuSample]) -> tuple[UnitCheck, ...]:
    """The checks of one device: `sample` is all that is known of it, `looks` are those over some seconds."""
    return (
        *_ranged(gpu, _OF_STATIC),
        *_memory(gpu, sample),
        *_ranged(sample, _OF_SAMPLE),
        *_throttling(sample),
        *_energy(looks),
    )


def _check(quantity: str, raw: float, limits: _Range) -> UnitCheck:
    value = raw / limits.divisor
    plausible = limits.low <= value <= limits.high
    return UnitCheck(quantity, raw, value, limits.unit, limits.low, limits.high, plausible)


def _ranged(told: GpuStatic | GpuSample, ranges: dict[str, _Range]) -> Iterator[UnitCheck]:
    for name, limits in ranges.items():
        raw = getattr(told, name)
        if raw is not None:
            yield _check(name, raw, limits)


def _memory(gpu: GpuStatic, sample: GpuSample) -> Iterator[UnitCheck]:
    if sample.hbm_used_bytes is not None:
        most = gpu.hbm_total_bytes / _GIB if gpu.hbm_total_bytes is not None else 1024
        yield _check("hbm_used_bytes", sample.hbm_used_bytes, _Range(0, most, "GiB", _GIB))


def _throttling(sample: GpuSample) -> Iterator[UnitCheck]:
    for reason, share in (sample.throttle_percent or {}).items():
        yield _check(f"throttle_percent.{reason}", share, _PERCENT)


def _energy(looks: Sequence[GpuSample]) -> Iterator[UnitCheck]:
    """What the counter gained between the first and the last look, against the power in between."""
    times_s = np.array([look.t_s for look in looks])
    # What is None becomes NaN.
    joules = np.array([look.energy_j for look in looks], dtype=np.float64)
    watts = np.array([look.power_w for look in looks], dtype=np.float64)
    counted_s, felt_s = times_s[~np.isnan(joules)], times_s[~np.isnan(watts)]
    if not len(counted_s) or not len(felt_s):
        return
    window_s = max(counted_s[0], felt_s[0]), min(counted_s[-1], felt_s[-1])
    counter = increase(times_s, joules, *window_s)
    power = integral(times_s, watts, *window_s, longest_gap_s=_LONGEST_GAP_S)
    if min(counter.covered_s, power.covered_s) >= _SHORTEST_S:
        around = _Range(power.amount * (1 - _ENERGY_WITHIN), power.amount * (1 + _ENERGY_WITHIN), "J")
        yield _check("energy_j against power", counter.amount, around)
