"""The lines between a telemetry child and vramp, in one schema for every vendor, and a backend's interface.

One JSON object per line; `schema.samples` defines its figures. A line to the child says whether to list processes from
now on: `true` or `false`. A backend's module has one function
`open_...() -> Backend`, which raises `TelemetryError` with the exact reason if it cannot work here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from loadgen.schema.bounds import ClockS
from loadgen.schema.samples import GpuSample, GpuStatic
from loadgen.vendors import BackendName


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The first line: the backend works."""

    backend: BackendName
    meta: dict[str, Any]  # versions of wrapper, library and driver, and how they were chosen
    gpus: tuple[GpuStatic, ...]


class Sampled(msgspec.Struct, frozen=True, tag=True):
    """All devices at one moment."""

    t_s: ClockS
    took_ms: float
    gpus: tuple[GpuSample, ...]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The last line: the backend does not work here, or no longer works."""

    backend: BackendName
    reason: str
    meta: dict[str, Any] = {}


TelemetryLine = Opened | Sampled | Refused

encode_line = msgspec.json.Encoder().encode
decode_line: msgspec.json.Decoder[TelemetryLine] = msgspec.json.Decoder(TelemetryLine)


@dataclass(frozen=True, slots=True)
class Backend:
    opened: Opened
    sample: Callable[[bool, bool], tuple[GpuSample, ...]]
    """Takes whether to read the slow tier (ECC, caps, links) and whether to list processes; one sample per device."""
    close: Callable[[], None]
