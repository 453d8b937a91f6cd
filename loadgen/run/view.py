"""From a record to a snapshot: what the screen draws, computed four times a second. Nothing here changes anything.

A record says what has happened; `Now` adds what it cannot say, because only the run that goes on knows it, or the
replay that plays it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from loadgen.metrics.deltas import OUTCOMES
from loadgen.metrics.journal import RunState, StageStarted
from loadgen.metrics.record import Record
from loadgen.metrics.result import BaselineView, Comparison, Verdict
from loadgen.metrics.snapshot import (
    ClientView,
    Distribution,
    ErrorView,
    GpuView,
    LoadView,
    Phase,
    Point,
    ReplayView,
    ServerView,
    Snapshot,
)
from loadgen.metrics.stage import StageMetrics
from loadgen.metrics.stage_record import StageRecord
from loadgen.metrics.verdicts import StageFacts, flags, gpu_verdicts, stage_verdicts
from loadgen.plan import Stage
from loadgen.run.headline import HeadlineFacts, headline
from loadgen.run.stage_views import StageViews, distributions, whole_view

_CPU_POINTS = 8


class Now(msgspec.Struct, frozen=True):
    """What a record does not say of the present moment."""

    t_s: float
    unix_s: float
    phase: Phase
    profile: str
    server: ServerView
    load: LoadView
    workers: int
    ending: RunState | None = None
    reason: str = ""
    waiting_for: tuple[str, ...] = ()  # processes that a stop waits for
    gpus_stale: bool = False
    telemetry: str = ""
    result_path: str | None = None
    variants: tuple[str, ...] = ()
    past: tuple[Point, ...] = ()  # points before the newest that no snapshot has told
    replay: ReplayView | None = None
    baseline: BaselineView | None = None
    baseline_distribution: Distribution | None = None


def snapshot_of(record: Record, now: Now, views: StageViews) -> Snapshot:
    """The state of the run now."""
    client = client_view(record, now.workers)
    text, healthy = headline(_headline_facts(record, now, client))
    of_gpus = gpu_verdicts(record.hardware.facts())
    return Snapshot(
        t_s=now.t_s,
        unix_s=now.unix_s,
        phase=now.phase,
        profile=now.profile,
        headline=text,
        healthy=healthy,
        server=now.server,
        load=now.load,
        point=record.points[-1] if record.points else Point(t_s=now.t_s),
        client=client,
        engine=record.engine,
        stages=views.of(record),
        whole=whole_view(list(record.stages.values()), record.total),
        recent=record.recent(),
        distributions=distributions(record),
        curve=views.curve(record),
        errors=error_views(record.total),
        events=tuple(record.events),
        findings=record.findings,
        reference=_references(record, now.phase),
        verdicts=_verdicts(record, of_gpus),
        gpus=_gpu_views(record, of_gpus),
        gpus_stale=now.gpus_stale,
        telemetry=now.telemetry,
        host=record.hardware.host,
        slo_ms=record.limits.latency_ms,
        search=record.search,
        variants=now.variants,
        result_path=now.result_path,
        past=now.past,
        replay=now.replay,
        baseline=now.baseline,
        baseline_distribution=now.baseline_distribution,
    )


def _references(record: Record, phase: Phase) -> tuple[Comparison, ...]:
    """Of the running or last stage; of all of them once nothing changes any more."""
    stages = record.stages.values() if phase == "done" else filter(None, [record.shown])
    return tuple(one for stage in stages for one in record.compared(stage))


def _headline_facts(record: Record, now: Now, client: ClientView) -> HeadlineFacts:
    return HeadlineFacts(
        phase=now.phase,
        client=client,
        engine=record.engine,
        errors=sum(record.total.counters[name] for name in ("failed", "warmup_failed", "carried_failed")),
        completed=record.total.counters["completed"],
        milestones=now.server.milestones,
        state=record.finished.state if record.finished is not None else now.ending,
        reason=now.reason,
        waiting_for=now.waiting_for,
    )


def client_view(record: Record, workers: int) -> ClientView:
    """The client's health now: CPU over the last two seconds, lags over the running stage."""
    stage = record.current
    client = stage.client if stage is not None else record.client
    recent = [point.client_cpu_percent for point in record.points[-_CPU_POINTS:]]
    why = stage.limit() if stage is not None else None
    return ClientView(
        timestamps=record.timestamps or "unknown",
        workers=workers,
        cpu_percent=_mean(recent),
        read_lag_p99_ms=client.read_lag.percentile_ms(99),
        coalesced_share=client.coalesced_share,
        limited=why is not None,
        why=why,
    )


