"""Merges ticks: those of one worker, of several workers, of hosts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from loadgen.fleet.host import Host
from loadgen.fleet.worker import Worker
from loadgen.metrics.stage import ClientMetrics, StageMetrics
from loadgen.schema.deltas import ClientDelta, StageDelta, StreamRow
from loadgen.schema.hosts import HostTick
from loadgen.worker.messages import TICK_NS, Tick


class WorkerTicks(msgspec.Struct, frozen=True):
    """The new ticks of one worker, and what was lost with it."""

    instance: int
    host: str
    ticks: list[Tick]
    stages: dict[int, StageDelta]
    last: Tick | None  # its latest tick ever, if it is alive
    shares: bool  # whether it is alive and shares the running stage
    most_held: int  # open streams in the new ticks and the one before: ticks of two workers may lie one apart


def new_ticks(worker: Worker, *, shares: bool) -> WorkerTicks:
    """What a worker did since the last call; `shares`: whether it was given a share of the running stage."""
    before = worker.reported
    ticks, lost = worker.take()
    return WorkerTicks(
        instance=worker.instance,
        host=worker.host.name,
        ticks=ticks,
        stages=merge_stages([*(tick.stages for tick in ticks), lost]),
        last=worker.last if worker.ready else None,
        shares=shares and worker.ready,
        most_held=max((tick.most_held for tick in (*before, *ticks)), default=0),
    )


def host_tick(host: Host, parts: Sequence[WorkerTicks], *, workers_lost: int) -> HostTick:
    """One host's part of a merged tick, from those of its workers."""
    last = [part.last for part in parts if part.last is not None]
    return HostTick(
        stages=merge_stages([part.stages for part in parts], peak=sum),
        client=merge_clients([tick for part in parts for tick in part.ticks], workers_lost=workers_lost),
        held=sum(tick.held for tick in last),
        workers=len(last),
        sharing=sum(part.shares for part in parts),
        rss_bytes=sum(tick.rss_bytes for tick in last),
        offset_ns=host.offset_ns,
        uncertainty_ns=host.uncertainty_ns,
        rtt_ns=host.rtt_ns,
        lost=host.lost is not None,
    )


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


def merge_stages(
    parts: Sequence[dict[int, StageDelta]], *, peak: Callable[[Iterable[int]], int] = max
) -> dict[int, StageDelta]:
    """The deltas summed by stage; `peak` merges peaks: `max` over one worker's ticks, `sum` over concurrent workers."""
    by_stage: dict[int, list[StageDelta]] = {}
    for stages in parts:
        for index, delta in stages.items():
            by_stage.setdefault(index, []).append(delta)
    # With the usual single worker, its delta is already the sum.
    return {
        index: deltas[0]
        if len(deltas) == 1
        else msgspec.structs.replace(StageMetrics.of(*deltas).encode(), peak=peak(delta.peak for delta in deltas))
        for index, deltas in by_stage.items()
    }
