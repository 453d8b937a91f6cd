"""What a search for a load has found: a line of the journal, and a part of the result."""

from __future__ import annotations

from typing import Literal

import msgspec

from loadgen.searches import SearchName


class SearchPoint(msgspec.Struct, frozen=True):
    """One probe of a search; None is unknown."""

    load: float  # what was asked for
    held: float | None
    output_tokens_per_s: float | None
    error_percent: float | None  # the standard error of `output_tokens_per_s`
    verdict: Literal["met", "missed", "unresolved"]
    """On the limits, with 95 % confidence; a search for the knee has none."""


class SearchResult(msgspec.Struct, frozen=True):
    """What a search has found."""

    kind: SearchName
    by: Literal["concurrency", "rate"]
    found: float | None
    """`slo`: the highest load that met the limits; `knee`: the load of most throughput for its latency."""
    low: float | None
    high: float | None
    """`slo`: the highest load that surely met the limits and the lowest that surely missed them; `knee`: the 95 %
    confidence interval."""
    resolved: bool  # false: the measurements do not say it with 95 % confidence, or not within the bounds of the search
    why: str
    probes: int
    points: tuple[SearchPoint, ...] = ()
    """Every probe, in the order in which they were made; empty in results of before."""
