"""What `vramp doctor` finds: how this box and this installation can be measured, and why not otherwise.

Made by telemetry, told by a report. Numbers are numbers; what a look left out has its reason in `missing`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from loadgen.metrics.samples import GpuSample, GpuStatic, HostSample

SCHEMA = "vramp.doctor/1"


class UnitCheck(msgspec.Struct, frozen=True):
    """Whether a value can be true in the unit that it is said to have."""

    quantity: str
    raw: float  # as the backend told it, in the unit of its name
    value: float  # in `unit`
    unit: str
    low: float
    high: float
    plausible: bool  # whether the value lies between `low` and `high`


class GpuExam(msgspec.Struct, frozen=True):
    """One device as one candidate tells it."""

    gpu: GpuStatic
    sample: GpuSample  # every field as it was told last, processes too
    missing: dict[str, str]  # field name to reason, for every field of either that is null
    checks: tuple[UnitCheck, ...]


class Tried(msgspec.Struct, frozen=True):
    """One way to measure, and what came of it."""

    vendor: str
    name: str
    why: str  # why it is tried, and in this place of the order
    failure: str | None  # none if it works
    first_look_ms: float | None  # from its start to its first look at all devices
    meta: dict[str, Any]  # versions of wrapper, library and driver
    printed: tuple[str, ...]  # the last lines that it or its library printed
    gpus: tuple[GpuExam, ...]

    @property
    def works(self) -> bool:
        """Whether it measured to the end."""
        return self.failure is None


class DeviceFile(msgspec.Struct, frozen=True):
    """A file through which a GPU is reached."""

    path: str
    state: Literal["usable", "denied", "absent"]
    owner: str = ""  # mode, user and group, such as `crw-rw---- root:render`
    fix: str = ""


class HostExam(msgspec.Struct, frozen=True):
    """The host, over the last part of a second."""

    sample: HostSample
    missing: dict[str, str]


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found."""

    schema: str = SCHEMA
    versions: dict[str, str | None]
    """Of vramp, Python, the system, the packages, the drivers and the vendors' stacks; None is "not here"."""
    user: str
    groups: tuple[str, ...]
    devices: tuple[DeviceFile, ...]
    nothing: str = ""  # why no candidate was tried
    tried: tuple[Tried, ...]
    host: HostExam

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Vendors of which something was tried and nothing works."""
        working = {each.vendor for each in self.tried if each.works}
        return tuple(dict.fromkeys(each.vendor for each in self.tried if each.vendor not in working))
