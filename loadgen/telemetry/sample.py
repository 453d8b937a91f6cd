"""What telemetry says: the lines between a telemetry child and vramp, in one schema for every vendor.

One JSON object a line. Numbers are numbers or null; what is null has its reason in `missing`, so that absence is
visible and never a zero. Units are in the names. Times are CLOCK_MONOTONIC, which is one clock for the whole machine.
"""

from __future__ import annotations

from typing import Any

import msgspec

from loadgen.metrics.samples import GpuProcess, GpuSample, GpuStatic
from loadgen.vendors import BackendName

__all__ = [
    "GpuProcess",
    "GpuSample",
    "GpuStatic",
    "Opened",
    "Order",
    "Refused",
    "Sampled",
    "TelemetryLine",
    "decode_line",
    "encode_line",
]


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The backend works: its first line."""

    backend: BackendName
    meta: dict[str, Any]  # versions of wrapper, library and driver, and how they were chosen
    gpus: tuple[GpuStatic, ...]


class Sampled(msgspec.Struct, frozen=True, tag=True):
    """One look at all devices."""

    t_s: float
    took_ms: float
    gpus: tuple[GpuSample, ...]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The backend does not work here, or works no more: its last line."""

    backend: BackendName
    reason: str
    meta: dict[str, Any] = {}


class Order(msgspec.Struct, frozen=True):
    """What the parent wants from now on: a line on the child's stdin."""

    processes: bool


TelemetryLine = Opened | Sampled | Refused

encode_line = msgspec.json.Encoder().encode
decode_line: msgspec.json.Decoder[TelemetryLine] = msgspec.json.Decoder(TelemetryLine)
