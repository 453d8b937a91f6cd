"""Comparisons of a run's figures with a publication or an earlier run, and how sure a difference is."""

from __future__ import annotations

from typing import Literal

import msgspec


class Comparison(msgspec.Struct, frozen=True):
    """One published figure next to what a stage measured."""

    stage: int  # index of the stage
    of: str  # hardware or column of the publication, where it has several
    figure: str
    published: float
    measured: float | None
    difference_percent: float | None  # measured against published; None if either is missing


class PublishedRatio(msgspec.Struct, frozen=True, omit_defaults=True):
    """A published figure of one variant divided by that of another, and its load; what is None matches any."""

    variant: str
    over: str
    figure: str
    value: float
    of: str = ""  # hardware or column of the publication, where it has several
    concurrency: int | None = None
    rate: float | None = None
    isl: int | None = None
    osl: int | None = None


class Condition(msgspec.Struct, frozen=True):
    """One condition of the published measurement, and whether this run has the same."""

    name: str
    published: str
    here: str | None  # None if unknown
    same: bool | None  # None if unknown


class ReferenceResult(msgspec.Struct, frozen=True):
    """The publication of the profile, and every comparison with it."""

    source: str
    notes: list[str]
    comparisons: list[Comparison]
    conditions: tuple[Condition, ...] = ()
    ratios: tuple[PublishedRatio, ...] = ()  # measured by two runs: see `vramp compare`


Word = Literal["better", "worse", "no evidence"]


class Difference(msgspec.Struct, frozen=True):
    """The difference of B from A, in the figure's unit and in percent of A; None is unknown, or an open end."""

    absolute: float
    low: float | None
    high: float | None
    percent: float | None
    low_percent: float | None
    high_percent: float | None
    word: Word  # on B


class Compared(msgspec.Struct, frozen=True):
    """One figure of A and B; None if one of them has none."""

    figure: str
    unit: str
    a: float | None
    b: float | None
    difference: Difference | None
    a_at_least: bool = False  # A's is only a lower bound
    b_at_least: bool = False


class BaselineView(msgspec.Struct, frozen=True):
    """A stage next to the stage of the same load in the baseline."""

    name: str
    verdict: str  # in words; or why nothing is compared
    bad: bool = False  # something is evidently worse
    load: str | None = None  # the matched load; None if the baseline has no such stage
    figures: tuple[Compared, ...] = ()  # A is the baseline


class Precision(msgspec.Struct, frozen=True):
    """The precision of a stage's numbers, from their variance between blocks."""

    blocks: int
    block_s: float  # their mean length
    effective: dict[str, dict[str, float]]
    """By latency and statistic (`mean`, `p50`, `p90`, `p99`): the number of independent values of equal precision.

    `goodput` has the statistic `share`.
    """
    error_percent: dict[str, float]  # the standard errors of requests, output and total tokens per second
