"""The energy of a window: joules by socket, from its counter, checked against its power.

Invariants: pure; a socket counts once, however many devices its vendor lists; a window that is too short, or observed
for less than nine tenths, has no energy rather than a wrong one; unobserved parts are taken to be like the rest. It is
the energy of the sockets: no CPU, no network, no fans.

Samples do not fall on the edges of windows: both edges are interpolated between neighbouring samples, so that adjacent
windows add up. A counter that fell was reset: its gain in between is unknown and dropped, and so is that time
(`covered_s`). Of several samples at one time the first counts; samples out of order or unknown (NaN) are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from loadgen.metrics.series import Floats
from loadgen.schema.hardware_result import EnergyResult, EnergySource, SocketEnergy
from loadgen.schema.samples import GpuSample, GpuStatic

MIN_WINDOW_S = 4.9
"""Sensors average over up to a second, so the edges of a shorter window would weigh too much. Just under five seconds,
because the window of a five-second stage ends with its last token."""
_CHECKED_FROM_S = 10.0
_TRUSTED_WITHIN = 0.1
_COVERED = 0.9
_MAX_GAP_S = 15.0  # of samples once a second; after four hours a stage keeps only every sixteenth


class WindowGain(NamedTuple):
    """The gain within a window, and how much of the window it covers."""

    amount: float
    covered_s: float


def window_energy(
    gpus: Sequence[GpuStatic],
    samples: Mapping[int, Sequence[GpuSample]],
    start_s: float,
    end_s: float,
    tokens: int | None = None,
) -> EnergyResult | None:
    """The energy from `start_s` to `end_s` (CLOCK_MONOTONIC); None without devices or if the window is too short.

    `gpus` are those to count; their `samples`, by number, should reach beyond both ends of the window. `tokens` are
    the output tokens of the window, None if unknown.
    """
    leaders = sockets(gpus)
    window_s = end_s - start_s
    if not leaders or window_s < MIN_WINDOW_S:
        return None
    parts = tuple(_socket(gpu, samples.get(gpu.index, []), start_s, end_s) for gpu in leaders)
    known = [part.joules for part in parts if part.joules is not None]
    joules = sum(known) if len(known) == len(parts) else None
    source: EnergySource = "power" if any(part.source == "power" for part in parts) else "counter"
    return EnergyResult(
        joules=joules,
        source=source if joules is not None else None,
        distrusted=any(part.distrusted for part in parts),
        window_s=window_s,
        joules_per_output_token=joules / tokens if joules is not None and tokens else None,
        tokens_per_s_per_w=tokens / joules if joules and tokens is not None else None,
        sockets=parts,
    )


def sockets(gpus: Iterable[GpuStatic]) -> list[GpuStatic]:
    """The device of each socket that carries its figures: partition 0, the first if two claim it."""
    leaders: dict[str, GpuStatic] = {}
    for gpu in gpus:
        if gpu.partition == 0:
            leaders.setdefault(socket_of(gpu), gpu)
    return list(leaders.values())


def socket_of(gpu: GpuStatic) -> str:
    """The name of the device's socket; a device without one is a socket of its own."""
    return gpu.socket or f"{gpu.vendor} {gpu.index}"


def _socket(gpu: GpuStatic, samples: Sequence[GpuSample], start_s: float, end_s: float) -> SocketEnergy:
    window_s = end_s - start_s
    # None becomes NaN.
    times_s = np.array([sample.t_s for sample in samples])
    joules_so_far = np.array([sample.energy_j for sample in samples], dtype=np.float64)
    watts = np.array([sample.power_w for sample in samples], dtype=np.float64)
    counter = _whole(increase(times_s, joules_so_far, start_s, end_s), window_s)
    longest_gap_s = max(_MAX_GAP_S, 2 * float(np.median(np.diff(times_s)))) if len(times_s) > 1 else 0.0
    power = _whole(integral(times_s, watts, start_s, end_s, longest_gap_s=longest_gap_s), window_s)
    distrusted = False
    if window_s >= _CHECKED_FROM_S and counter is not None and power is not None:
        distrusted = abs(counter - power) > _TRUSTED_WITHIN * max(counter, power)
    source: EnergySource
    joules, source = (power, "power") if distrusted or counter is None else (counter, "counter")
    return SocketEnergy(
        socket=socket_of(gpu),
        index=gpu.index,
        joules=joules,
        source=source if joules is not None else None,
        counter_joules=counter,
        power_joules=power,
        distrusted=distrusted,
    )


def _whole(part: WindowGain, window_s: float) -> float | None:
    """Scaled to the whole window, if enough of it was observed."""
    if part.covered_s < window_s * _COVERED:
        return None
    return part.amount * window_s / part.covered_s


def increase(times_s: Floats, values: Floats, start_s: float, end_s: float) -> WindowGain:
    """A counter's gain from `start_s` to `end_s`."""
    times_s, values = _in_order(times_s, values)
    gains, spans_s = np.diff(values), np.diff(times_s)
    overlaps_s = np.minimum(times_s[1:], end_s) - np.maximum(times_s[:-1], start_s)
    counted = (overlaps_s > 0) & (gains >= 0)
    shares = overlaps_s[counted] / spans_s[counted]
    return WindowGain(float((gains[counted] * shares).sum()), float(overlaps_s[counted].sum()))


def integral(times_s: Floats, values: Floats, start_s: float, end_s: float, *, longest_gap_s: float) -> WindowGain:
    """The area under a gauge from `start_s` to `end_s`, by trapezoids; a longer gap between samples is not covered."""
    times_s, values = _in_order(times_s, values)
    before_s, after_s = times_s[:-1], times_s[1:]
    slopes = np.diff(values) / (after_s - before_s)
    left_s, right_s = np.maximum(before_s, start_s), np.minimum(after_s, end_s)
    means = values[:-1] + slopes * ((left_s + right_s) / 2 - before_s)
    counted = (right_s > left_s) & (after_s - before_s <= longest_gap_s)
    spans_s = (right_s - left_s)[counted]
    return WindowGain(float((means[counted] * spans_s).sum()), float(spans_s.sum()))


def _in_order(times_s: Floats, values: Floats) -> tuple[Floats, Floats]:
    known = ~np.isnan(values)
    times_s, values = times_s[known], values[known]
    later = np.ones(len(times_s), dtype=np.bool_)
    later[1:] = times_s[1:] > np.maximum.accumulate(times_s)[:-1]
    return times_s[later], values[later]
