"""The tick of a whole fleet, which is all that a run knows of its workers."""

from __future__ import annotations

from loadgen.schema.deltas import StreamRow
from loadgen.schema.journal import TickNumbers


class FleetTick(TickNumbers, frozen=True, kw_only=True):
    """What all workers did in a tick, merged."""

    first_wave_waiting: int | None
    """Streams of the first wave without a first token; None until the stage has begun on every worker."""
    finished: int | None  # the running stage, once all requests of every live worker have been answered
    finished_why: str
    deaths: tuple[str, ...] = ()  # one message for each worker that died since the last tick
    news: tuple[str, ...] = ()  # other messages about the workers
    clock_moves: tuple[tuple[str, int], ...] = ()  # hosts whose clock was moved, and by how many nanoseconds
    rows: dict[int, list[StreamRow]]  # of the streams that ended, by worker, if rows are wanted
