"""What belongs to a socket and not to a device of it, so that power is counted once.

An MI250 is two devices (dies) in one socket: the first reports the power of both, the second 0 W. The partitions of an
MI300 in CPX and its like repeated the socket's figures in older drivers and have none in newer ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadgen.metrics.samples import GpuStatic
from loadgen.telemetry.sanitize import Missing

TWO_DIES = frozenset({"0x7408", "0x740c"})  # device numbers of MI250X and MI250
ELSEWHERE = Missing("belongs to the socket: see its partition 0")
_OF_THE_SOCKET = ("power_w", "power_cap_w", "energy_j")


def pair_dies(gpus: Sequence[GpuStatic], device_ids: Sequence[str]) -> list[GpuStatic]:
    """Give the two dies of a socket, neighbours in the order of PCI addresses, one name; the first is partition 0."""
    dies = [gpu for gpu, device_id in zip(gpus, device_ids, strict=True) if device_id in TWO_DIES]
    dies.sort(key=lambda gpu: gpu.bdf or "")
    paired = {
        die.index: msgspec.structs.replace(die, socket=dies[place - place % 2].socket, partition=place % 2)
        for place, die in enumerate(dies)
    }
    return [paired.get(gpu.index, gpu) for gpu in gpus]


def counted_once(readings: dict[str, object], gpu: GpuStatic) -> dict[str, object]:
    """The readings without those that the socket's first device carries."""
    if gpu.partition == 0:
        return readings
    return readings | {name: ELSEWHERE for name in _OF_THE_SOCKET if name in readings}
