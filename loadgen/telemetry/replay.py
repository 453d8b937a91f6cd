"""`python -m loadgen.telemetry.replay FILE`: a capture played back as a backend, in the protocol of the others.

Looks come in the time in which they were made, stamped with the present, over and over. Invariants: counters go on at
their mean pace when the capture begins again, so that a replay has no reset that the box did not have; processes are
told only while they are asked for, as a real backend does.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from loadgen.errors import VrampError
from loadgen.metrics.samples import GpuSample
from loadgen.telemetry.capture import Capture, Part, read_capture
from loadgen.telemetry.child import Orders, Output
from loadgen.telemetry.options import BackendOption
from loadgen.telemetry.sample import Opened, Refused, Sampled
from loadgen.vendors import BackendName, VendorName

PROGRAM = (sys.executable, "-P", "-m", "loadgen.telemetry.replay")
_COUNTERS = ("energy_j", "pcie_replays", "link_read_bytes", "link_write_bytes", "ecc_correctable", "ecc_uncorrectable")
_ONLY_LOOK_S = 1.0  # how long a capture of one look lasts
_LATE_S = 1.0  # what should have come earlier than that, while this process was stopped, is left out

Gains = dict[int, dict[str, float]]  # by device and counter


def replay_attempts(path: Path) -> dict[VendorName, list[BackendOption]]:
    """What plays a capture, a child for each vendor in it; raises `ProfileError` for what is not one."""
    capture = read_capture(path)
    return {vendor: [_attempt(path, vendor, part)] for vendor, part in capture.playable.items()}


def _attempt(path: Path, vendor: VendorName, part: Part) -> BackendOption:
    assert part.opened is not None, "it has looks"
    arguments = (str(path.absolute()), "--vendor", vendor)
    return BackendOption(
        "replay", part.opened.backend, arguments, why=f"{path}: {part.candidate.name}", program=PROGRAM
    )


def played(looks: Sequence[Sampled], start_s: float) -> Iterator[Sampled]:
    """The looks from `start_s` on (CLOCK_MONOTONIC), without end, each stamped with the time at which it is due."""
    period_s = _period_s(looks)
    gains = _gains(looks, period_s)
    shift_s = start_s - looks[0].t_s
    rounds = 0
    while True:
        for look in looks:
            yield _again(look, shift_s + rounds * period_s, gains, rounds)
        rounds += 1


def _period_s(looks: Sequence[Sampled]) -> float:
    """The time of all looks and of one more step between two of them."""
    if len(looks) < 2:
        return _ONLY_LOOK_S
    return (looks[-1].t_s - looks[0].t_s) * len(looks) / (len(looks) - 1)


def _gains(looks: Sequence[Sampled], period_s: float) -> Gains:
    """What each counter gains in a period, at its mean pace."""
    seen: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for look in looks:
        for gpu in look.gpus:
            for name in _COUNTERS:
                value = getattr(gpu, name)
                if value is not None:
                    seen.setdefault((gpu.index, name), []).append((gpu.t_s, value))
    gains: Gains = {}
    for (index, name), points in seen.items():
        gains.setdefault(index, {})[name] = _pace(points) * period_s
    return gains


def _pace(points: Sequence[tuple[float, float]]) -> float:
    (first_s, first), (last_s, last) = points[0], points[-1]
    return max(0.0, last - first) / (last_s - first_s) if last_s > first_s else 0.0


def _again(look: Sampled, shift_s: float, gains: Gains, rounds: int) -> Sampled:
    gpus = tuple(_moved(gpu, shift_s, gains.get(gpu.index, {}), rounds) for gpu in look.gpus)
    return msgspec.structs.replace(look, t_s=look.t_s + shift_s, gpus=gpus)


def _moved(gpu: GpuSample, shift_s: float, gains: Mapping[str, float], rounds: int) -> GpuSample:
    counters: dict[str, Any] = {}
    for name, gain in gains.items():
        value = getattr(gpu, name)
        if value is not None:
            # Whole ones go on by whole steps, rounded down, so that none ever falls.
            counters[name] = value + (gain * rounds if isinstance(value, float) else int(gain * rounds))
    return msgspec.structs.replace(gpu, t_s=gpu.t_s + shift_s, **counters)


def main() -> int:
    """Play until stdin ends; 1 if the file is no capture."""
    options = _parser().parse_args()
    output = Output(os.dup(1))
    os.dup2(2, 1)
    orders = Orders()
    orders.follow(0)
    try:
        capture = read_capture(options.file)
        part = _part(capture, options.vendor)
    except VrampError as error:
        output.offer(Refused(backend=options.backend, reason=str(error)))
        return 1
    _play(part, capture, output, orders)
    return 0


def _part(capture: Capture, vendor: VendorName | None) -> Part:
    """That of the vendor, or the first; `read_capture` sees to it that there is one."""
    playable = capture.playable
    return playable[vendor] if vendor in playable else next(iter(playable.values()))


def _play(part: Part, capture: Capture, output: Output, orders: Orders) -> None:
    assert part.opened is not None, "it has looks"
    output.offer(_opened(part.opened, part, capture))
    for look in played(part.looks, time.monotonic()):
        ahead_s = look.t_s - time.monotonic()
        if ahead_s < -_LATE_S:
            continue
        if orders.ended.wait(max(0.0, ahead_s)):
            return
        output.offer(look if orders.processes else _without_processes(look))


def _opened(opened: Opened, part: Part, capture: Capture) -> Opened:
    source = {"candidate": part.candidate.name, "captured_at": capture.header.captured_at}
    return msgspec.structs.replace(opened, meta={**opened.meta, "replay": source})


def _without_processes(look: Sampled) -> Sampled:
    if all(gpu.processes is None for gpu in look.gpus):
        return look
    return msgspec.structs.replace(look, gpus=tuple(msgspec.structs.replace(gpu, processes=None) for gpu in look.gpus))


def _parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="python -m loadgen.telemetry.replay", allow_abbrev=False)
    flags.add_argument("file", metavar="FILE", type=Path)
    flags.add_argument("--vendor", choices=get_args(VendorName), help="whose part to play (default: the first)")
    # What every backend is told: a capture has a backend and a beat of its own.
    flags.add_argument("--backend", choices=get_args(BackendName), default="sim", help=argparse.SUPPRESS)
    flags.add_argument("--interval-s", type=float, help=argparse.SUPPRESS)
    return flags


if __name__ == "__main__":
    sys.exit(main())
