"""How far a load goes: the keys of `[plan]`, which say what follows a stage, and when a stage counts."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from loadgen.profile.values import Seconds
from loadgen.searches import PLAN_KEYS, SEARCHES, SearchName

_CONFIG = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)
_MOST_CONCURRENCY = 100_000
_MOST_RATE = 1_000_000.0


def _ladder(value: object) -> object:
    if isinstance(value, list) and not value:
        raise ValueError("a ladder of nothing; expected the highest load, such as 64, or a list, such as [1, 8, 64]")
    return value


Load = Annotated[float, Field(gt=0, le=_MOST_RATE)]
Ladder = Annotated[Annotated[int, Field(ge=1, le=_MOST_CONCURRENCY)] | list[Load], BeforeValidator(_ladder)]


Steps = tuple[tuple[float, float], ...]
"""A load that moves: (seconds into the measured time, concurrency or rate from then on), the first at 0."""


def load_at(steps: Steps, measured_s: float) -> float:
    return next(load for at_s, load in reversed(steps) if at_s <= max(0.0, measured_s))


class Ramp(BaseModel):
    """A load that rises or falls in steps: one stage, whose figures are by step."""

    model_config = _CONFIG
    start: Load
    end: Load
    over: Seconds
    """From the beginning of the first step to the end of the last."""
    steps: int = Field(default=10, ge=2, le=1000)


class PlanSettings(BaseModel):
    """At most one of `ladder`, `ramp`, `soak` and `search`; without any, the loads that `[load]` names."""

    model_config = _CONFIG
    by: Literal["concurrency", "rate"] = "concurrency"
    """What the plan changes: the streams of a closed loop, or the requests a second of an open one."""
    ladder: Ladder | None = None
    """`64` is 1, 2, 4, ... 64; a list is taken as it is."""
    ramp: Ramp | None = None
    """`{ start = 1, end = 64, over = "2m", steps = 10 }`."""
    soak: Seconds | None = None
    """One stage of this length under the first load of `[load]`."""
    search: SearchName | None = None
    """`slo`: the highest load that meets the limits; `knee`: where throughput stops paying for latency."""
    least: float = Field(default=1.0, gt=0, le=_MOST_RATE)
    most: float = Field(default=1024.0, gt=0, le=_MOST_RATE)
    """The bounds of a search."""
    precision: float = Field(default=0.05, ge=0.001, le=0.5)
    """How near a search comes, as a share of what it finds; never nearer than one stream."""
    goodput: float = Field(default=0.95, gt=0, lt=1)
    """The share of streams that must meet the limits that are set for each stream."""
    settle: Seconds | None = None
    """A stage is measured once its transient is over, or after this long; a search takes 30 s unless told."""
    completed: int | None = Field(default=None, ge=1)
    """So many streams must be complete before a settled stage is over.

    A search takes 50 unless told, and at the loads that bound its answer as many as its limits need.
    """
    saturation: Literal["end", "note"] = "end"
    """What happens to an open-loop stage, bounded by time, whose queue grows without bound."""
    longest: Seconds = 120.0
    """The longest measured time of a stage that waits for them; then it is inconclusive."""

    @property
    def kinds(self) -> list[str]:
        """The keys that are plans of their own, of which there is at most one."""
        return [name for name in PLAN_KEYS if getattr(self, name) is not None]

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = self.kinds
        if len(kinds) > 1:
            raise ValueError(f"{' and '.join(kinds)} are plans of their own: give one of them")
        if self.completed is not None and self.settle is None and self.search is None:
            raise ValueError('completed is for settled stages: give settle too, such as settle = "30s"')
        return self

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least ({self.least:g}) is above most ({self.most:g})")
        return self

    @model_validator(mode="after")
    def _loads_are_of_their_kind(self) -> Self:
        if self.by == "rate":
            if self.search is not None and SEARCHES[self.search].refuses_rate:
                raise ValueError(f'search = "{self.search}" {SEARCHES[self.search].refuses_rate}')
            return self
        for name, value in self._loads():
            if value != round(value) or value > _MOST_CONCURRENCY:
                raise ValueError(
                    f"{name}: {value:g} is not a concurrency, a whole number up to {_MOST_CONCURRENCY}; "
                    'a rate needs by = "rate"'
                )
        return self

    def _loads(self) -> list[tuple[str, float]]:
        loads: list[tuple[str, Any]] = [("least", self.least), ("most", self.most)]
        if isinstance(self.ladder, list):
            loads += [("ladder", value) for value in self.ladder]
        if self.ramp is not None:
            loads += [("ramp.start", self.ramp.start), ("ramp.end", self.ramp.end)]
        return loads
