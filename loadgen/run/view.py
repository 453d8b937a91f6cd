"""From a record to a snapshot: what the screen draws, computed four times a second. Nothing here changes anything."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadgen.metrics.health import StageFacts, flags, gpu_verdicts, stage_verdicts
from loadgen.metrics.journal import RunState
from loadgen.metrics.record import Record
from loadgen.metrics.snapshot import (
    ClientView,
    EngineView,
    ErrorView,
    GpuView,
    Liveness,
    LoadView,
    Milestone,
    Phase,
    Point,
    ServerView,
    Snapshot,
    StageView,
    Verdict,
)
from loadgen.metrics.stage import StageMetrics
from loadgen.metrics.stage_hardware import stage_energy
from loadgen.metrics.stage_record import StageRecord
from loadgen.metrics.verdict import engine_limit
from loadgen.plan import Stage
from loadgen.profile import Profile
from loadgen.run.hardware import HardwareWatch
from loadgen.run.probe import Served
from loadgen.run.servers import Servers
from loadgen.run.steering import Steering
from loadgen.server.outcome import ProcessName
from loadgen.text import harmless

_SHOWN = ("ttft", "tpot", "itl", "e2e")
_CPU_POINTS = 8


_SETTLED_S = 1.0


class StageViews:
    """The views of a record's stages; one of which nothing more can come is computed once."""

    def __init__(self) -> None:
        self._settled: dict[int, StageView] = {}
        self._energy: dict[int, tuple[int, dict[str, float | None]]] = {}

    def of(self, record: Record) -> tuple[StageView, ...]:
        """All stages, oldest first."""
        return tuple(self._view(index, stage, record) for index, stage in record.stages.items())

    def _view(self, index: int, stage: StageRecord, record: Record) -> StageView:
        if index in self._settled:
            return self._settled[index]
        view = msgspec.structs.replace(stage_view(stage, record), **self._energy_of(index, stage, record))
        tick = record.last_tick
        silent = tick is not None and index not in tick.open_stages
        if stage.ended is not None and tick is not None and silent and tick.t_s > stage.ended.t_s + _SETTLED_S:
            self._settled[index] = view
        return view

    def _energy_of(self, index: int, stage: StageRecord, record: Record) -> dict[str, float | None]:
        """Computed once for each look at the GPUs."""
        known = self._energy.get(index)
        if known is not None and known[0] == stage.looks.count:
            return known[1]
        energy = stage_energy(stage, record.hardware)
        numbers = {
            "joules_per_output_token": energy.joules_per_output_token if energy is not None else None,
            "tokens_per_s_per_w": energy.tokens_per_s_per_w if energy is not None else None,
        }
        self._energy[index] = (stage.looks.count, numbers)
        return numbers


def stage_view(stage: StageRecord, record: Record) -> StageView:
    """One stage so far."""
    started = stage.started
    slo = stage.slo(_slo_ms(record))
    now_s = record.points[-1].t_s if record.points else started.t_s
    end_s = stage.ended.t_s if stage.ended is not None else now_s
    return StageView(
        number=started.index + 1,
        label=started.label,
        concurrency=started.concurrency,
        rate=started.rate,
        isl=started.isl,
        osl=started.osl,
        running=stage.ended is None,
        elapsed_s=max(0.0, end_s - started.t_s),
        slo_met=all(check.met for check in slo.values()) if slo and stage.counters["completed"] else None,
        stop_reason=stage.ended.reason if stage.ended is not None else None,
        **_numbers(stage),
    )


def whole_view(stages: Sequence[StageRecord], total: StageMetrics) -> StageView | None:
    """All stages together; None before the first."""
    if not stages:
        return None
    whole = StageRecord(stages[0].started)
    whole.metrics = total
    return StageView(
        number=0,
        label="whole run",
        concurrency=None,
        rate=None,
        isl=0,
        osl=0,
        running=stages[-1].ended is None,
        elapsed_s=total.window_s,
        **_numbers(whole),
    )


def _numbers(stage: StageRecord) -> dict[str, Any]:
    """The fields of a `StageView` that are measured."""
    counts = {name: stage.counters[name] for name in ("sent", "completed", "failed", "unfinished")}
    return counts | {
        "held_mean": stage.held_mean,
        "requests_per_s": stage.per_second("window_requests"),
        "output_tokens_per_s": stage.per_second("window_output_tokens"),
        "total_tokens_per_s": stage.per_second("window_input_tokens", "window_output_tokens"),
        "latency": stage.summaries(*_SHOWN),
    }


