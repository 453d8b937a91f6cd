"""Limits on a comparison, for CI: `ttft_p99>+10%` fails when B's TTFT p99 is more than a tenth above A's.

    LIMIT := FIGURE (">+" | "<-") NUMBER UNIT        UNIT := "%" | "ms" | "s"  (the latter two for latencies)

A limit is broken in a stage where the measured difference is beyond it, and where its interval excludes zero, so that
the noise of short stages breaks nothing. Strict limits go by the measured difference alone. A figure of which only a
lower bound is known is held against a limit only where that settles it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import msgspec

from loadgen.errors import ProfileError, ResultError
from loadgen.metrics.figures import FIGURES
from loadgen.metrics.result import Compared, Difference
from loadgen.report.compare import RunComparison, StageComparison

_LIMIT = re.compile(
    r"\s*(?P<figure>\w+)\s*(?P<side>[<>])\s*(?P<sign>[+-])\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>%|ms|s)\s*"
)
GRAMMAR = "FIGURE>+NUMBER% or FIGURE<-NUMBER%, for latencies also in ms or s"


class Limit(msgspec.Struct, frozen=True):
    """How far a figure may move."""

    text: str
    figure: str
    up: bool  # whether it must not rise, else it must not fall
    by: float  # in percent of A, or in the unit of the figure; above zero
    relative: bool


class Breach(msgspec.Struct, frozen=True):
    """A stage that breaks a limit."""

    limit: str
    stage: str
    found: Compared


def parse_limit(text: str) -> Limit:
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise ProfileError(f"--fail-if {text}: expected {GRAMMAR}, such as ttft_p99>+10%")
    figure, up, unit = match["figure"], match["side"] == ">", match["unit"]
    if figure not in FIGURES:
        raise ProfileError(f"--fail-if {text}: no figure {figure}; there are {', '.join(FIGURES)}")
    if up != (match["sign"] == "+"):
        raise ProfileError(f"--fail-if {text}: > goes with +, < with -: {GRAMMAR}")
    if unit != "%" and FIGURES[figure].unit != "ms":
        raise ProfileError(f"--fail-if {text}: {figure} is no latency; its limits are in %")
    by = float(match["number"]) * (1000 if unit == "s" else 1)
    return Limit(text=text, figure=figure, up=up, by=by, relative=unit == "%")


def breaches(comparison: RunComparison, limits: Sequence[Limit], *, strict: bool) -> list[Breach]:
    """Every stage that breaks a limit; raises `ResultError` for a limit that no stage can be held against."""
    found: list[Breach] = []
    for limit in limits:
        judged = list(_judged(comparison.stages, limit))
        if not judged:
            name = comparison.b.name
            raise ResultError(
                f"--fail-if {limit.text}: no stage of {name} has this figure beside one of A, and not only as a bound"
            )
        found += [
            Breach(limit.text, stage.title, one)
            for stage, one, difference in judged
            if is_beyond(difference, limit) and (strict or _is_evident(stage, difference, limit))
        ]
    return found


def is_beyond(difference: Difference, limit: Limit) -> bool:
    """Whether the measured difference is more than the limit allows."""
    moved = difference.percent if limit.relative else difference.absolute
    if moved is None:  # of nothing, anything is more than any percentage
        moved = math.copysign(math.inf, difference.absolute)
    return moved > limit.by if limit.up else -moved > limit.by


def _is_evident(stage: StageComparison, difference: Difference, limit: Limit) -> bool:
    if stage.doubts:
        return False
    if limit.up:
        return difference.low is not None and difference.low > 0
    return difference.high is not None and difference.high < 0


def _judged(stages: Sequence[StageComparison], limit: Limit) -> Iterator[tuple[StageComparison, Compared, Difference]]:
    for stage in stages:
        for one in stage.figures:
            found = one.difference
            if one.figure == limit.figure and found is not None and _is_known(one, found, limit):
                yield stage, one, found


def _is_known(one: Compared, found: Difference, limit: Limit) -> bool:
    """Whether lower bounds tell on which side of the limit the difference is."""
    most, least = one.a_at_least, one.b_at_least
    if limit.up:
        return not (most if is_beyond(found, limit) else least)
    return not (least if is_beyond(found, limit) else most)
