"""The GPUs of a vendor at one moment, for checks before a start and after a stop.

A telemetry child takes one sample with the vendor's simplest backend and ends: a library or a driver that hangs or
crashes costs a few seconds, and leaves a reason.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from loadgen.errors import TelemetryError
from loadgen.schema.samples import GpuSample, GpuStatic
from loadgen.telemetry.backends import BackendOption
from loadgen.telemetry.process import start_child
from loadgen.telemetry.protocol import Opened, Sampled
from loadgen.vendors import Vendor, is_partition

_OPEN_S = 10.0
_SAMPLE_S = 5.0


class GpusNow(NamedTuple):
    """Whole GPUs, though a device of the runtime may be a part of one; samples by index."""

    gpus: tuple[GpuStatic, ...]
    samples: Mapping[int, GpuSample]


async def read_gpus(vendor: Vendor) -> GpusNow:
    """The GPUs, their memory and the processes on them; raises `TelemetryError` with the reason if none can be read."""
    backend = vendor.backends[-1].name
    option = BackendOption(backend, backend, ("--once",))
    try:
        with tempfile.TemporaryDirectory(prefix="vramp-") as folder:
            child = await start_child(option.command(1.0), {}, Path(folder) / "telemetry.log")
            try:
                opened = await child.opened(within_s=_OPEN_S)
                return whole_gpus(opened, await child.sampled(within_s=_SAMPLE_S))
            finally:
                await child.end(grace_s=0.0)
    except TelemetryError as error:
        raise TelemetryError(f"no GPU can be read here: {error}") from error


def whole_gpus(opened: Opened, sampled: Sampled) -> GpusNow:
    """Numbered without the parts of a GPU, such as MIG instances; the dies of an MI250 are GPUs of their own."""
    whole = [gpu for gpu in opened.gpus if not (gpu.partition and is_partition(gpu.compute_partition))]
    numbers = {gpu.index: number for number, gpu in enumerate(whole)}
    samples = [replace(one, index=numbers[one.index]) for one in sampled.gpus if one.index in numbers]
    return GpusNow(tuple(replace(gpu, index=numbers[gpu.index]) for gpu in whole), {one.index: one for one in samples})
