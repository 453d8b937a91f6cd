"""The energy of a window: joules by socket, from its counter, checked against its power.

Invariants: pure; a socket counts once, however many devices its vendor makes of it; a window that is too short, or
seen for less than nine tenths, has no energy rather than a wrong one; what was not seen of it is taken to be like the
rest. It is the energy of the sockets: no CPU, no network, no fans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from loadgen.metrics.amount import WindowGain, increase, integral
from loadgen.metrics.result import EnergySource, SocketEnergy
from loadgen.metrics.samples import GpuSample, GpuStatic

SHORTEST_WINDOW_S = 4.9
"""Sensors average over up to a second, so the edges of a shorter window weigh too much.

Just under five: the window of a stage of five seconds ends with its last token.
"""
_CHECKED_FROM_S = 10.0
_TRUSTED_WITHIN = 0.1
_COVERED = 0.9
_LONGEST_GAP_S = 15.0


class Energy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What all sockets used in a window."""

    joules: float | None  # none if that of any socket is unknown
    source: EnergySource | None  # `power` as soon as it was needed for one socket
    distrusted: bool
    window_s: float
    sockets: tuple[SocketEnergy, ...]


def window_energy(
    gpus: Sequence[GpuStatic], looks: Mapping[int, Sequence[GpuSample]], start_s: float, end_s: float
) -> Energy | None:
    """The energy from `start_s` to `end_s` (CLOCK_MONOTONIC); None without devices or if the window is too short.

    `gpus` are those that count; their `looks`, by number, should reach beyond both ends of the window.
    """
    leaders = sockets(gpus)
    window_s = end_s - start_s
    if not leaders or window_s < SHORTEST_WINDOW_S:
        return None
    parts = tuple(_socket(gpu, looks.get(gpu.index, []), start_s, end_s) for gpu in leaders)
    joules = [part.joules for part in parts if part.joules is not None]
    complete = len(joules) == len(parts)
    return Energy(
        joules=sum(joules) if complete else None,
        source=_source(parts) if complete else None,
        distrusted=any(part.distrusted for part in parts),
        window_s=window_s,
        sockets=parts,
    )


def sockets(gpus: Iterable[GpuStatic]) -> list[GpuStatic]:
    """The device of each socket that carries its figures: partition 0, and of two that claim it the first."""
    leaders: dict[str, GpuStatic] = {}
    for gpu in gpus:
        if gpu.partition == 0:
            leaders.setdefault(socket_of(gpu), gpu)
    return list(leaders.values())


def socket_of(gpu: GpuStatic) -> str:
    """The name of the device's socket; one whose backend names none is a socket of its own."""
    return gpu.socket or f"{gpu.vendor} {gpu.index}"


def joules_per_token(joules: float | None, tokens: int) -> float | None:
    """J per token; None without either."""
    return joules / tokens if joules is not None and tokens > 0 else None


def tokens_per_s_per_w(joules: float | None, tokens: int) -> float | None:
    """Tokens/s for each watt, which is tokens per joule; None without energy."""
    return tokens / joules if joules else None


def _source(parts: Iterable[SocketEnergy]) -> EnergySource:
    return "power" if any(part.source == "power" for part in parts) else "counter"


def _socket(gpu: GpuStatic, samples: Sequence[GpuSample], start_s: float, end_s: float) -> SocketEnergy:
    window_s = end_s - start_s
    # What is None becomes NaN.
    times_s = np.array([sample.t_s for sample in samples])
    joules_so_far = np.array([sample.energy_j for sample in samples], dtype=np.float64)
    watts = np.array([sample.power_w for sample in samples], dtype=np.float64)
    counter = _whole(increase(times_s, joules_so_far, start_s, end_s), window_s)
    power = _whole(integral(times_s, watts, start_s, end_s, longest_gap_s=_LONGEST_GAP_S), window_s)
    distrusted = window_s >= _CHECKED_FROM_S and _differ(counter, power)
    joules, source = _chosen(counter, power, distrusted=distrusted)
    return SocketEnergy(
        socket=socket_of(gpu),
        index=gpu.index,
        joules=joules,
        source=source,
        counter_joules=counter,
        power_joules=power,
        distrusted=distrusted,
    )


def _chosen(
    counter: float | None, power: float | None, *, distrusted: bool
) -> tuple[float | None, EnergySource | None]:
    if counter is not None and not distrusted:
        return counter, "counter"
    return (power, "power") if power is not None else (None, None)


def _whole(part: WindowGain, window_s: float) -> float | None:
    """That of the whole window, if enough of it was seen."""
    if part.covered_s < window_s * _COVERED:
        return None
    return part.amount * window_s / part.covered_s


def _differ(counter: float | None, power: float | None) -> bool:
    if counter is None or power is None:
        return False
    return abs(counter - power) > _TRUSTED_WITHIN * max(counter, power)
