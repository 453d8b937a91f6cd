"""When the transient of a stage is over: what was in the air before it has gone, and its series have come to rest.

Each series (streams open, TTFT, tokens a second) is judged by MSER, the marginal standard error rule of White (1997):
of all points at which a series could be cut, the best leaves the mean of the rest with the least standard error. While
a transient lasts that point moves along with the end; once it stays in the first half, the rest is stationary. So the
rule needs no limit that would have to fit every model and machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.deltas import StageDelta

FEWEST_BEATS = 12
_HELD_SHARE = 0.02
_KEPT = 4  # the rule needs so many points to the right of a cut


class Transient:
    """Watches a stage from its beginning, a tick at a time."""

    def __init__(self, concurrency: int | None) -> None:
        self._concurrency = concurrency
        self._ended = 0
        self._sent = 0
        self._held: list[float] = []
        self._ttft_ms: list[float] = []
        self._tokens: list[float] = []

    def beat(self, *, held: int, delta: StageDelta | None, output_tokens: int) -> None:
        """Take in a tick: streams open at its end, what happened to those of the stage, and all tokens that came."""
        self._held.append(held)
        self._tokens.append(output_tokens)
        if delta is None:
            return
        self._sent += delta.warmup + delta.sent
        ttft_ms = ttft_of(delta)
        if ttft_ms is not None:
            self._ttft_ms.append(ttft_ms)

    @property
    def over(self) -> bool:
        """Every slot has turned over once, and nothing moves any more."""
        if len(self._held) < FEWEST_BEATS or not self._turned_over():
            return False
        return all(at_rest(series) for series in (self._held, self._ttft_ms, self._tokens))

    def _turned_over(self) -> bool:
        held = self._held[-1]
        wanted = self._concurrency
        if wanted is None:
            # In open loop the streams of the beginning must have gone, whose number is not known beforehand.
            return self._sent - held >= max(held, 1)
        return held <= wanted + max(1, _HELD_SHARE * wanted) and self._sent - held >= wanted


def ttft_of(delta: StageDelta | None) -> float | None:
    """The mean TTFT of a tick in milliseconds, measured or not; None if no stream began to answer."""
    if delta is None:
        return None
    ttft = delta.latency.get("warmup_ttft") or delta.latency.get("ttft")
    return ttft.sum_us / ttft.count / 1000 if ttft is not None and ttft.count else None


def at_rest(series: list[float]) -> bool:
    """Whether the best cut of a series lies in its first half; one that is too short is not at rest."""
    if len(series) < FEWEST_BEATS // 2:
        return False
    return int(np.argmin(cut_errors(series))) <= len(series) // 2


def cut_errors(series: list[float]) -> NDArray[np.float64]:
    """The variance over the count of what each cut leaves, which MSER wants least; sums from the end, in one pass."""
    # Counted from the last value, a series that has come to rest has errors of exactly 0, and no cancellation.
    values = np.array(series[::-1], dtype=np.float64) - series[-1]
    counts = np.arange(1, len(values) + 1)
    means = np.cumsum(values) / counts
    variances = np.maximum(0.0, np.cumsum(values**2) / counts - means**2)
    return (variances / counts)[: _KEPT - 1 : -1]
