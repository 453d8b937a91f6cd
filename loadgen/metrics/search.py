"""What a search for a load has found: a line of the journal, and a part of the result."""

from __future__ import annotations

from typing import Literal

import msgspec


class SearchResult(msgspec.Struct, frozen=True):
    """What a search has found."""

    kind: Literal["slo", "knee"]
    by: Literal["concurrency", "rate"]
    found: float | None
    """`slo`: the highest load that met the limits; `knee`: the load of most throughput for its latency."""
    low: float | None
    high: float | None
    """`slo`: the highest load that surely met the limits and the lowest that surely missed them; `knee`: the 95 %
    confidence interval."""
    resolved: bool
    """False: the measurements do not say it with 95 % confidence, or not within the bounds of the search."""
    why: str
    probes: int