def error_views(total: StageMetrics) -> tuple[ErrorView, ...]:
    """Failures by kind, the most frequent first."""
    views = [
        ErrorView(
            kind=kind,
            count=count,
            message=(total.messages.get(kind) or [""])[0],
            examples=tuple(total.messages.get(kind) or ()),
        )
        for kind, count in total.errors.items()
    ]
    return tuple(sorted(views, key=lambda view: -view.count))


def _verdicts(record: Record, of_gpus: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Of GPUs and of the running stage, as far as the last looks tell; the bad ones first."""
    found = list(of_gpus)
    if record.current is not None:
        found += stage_verdicts(f"stage {record.current.started.index + 1}", _facts_now(record.current, record))
    return tuple(sorted(found, key=lambda verdict: not verdict.bad))


def _facts_now(stage: StageRecord, record: Record) -> StageFacts:
    hardware, engine = record.hardware, record.engine
    busy = [sample for sample in hardware.latest.values() if (sample.gfx_percent or 0.0) > 0]
    return StageFacts(
        client_limit=stage.limit(),
        capped=stage.capped(),
        waiting=engine.waiting if engine is not None else None,
        kv_usage=engine.kv_usage if engine is not None else None,
        gfx_percent=_mean(sample.gfx_percent for sample in busy),
        memory_percent=_mean(sample.memory_percent for sample in busy),
        host_percent=hardware.host.cpu_percent if hardware.host is not None else None,
        busiest_core_percent=hardware.host.cpu_busiest_percent if hardware.host is not None else None,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _gpu_views(record: Record, of_gpus: Sequence[Verdict]) -> tuple[GpuView, ...]:
    hardware = record.hardware
    return tuple(GpuView(gpu, hardware.latest.get(gpu.index), flags(of_gpus, gpu.index)) for gpu in hardware.gpus)


def load_view(
    asked: Stage | StageStarted | None,
    record: Record,
    *,
    t_s: float,
    **known: Any,  # noqa: ANN401 - fields of LoadView
) -> LoadView:
    """The load at a moment: what is asked for and what is held; `known` are the fields that a record lacks."""
    tick, running = record.last_tick, record.current
    elapsed_s = t_s - running.started.t_s if running is not None else 0.0
    concurrency = asked.concurrency if asked is not None else None
    rate = asked.rate if asked is not None else None
    if running is not None and running.started.steps:
        load = running.started.load_at(running.measured_s(t_s)) or 0.0
        concurrency, rate = (int(load), None) if rate is None else (None, load)
    return LoadView(
        concurrency=concurrency,
        rate=rate,
        held=tick.held if tick is not None else 0,
        queued=tick.queued if tick is not None else 0,
        isl=asked.isl if asked is not None else 0,
        osl=asked.osl if asked is not None else 0,
        stage_elapsed_s=elapsed_s,
        stage_progress=progress(asked, running, elapsed_s) if asked is not None else None,
        **known,
    )


def progress(stage: Stage | StageStarted, running: StageRecord | None, elapsed_s: float) -> float | None:
    """How much of a bounded stage is done, 0 to 1; None without a bound."""
    if running is None or (stage.requests is None and stage.duration_s is None):
        return None
    done = 0.0
    if stage.duration_s is not None:
        measured_s = running.measured_s(running.started.t_s + elapsed_s)
        done = measured_s / stage.duration_s
    if stage.requests is not None:
        counters = running.counters
        ended = sum(counters[name] for name in OUTCOMES)
        done = max(done, ended / stage.requests)
    return min(1.0, done)
