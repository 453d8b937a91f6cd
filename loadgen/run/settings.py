"""What a run does and what it leaves: one struct, made once from the profile and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from loadgen.profile.schema import Profile
from loadgen.record.figures import Baseline
from loadgen.store.files import RowsFormat
from loadgen.telemetry.backends import BackendOption


@dataclass(frozen=True)
class RunSettings:
    """The profile of a run, and how it is run."""

    profile: Profile
    _: KW_ONLY
    where: str  # names the profile in messages
    variant: str | None = None  # the one in `profile`, if any
    variants: Mapping[str, Profile] = field(default_factory=dict)  # with which the server can be restarted
    hold_open: bool = False  # the server stays up after the plan, for an operator
    force: bool = False  # start whatever the preflight finds
    json_path: Path | None = None  # where the result is written, besides the run's folder
    junit_path: Path | None = None
    records: RowsFormat | None = None  # the format of stream rows, if they are kept
    baseline: Baseline | None = None  # compared with the stages
    replay: Mapping[str, list[BackendOption]] | None = None  # in place of the profile's telemetry
    folder: Path | None = None  # where its files go, in place of a new folder below runs/
    alert: tuple[str, ...] = ()  # the command that runs at each new bad verdict
    metrics_address: tuple[str, int] | None = None  # where Prometheus can scrape the live figures