def client_view(record: Record, workers: int) -> ClientView:
    """The client's health now: CPU over the last two seconds, lags over the running stage."""
    stage = record.current
    client = stage.client if stage is not None else record.client
    recent = [point.client_cpu_percent for point in record.points[-_CPU_POINTS:]]
    known = [percent for percent in recent if percent is not None]
    why = stage.limit() if stage is not None else None
    return ClientView(
        timestamps=record.timestamps or "unknown",
        workers=workers,
        cpu_percent=sum(known) / len(known) if known else None,
        read_lag_p99_ms=client.read_lag.percentile_ms(99),
        coalesced_share=client.coalesced_share,
        limited=why is not None,
        why=why,
    )


def error_views(total: StageMetrics) -> tuple[ErrorView, ...]:
    """Failures by kind, the most frequent first."""
    views = [
        ErrorView(kind=kind, count=count, message=(total.messages.get(kind) or [""])[0])
        for kind, count in total.errors.items()
    ]
    return tuple(sorted(views, key=lambda view: -view.count))


class Parts(msgspec.Struct, frozen=True):
    """The parts of a run that a snapshot is made of."""

    t_s: float
    phase: Phase
    profile: Profile
    stages_planned: int
    record: Record
    steering: Steering
    servers: Servers
    hardware: HardwareWatch
    served: Served | None
    engine: EngineView | None
    engines: list[EngineView | None]
    """Of each server."""
    workers: int
    ending: RunState | None
    reason: str
    result_path: Path | None


def snapshot_of(parts: Parts, views: StageViews) -> Snapshot:
    """The state of the run now."""
    record = parts.record
    client = client_view(record, parts.workers)
    facts = HeadlineFacts(
        phase=parts.phase,
        client=client,
        engine=parts.engine,
        errors=record.total.counters["failed"],
        completed=record.total.counters["completed"],
        milestones=parts.servers.milestones,
        state=record.finished.state if record.finished is not None else parts.ending,
        reason=parts.reason,
        waiting_for=parts.servers.waiting_for,
    )
    text, healthy = headline(facts)
    shown = record.current or next(reversed(record.stages.values()), None)
    return Snapshot(
        t_s=parts.t_s,
        unix_s=time.time(),
        phase=parts.phase,
        profile=parts.profile.name,
        headline=text,
        healthy=healthy,
        server=_server_view(parts),
        load=_load_view(parts),
        point=record.points[-1] if record.points else Point(t_s=parts.t_s),
        client=client,
        engine=record.last_tick.engine if record.last_tick is not None else None,
        stages=views.of(record),
        whole=whole_view(list(record.stages.values()), record.total),
        errors=error_views(record.total),
        events=tuple(record.events),
        findings=record.findings,
        reference=tuple(record.compared(shown)) if shown is not None else (),
        verdicts=verdicts_of(record),
        **_hardware_view(parts),
        result_path=str(parts.result_path) if parts.result_path is not None else None,
    )


def _server_view(parts: Parts) -> ServerView:
    servers, served, settings = parts.servers, parts.served, parts.profile.server
    return ServerView(
        engine=settings.engine,
        url=servers.url,
        state="ready" if settings.engine == "attach" and served is not None else servers.state,
        model=harmless(served.model) if served is not None else settings.served_model_name or settings.model,
        version=harmless(served.version or "") or None if served is not None else None,
        pid=servers.pid,
        uptime_s=parts.t_s,
        milestones=servers.milestones,
        log_tail=servers.log_lines,
        expected_s=servers.expected_s,
        liveness=_liveness(parts),
        diagnosis=servers.diagnosis,
        instances=servers.views(parts.engines),
    )


def verdicts_of(record: Record) -> tuple[Verdict, ...]:
    """Of GPUs and of the running stage, as far as the last looks tell; the bad ones first."""
    found = gpu_verdicts(record.hardware.facts())
    if record.current is not None:
        found += stage_verdicts(f"stage {record.current.started.index + 1}", _facts_now(record.current, record))
    return tuple(sorted(found, key=lambda verdict: not verdict.bad))


