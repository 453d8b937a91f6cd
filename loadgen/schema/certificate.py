"""What an acceptance writes: the lines of `accept.jsonl` during it, and the certificate, schema `vramp.certificate/1`.

The lines are what happened, in order; the certificate is a fold over them and over the results in the folders that they
name (`loadgen.record.acceptance`), so that it can be made again from the same files and compared. A line is complete or
missing. Numbers are numbers or null, and a null has its reason. `certificate.schema.json` next to this file is made
from these structs (`python -m loadgen.schema.certificate`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from loadgen.criteria import Direction, PhaseName, Rule, figure_kind
from loadgen.schema.bounds import Whole
from loadgen.schema.result import json_schema
from loadgen.schema.samples import ProbeResult

CERTIFICATE_SCHEMA: Literal["vramp.certificate/1"] = "vramp.certificate/1"
CERTIFICATE_SCHEMA_PATH = Path(__file__).with_name("certificate.schema.json")

_UnixS = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
_Hours = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Outcome = Literal["pass", "fail", "inconclusive"]
PhaseState = Literal["pass", "fail", "inconclusive", "skipped"]


class Spread(msgspec.Struct, frozen=True):
    """How much a figure differs from start to start: the standard deviation, as a share of the figure."""

    share: Annotated[float, msgspec.Meta(gt=0)]
    freedom: (
        Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None
    )  # degrees of freedom of its estimate; null for an upper bound that was given
    source: str


class Demand(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A criterion before anything is measured."""

    phase: PhaseName
    figure: str
    unit: str = ""
    rule: Rule
    load: str = ""  # the load in words, as `LoadShape.words`; empty if the figure belongs to no load
    direction: Direction
    bound: float | str | None = None  # null for `none_of`
    margin: float = 0.0  # in the figure's unit: what is beyond the bound by no more than this is still good
    source: str
    spread: Spread | None = None  # known from other boxes or from the profile

    def __post_init__(self) -> None:
        """Raise `ValueError` for a criterion that this version cannot judge, as a damaged line may hold."""
        kind = figure_kind(self.figure)
        wanted = type(None) if self.rule == "events" else str if self.rule == "text" else int | float
        if kind is None or kind.rule != self.rule or self.direction not in kind.directions:
            raise ValueError(f"{self.figure}: not a figure that is judged like this")
        if not isinstance(self.bound, wanted) or self.margin < 0:
            raise ValueError(f"{self.figure}: not a bound of such a figure")


class GpuIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU of the box."""

    index: Whole
    name: str
    uuid: str | None = None
    bdf: str | None = None
    firmware: dict[str, str] = {}


class BoxIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """The box that was judged."""

    host: str
    gpus: tuple[GpuIdentity, ...] = ()
    cpu: str | None = None
    kernel: str | None = None
    driver: str | None = None
    vllm_version: str | None = None
    versions: dict[str, str] = {}  # of other software


# The lines of accept.jsonl.


class AcceptBegan(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The first line: what was demanded, before anything was measured."""

    unix_s: _UnixS
    vramp_version: str
    name: str  # of the profile
    profile: dict[str, Any]
    phases: tuple[PhaseName, ...]
    demands: tuple[Demand, ...]
    starts: _Count
    burn_in_s: float
    boot_id: str
    booted_unix_s: float  # the wall clock less the time since boot: it moves with a step of the clock
    by: str | None = None  # who runs it, if that was given
    like: tuple[str, ...] = ()  # names of the boxes that bounds were taken from
    not_tested: tuple[str, ...] = ()  # what no criterion could be made for, and why


class AcceptResumed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """It goes on after an interruption, or with more starts or hours than were planned before."""

    unix_s: _UnixS
    vramp_version: str
    boot_id: str
    booted_unix_s: float
    starts: _Count
    burn_in_s: float
    by: str | None = None  # who goes on with it, if that was given
    clock_step_s: float | None = None  # how far the wall clock was stepped meanwhile; null if not known


class BoxSeen(msgspec.Struct, frozen=True, tag=True):
    """What the box is; a later line replaces an earlier one."""

    unix_s: _UnixS
    box: BoxIdentity


