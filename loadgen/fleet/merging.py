"""What several workers did, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from loadgen.metrics.deltas import ClientDelta, StageDelta, StreamRow
from loadgen.metrics.stage import ClientMetrics, StageMetrics
from loadgen.worker.messages import Tick


def merge_stages(
    parts: Sequence[dict[int, StageDelta]], *, peak: Callable[[Iterable[int]], int] = max
) -> dict[int, StageDelta]:
    """The sums by stage; `peak` is `max` over ticks of one worker, `sum` over workers, which hold theirs at once."""
    by_stage: dict[int, list[StageDelta]] = {}
    for stages in parts:
        for index, delta in stages.items():
            by_stage.setdefault(index, []).append(delta)
    return {index: _merged(deltas, peak) for index, deltas in by_stage.items()}


def _merged(deltas: list[StageDelta], peak: Callable[[Iterable[int]], int]) -> StageDelta:
    # One worker is the usual case, and its delta is the sum already.
    if len(deltas) == 1:
        return deltas[0]
    total = StageMetrics.of(*deltas).encode()
    return msgspec.structs.replace(total, peak=peak(delta.peak for delta in deltas))


def merge_clients(deltas: list[ClientDelta]) -> ClientDelta:
    if len(deltas) == 1:
        return deltas[0]
    total = ClientMetrics()
    for delta in deltas:
        total.add(delta)
    return total.encode()


def sum_by_key(counts: list[dict[int, int]]) -> dict[int, int]:
    """Counts added up key by key."""
    total: dict[int, int] = {}
    for count in counts:
        for key, value in count.items():
            total[key] = total.get(key, 0) + value
    return total


def rows_by_worker(ticks: Iterable[Tick]) -> dict[int, list[StreamRow]]:
    """The rows of those ticks that have any."""
    rows: dict[int, list[StreamRow]] = {}
    for tick in ticks:
        if tick.rows:
            rows.setdefault(tick.worker, []).extend(tick.rows)
    return rows
