"""The parts of a profile that say what is sent and when: arrivals, shared prefixes, conversations."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from loadgen.profile.values import Seconds, parse_duration_s

REPLAY = "replay"
"""The arrival of a recorded schedule."""
_GAMMA = re.compile(r"gamma:([0-9]+(?:\.[0-9]+)?)")


def burstiness_of(arrival: str) -> float:
    """The shape of the gaps: 1 is Poisson, below it bursts, above it evens out, infinity is constant.

    Raises ValueError for anything but `poisson`, `constant` and `gamma:B`.
    """
    if arrival == "poisson":
        return 1.0
    if arrival == "constant":
        return math.inf
    match = _GAMMA.fullmatch(arrival)
    if match is None or not 0.001 <= float(match[1]) <= 1000:
        raise ValueError("expected poisson, constant, replay, or gamma:B with a burstiness B from 0.001 to 1000")
    return float(match[1])


def _check_arrival(arrival: str) -> str:
    if arrival != REPLAY:
        burstiness_of(arrival)
    return arrival


def _check_points(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if points and len(points) < 2:
        raise ValueError("expected at least two points, such as [[0, 1], [60, 10]]")
    if any(later <= earlier for (earlier, _), (later, _) in pairwise(points)):
        raise ValueError("expected points in ascending time")
    if points and not mean_rate(points) > 0:
        raise ValueError("expected a rate above 0 somewhere")
    return points


def mean_rate(points: Sequence[tuple[float, float]]) -> float:
    """Requests a second on average over the points."""
    requests = sum((t1 - t0) * (r0 + r1) / 2 for (t0, r0), (t1, r1) in pairwise(points))
    return requests / (points[-1][0] - points[0][0])


_Moment = Annotated[float, BeforeValidator(parse_duration_s), Field(ge=0)]
ArrivalText = Annotated[str, AfterValidator(_check_arrival)]
RatePoints = Annotated[list[tuple[_Moment, Annotated[float, Field(ge=0, le=1_000_000)]]], AfterValidator(_check_points)]


class Prefix(BaseModel):
    """What prompts have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: float = Field(gt=0, lt=1)
    """Of each prompt's tokens, at its beginning."""
    count: int = Field(default=1, ge=1, le=1_000_000)
    """How many distinct prefixes there are; the seed draws one for each prompt."""


class Turns(BaseModel):
    """Conversations: each turn repeats what was said before."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(ge=2, le=1000)
    """Requests in a conversation."""
    think: Seconds | None = None
    """From an answer to the next question."""
