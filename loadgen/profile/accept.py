"""The table `[accept]`: what a box must show before it goes into service.

Criteria are checked here against the rows of `loadgen.criteria`; that a profile gives enough to judge by is checked
when an acceptance begins (`loadgen.record.demands`), because limits and published figures are criteria, too.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Self

from pydantic import Field, FiniteFloat, model_validator

from loadgen.criteria import FIGURES, PHASES, WARM_UP_S, Direction, PhaseName, figure_kind
from loadgen.format import duration
from loadgen.profile.values import Concurrency, ProfileTable, Rate, Requests, Seconds, Share, Tokens


class AcceptCriterion(ProfileTable):
    """One figure and its bound, at every load of the profile that has the concurrency, rate, ISL and OSL given here.

    The figures are listed in [Acceptance](acceptance.md).
    """

    figure: str
    """`ttft_p99_ms`, `output_tokens_per_s`, `kv_cache_tokens`, `exact_match_percent`, `driver` ..."""
    at_most: FiniteFloat | None = None
    """The highest good value."""
    at_least: FiniteFloat | None = None
    """The lowest good value."""
    equals: str | FiniteFloat | None = None
    """The only good value: a version, a count."""
    margin: Share = 0.0
    """How far beyond the bound is still good, as a share of the bound: a difference that does not matter."""
    source: str = Field(min_length=1)
    """Where the bound comes from."""
    concurrency: Concurrency | None = None
    """Only at this concurrency."""
    rate: Rate | None = None
    """Only at this many requests per second."""
    isl: Tokens | None = None
    """Only with prompts of this many tokens."""
    osl: Tokens | None = None
    """Only with answers of this many tokens."""

    @property
    def bounds(self) -> dict[Direction, float | str]:
        given: dict[Direction, float | str | None] = {
            "at_most": self.at_most,
            "at_least": self.at_least,
            "equal": self.equals,
        }
        return {direction: bound for direction, bound in given.items() if bound is not None}

    @property
    def load(self) -> tuple[object, ...]:
        return self.concurrency, self.rate, self.isl, self.osl

    @model_validator(mode="after")
    def _has_a_bound_that_fits(self) -> Self:
        kind = figure_kind(self.figure)
        if kind is None:
            known = ", ".join(one.names for one in FIGURES if one.rule != "events")
            raise ValueError(f"{self.figure}: no such figure; they are {known}")
        if kind.rule == "events":
            raise ValueError(f"{self.figure}: is judged without a criterion: none may occur")
        if not self.bounds:
            raise ValueError(f"{self.figure}: has no bound: give at_most, at_least or equals")
        wrong = next((direction for direction in self.bounds if direction not in kind.directions), None)
        if wrong is not None:
            keys = " or ".join(one.replace("equal", "equals") for one in kind.directions)
            raise ValueError(f"{self.figure}: takes {keys}, not {wrong.replace('equal', 'equals')}")
        highest = 100.0 if kind.unit == "%" and kind.rule != "trend" else math.inf
        for direction, bound in self.bounds.items():
            if not isinstance(bound, str) and not 0 <= bound <= highest:
                expected = "0 or more" if highest == math.inf else "0 to 100"
                raise ValueError(
                    f"{self.figure}: {direction.replace('equal', 'equals')} = {bound:g}: expected {expected}"
                )
        if any(self.load) and kind.phase != "performance":
            raise ValueError(f"{self.figure}: belongs to no load: leave out concurrency, rate, isl and osl")
        if kind.rule == "text" and not isinstance(self.equals, str):
            raise ValueError(f"{self.figure}: is a text: give equals = {str(self.equals)!r}")
        if kind.rule != "text" and isinstance(self.equals, str):
            raise ValueError(f"{self.figure}: is a number, not equals = {self.equals!r}")
        return self


class Accept(ProfileTable):
    """What `vramp accept` demands of a box. Limits of `[slo]` and figures of `[reference]` are criteria, too."""

    phases: list[PhaseName] = Field(default=list(PHASES), min_length=1)
    """The phases to run; their order is always this one."""
    starts: int = Field(default=5, ge=2, le=100)
    """How many times the server is started to measure performance: what differs from start to start is part of the
    interval. With two or three an interval is wide."""
    burn_in: Seconds = 86_400.0
    """How long the burn-in lasts, in all."""
    burn_in_concurrency: Concurrency | None = None
    """Its load; default: the highest concurrency of the profile."""
    reference_margin: Share = 0.05
    """The margin of the published figures of `[reference]`."""
    start_spread: Share | None = None
    """Upper bound of the standard deviation of a figure from start to start, as a share of it, if it is known: then few
    starts are enough to fail a box. Default: estimated from the starts, and from the boxes of `--like`."""
    start_spread_source: str = ""
    """Where `start_spread` comes from."""
    questions: str | None = None
    """A file of questions with one right answer each, in the format of GSM8K; default: vramp's own."""
    question_count: Requests = 200
    """How many questions to ask."""
    criteria: list[AcceptCriterion] = []
    """Figures and their bounds."""

    @model_validator(mode="after")
    def _phases_once(self) -> Self:
        if len(set(self.phases)) < len(self.phases):
            raise ValueError("phases names a phase twice")
        return self

    @model_validator(mode="after")
    def _spread_has_a_source(self) -> Self:
        if self.start_spread is not None and not self.start_spread_source:
            raise ValueError("start_spread needs start_spread_source: where it comes from")
        return self

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        for one in self.criteria:
            if one.at_least is not None and one.at_most is not None and one.at_least > one.at_most:
                raise ValueError(f"{one.figure}: at_least = {one.at_least:g} is above at_most = {one.at_most:g}")
        for one, other in combinations(self.criteria, 2):
            if one.figure != other.figure or one.load != other.load:
                continue
            both = {**one.bounds, **other.bounds}
            if one.bounds.keys() & other.bounds.keys() or "equal" in both:
                raise ValueError(f"{one.figure}: two criteria bound it in the same way: keep one of them")
            low, high = both["at_least"], both["at_most"]
            if isinstance(low, float) and isinstance(high, float) and low > high:
                raise ValueError(f"{one.figure}: at_least = {low:g} is above at_most = {high:g}")
        return self


def accept_doubts(accept: Accept, engine: str) -> dict[str, str]:
    """What cannot pass, however good the box is, by the id of the preflight's finding: what there is, and why."""
    found = {}
    if "performance" in accept.phases and engine == "attach":
        found["single-start"] = (
            'server.engine = "attach": latency and throughput cannot pass, because they are judged over two starts or '
            "more, and an attached server has one, whatever accept.starts is; let vramp start the server"
        )
    if "burn-in" in accept.phases and accept.burn_in < 2 * WARM_UP_S:
        found["short-burn-in"] = (
            f"accept.burn_in = {duration(accept.burn_in)}: the burn-in cannot pass, because growth is judged from the "
            "eleventh minute of a run on, over ten minutes; give 20 minutes or more"
        )
    return found
