"""Merges ticks, of one worker or of several."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from heapq import nlargest
from operator import attrgetter

import msgspec

from loadgen.metrics.stage import ClientMetrics
from loadgen.schema.deltas import MAX_SESSION_ROWS, ClientDelta, SessionsNow, StreamRow
from loadgen.worker.messages import TICK_NS, Tick


def merge_clients(ticks: Sequence[Tick], *, workers_lost: int) -> ClientDelta:
    client = ClientMetrics()
    for tick in ticks:
        client.add(tick.client)
    return msgspec.structs.replace(client.encode(), workers_lost=workers_lost)


def open_streams(last: Sequence[Tick]) -> tuple[Counter[int], Counter[int]]:
    """The open streams by stage, and how many of them count in that stage's `sent`."""
    open_stages, open_sent = Counter[int](), Counter[int]()
    for tick in last:
        open_stages.update(tick.open_stages)
        if tick.running is not None:
            open_sent[tick.running] += tick.open_sent
    return open_stages, open_sent


def merge_sessions(last: Sequence[Tick]) -> SessionsNow | None:
    """The sessions of all workers; None if none has any."""
    known = [tick.sessions for tick in last if tick.sessions is not None]
    if not known:
        return None
    counts = {
        name: sum(getattr(one, name) for one in known) for name in SessionsNow.__struct_fields__ if name != "rows"
    }
    rows = (row for one in known for row in one.rows)
    return SessionsNow(**counts, rows=nlargest(MAX_SESSION_ROWS, rows, key=attrgetter("context_tokens")))


def rows_by_worker(ticks: Sequence[Tick]) -> dict[int, list[StreamRow]]:
    rows: dict[int, list[StreamRow]] = {}
    for tick in ticks:
        if tick.rows:
            rows.setdefault(tick.worker, []).extend(tick.rows)
    return rows


def seconds_behind(last: Sequence[Tick]) -> float:
    """The age of the slowest worker's last tick."""
    oldest = min((tick.number for tick in last), default=None)
    return 0.0 if oldest is None else round(max(0.0, (time.monotonic_ns() - oldest * TICK_NS) / 1e9), 3)
