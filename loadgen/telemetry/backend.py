"""What a backend is: something that was opened, looks at its devices when asked, and can be closed.

A module of a backend has one public function, `open_...() -> Backend`, which raises `TelemetryError` with the exact
reason when it cannot work here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadgen.metrics.samples import GpuSample
from loadgen.telemetry.sample import Opened

Sample = Callable[[bool, bool], tuple[GpuSample, ...]]
"""Whether to read the slow tier too (ECC, caps, links), and whether to list processes; one sample for each device."""


@dataclass(frozen=True, slots=True)
class Backend:
    """An opened backend."""

    opened: Opened
    sample: Sample
    close: Callable[[], None]