class PhaseBegan(msgspec.Struct, frozen=True, tag=True):
    """A phase begins, again after an interruption."""

    unix_s: _UnixS
    phase: PhaseName


class FactFound(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A value of a figure with the rule `each` or `text`."""

    unix_s: _UnixS
    phase: PhaseName
    figure: str
    subject: str = ""  # `gpu 3`, `start 2`
    value: float | str | None
    reason: str = ""  # why there is no value


class Counted(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Events of a figure with the rule `events` or `share`."""

    unix_s: _UnixS
    phase: PhaseName
    figure: str
    subject: str = ""
    count: _Count  # of `events`, what happened; of `share`, the good ones
    trials: _Count | None = None  # of a `share`
    hours: _Hours | None = None  # how long it was watched
    text: str = ""  # the first event, in words

    def __post_init__(self) -> None:
        """Raise `ValueError` for more good trials than there were."""
        if self.trials is not None and self.count > self.trials:
            raise ValueError(f"{self.count} of {self.trials}")


class ProbesRun(msgspec.Struct, frozen=True, tag=True):
    """What the vendors' tools measured."""

    unix_s: _UnixS
    results: tuple[ProbeResult, ...]


class RunMade(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A run ended, or was recovered after it was killed; its figures are in its result."""

    unix_s: _UnixS
    phase: PhaseName
    folder: str  # relative to that of the acceptance
    start: _Count  # number of the server's start, from 1; runs on one start share it


class PhaseEnded(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A phase came to its end; an interrupted one has no such line."""

    unix_s: _UnixS
    phase: PhaseName
    state: Literal["done", "skipped", "failed"]
    reason: str = ""  # why it was skipped, or why it could not be carried out: the diagnosis of a server that died


class Judged(msgspec.Struct, frozen=True, tag=True):
    """A certificate was made from all lines before this one.

    Judging again after more was measured is another chance of a false alarm, so that each time spends a share of it.
    """

    unix_s: _UnixS


AcceptLine = (
    AcceptBegan | AcceptResumed | BoxSeen | PhaseBegan | FactFound | Counted | ProbesRun | RunMade | PhaseEnded | Judged
)


# The certificate.


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """One criterion, judged."""

    demand: Demand
    outcome: Outcome
    reason: str  # one clause; never empty
    details: tuple[str, ...] = ()  # of the reason, one a start
    observed: float | str | None = None
    low: float | None = None  # ends of the interval of the true value
    high: float | None = None
    no_interval: str = ""  # why an end is null
    low_confidence: float | None = None
    """That the true value is not below `low`. The end that must lie beyond the bound to fail is corrected for several
    criteria; both are for the number of judgements so far."""
    high_confidence: float | None = None  # that it is not above `high`
    spread: Spread | None = None  # how much starts differ, as it entered the interval
    starts: int = 0  # those that count
    values: tuple[float, ...] = ()  # of each of them
    requests: tuple[int, ...] = ()  # behind each of them
    samples: int | None = None  # streams, trials or values behind the figure
    needs: str = ""  # what it would take, while inconclusive


class PhaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One phase."""

    name: PhaseName
    state: PhaseState
    reason: str
    started_at: str | None = None
    finished_at: str | None = None
    attempts: int = 0
    runs: tuple[str, ...] = ()  # folders


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an acceptance."""

    schema: Literal["vramp.certificate/1"] = CERTIFICATE_SCHEMA
    vramp_version: str
    verdict: Outcome
    reasons: tuple[str, ...]
    by: str | None
    box: BoxIdentity | None  # null if it was never looked at
    profile: str
    model: str | None
    started_at: str
    finished_at: str  # of the last line
    pass_confidence: float
    false_fail: float  # the probability that a box exactly as good as demanded fails is at most this
    phases: tuple[PhaseRecord, ...]
    criteria: tuple[Criterion, ...]
    not_tested: tuple[str, ...]
    like: tuple[str, ...] = ()
    files: dict[str, str] = {}
    """What it rests on, by its path in the folder: the SHA-256 of every file; of a link or an empty folder, that."""


if __name__ == "__main__":
    CERTIFICATE_SCHEMA_PATH.write_text(json_schema(Certificate, CERTIFICATE_SCHEMA), encoding="utf-8")