def _facts_now(stage: StageRecord, record: Record) -> StageFacts:
    hardware, engine = record.hardware, record.last_tick.engine if record.last_tick is not None else None
    busy = [sample for sample in hardware.latest.values() if (sample.gfx_percent or 0.0) > 0]
    return StageFacts(
        client_limit=stage.limit(),
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


def _hardware_view(parts: Parts) -> dict[str, Any]:
    hardware = parts.record.hardware
    found = gpu_verdicts(hardware.facts())
    gpus = (GpuView(gpu, hardware.latest.get(gpu.index), flags(found, gpu.index)) for gpu in hardware.gpus)
    return {
        "gpus": tuple(gpus),
        "gpus_stale": parts.hardware.stale,
        "telemetry": parts.hardware.words,
        "host": hardware.host,
    }


def _liveness(parts: Parts) -> Liveness | None:
    """What the server's processes do while it starts; with the memory in use on all GPUs."""
    life = parts.servers.liveness if parts.phase == "starting" else None
    used = [sample.hbm_used_bytes for sample in parts.record.hardware.latest.values() if sample.hbm_used_bytes]
    return msgspec.structs.replace(life, hbm_used_bytes=sum(used)) if life is not None and used else life


def _load_view(parts: Parts) -> LoadView:
    steering, tick = parts.steering, parts.record.last_tick
    stage = steering.current or steering.last
    running = parts.record.current
    elapsed_s = parts.t_s - running.started.t_s if running is not None else 0.0
    return LoadView(
        stage=steering.index + 1,
        stages_planned=parts.stages_planned,
        concurrency=stage.concurrency,
        rate=stage.rate,
        held=tick.held if tick is not None else 0,
        queued=tick.queued if tick is not None else 0,
        isl=stage.isl,
        osl=stage.osl,
        paused=steering.paused,
        manual=steering.manual,
        stage_elapsed_s=elapsed_s,
        stage_progress=progress(stage, running, elapsed_s),
    )


def progress(stage: Stage, running: StageRecord | None, elapsed_s: float) -> float | None:
    """How much of a bounded stage is done, 0 to 1; None without a bound."""
    if running is None or (stage.requests is None and stage.duration_s is None):
        return None
    done = 0.0
    if stage.duration_s is not None:
        settled = running.settled
        measured_s = elapsed_s if settled is None else elapsed_s - (settled.t_s - running.started.t_s)
        waits = stage.settle_s > 0 and settled is None
        done = 0.0 if waits else measured_s / (stage.warmup_s + stage.duration_s)
    if stage.requests is not None:
        counters = running.counters
        ended = sum(counters[name] for name in ("completed", "failed", "unfinished", "cancelled"))
        done = max(done, ended / stage.requests)
    return min(1.0, done)


class HeadlineFacts(msgspec.Struct, frozen=True):
    """What the verdict in the header is made of."""

    phase: Phase
    client: ClientView
    engine: EngineView | None
    errors: int
    completed: int
    milestones: tuple[Milestone, ...]
    state: RunState | None
    reason: str
    waiting_for: tuple[ProcessName, ...] = ()


def headline(facts: HeadlineFacts) -> tuple[str, bool]:
    """The verdict in words, and whether all is well."""
    first_line = facts.reason.partition("\n")[0]
    match facts.phase:
        case "done":
            return f"{facts.state}: {first_line}", facts.state in ("complete", "stopped")
        case "checking":
            return "preflight: looking at profile, installation and box", True
        case "blocked":
            return "preflight: the start would fail; x starts all the same, q leaves", False
        case "stopping":
            return _stopping_words(facts, first_line), facts.state in ("complete", "stopped")
        case "starting":
            return f"server starting: {_milestone_words(facts.milestones)}", True
        case "probing":
            return "server ready: asking what it serves", True
        case "paused":
            return "paused", True
        case "draining":
            return "draining: waiting for the streams on their way", True
        case "holding":
            return "the plan is done: load keys go on, q finishes", True
        case "running":
            return _load_headline(facts)


def _stopping_words(facts: HeadlineFacts, reason: str) -> str:
    waiting = ", ".join(f"{process.name} ({process.pid})" for process in facts.waiting_for)
    return f"stopping: waits for {waiting}" if waiting else f"stopping: {reason}"


def _milestone_words(milestones: tuple[Milestone, ...]) -> str:
    for milestone in reversed(milestones):
        if milestone.state == "running":
            return f"{milestone.label} {milestone.detail}".strip()
    coming = [milestone.label for milestone in milestones if milestone.state == "waiting"]
    return f"next: {coming[0]}" if coming else "waiting for its answer"


def _load_headline(facts: HeadlineFacts) -> tuple[str, bool]:
    errors, completed = facts.errors, facts.completed
    if errors and errors >= completed:
        return f"failing: {errors} of {errors + completed} requests", False
    if facts.client.limited:
        return f"client-limited, not trustworthy: {facts.client.why}", False
    limit = engine_limit(facts.engine)
    if limit is not None:
        return limit, True
    return ("ok" if not errors else f"ok, {errors} failed"), True


def _slo_ms(record: Record) -> dict[str, float]:
    return (record.run.profile.get("slo") if record.run is not None else None) or {}
