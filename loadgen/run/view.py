"""Builds snapshots for the screen from a record, four times a second and without side effects.

A record says what has happened; a live run, or a replay, adds what only it knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from loadgen.format import NO_LOAD, count, counted, number
from loadgen.metrics.mfu import compute_of
from loadgen.metrics.stall import NO_OUTPUT, STALLED
from loadgen.metrics.verdicts import flags, gpu_verdicts, kv_limit, queueing, stage_verdicts
from loadgen.record.curve import LoadCurve, distribution_of, recorded_distribution
from loadgen.record.figures import Baseline, LoadShape, compared_with, load_requested
from loadgen.record.hardware import HardwareRecord, full_host_share
from loadgen.record.output import answer_verdicts
from loadgen.record.record import Record
from loadgen.record.slo import tier_results
from loadgen.record.stage import StageRecord
from loadgen.record.stage_result import (
    limit_facts,
    mean_of,
    requests_of,
    server_sockets,
    stage_compute,
    stage_energy,
    stage_hardware,
)
from loadgen.record.verdicts import session_verdicts, token_verdicts
from loadgen.report.assessment import by_text
from loadgen.report.output import is_of_output, output_words
from loadgen.schema.comparison import BaselineView
from loadgen.schema.deltas import MAIN_LATENCIES, OUTCOMES
from loadgen.schema.engine import EngineStage, EngineView, OthersTraffic
from loadgen.schema.finding import Verdict
from loadgen.schema.hardware_result import ComputeResult, EnergyResult
from loadgen.schema.journal import StageLoad
from loadgen.schema.result import CurvePoint, StageHardware, StageResult
from loadgen.schema.shared import Milestone, RunState
from loadgen.schema.snapshot import (
    ClientView,
    Distribution,
    GpuView,
    LoadView,
    Phase,
    ReplayView,
    SeriesPoint,
    ServerView,
    Snapshot,
)

_CPU_POINTS = 8
_SERVING: tuple[Phase, ...] = ("running", "paused", "draining", "holding")
_SETTLED_S = 5.0  # after a stage's end: by then the last GPU sample and the engine's figures are there
_COMPARED_EVERY_S = 1.0
_QUIET_S = 10.0  # longer than most prefills
_MAX_FAILED = 0.1  # of the streams that ended in the last seconds; with more, the run is failing


class ShownStages:
    """The figures of a record's stages; those of a complete stage are computed once."""

    def __init__(self) -> None:
        self._settled: dict[int, StageResult] = {}
        self._curve = LoadCurve()
        self._unsettled: dict[int, LoadCurve] = {}
        self._energy: dict[int, tuple[int, EnergyResult | None]] = {}

    def of(self, record: Record) -> tuple[StageResult, ...]:
        return tuple(self._figures(index, stage, record) for index, stage in record.stages.items())

    def curve(self) -> tuple[CurvePoint, ...]:
        """The load curve of all stages, as `of` saw them."""
        return self._curve.points(self._unsettled.values())

    def _figures(self, index: int, stage: StageRecord, record: Record) -> StageResult:
        if index in self._settled:
            return self._settled[index]
        self._unsettled[index] = LoadCurve([stage])
        tick, hardware = record.last_tick, record.hardware
        if (
            stage.ended is not None
            and tick is not None
            and index not in tick.open_stages
            and tick.t_s > stage.ended.t_s + _SETTLED_S
        ):
            machine = replace(stage_hardware(stage, hardware), gpu=[], host={})
            self._settled[index] = record.stage_result(stage, machine, with_hdr=False)
            self._curve.add(stage)
            del self._unsettled[index]
            self._energy.pop(index, None)
            return self._settled[index]
        machine = StageHardware(
            energy=self._energy_of(index, stage, record),
            compute=stage_compute(stage, hardware),
            sockets=server_sockets(stage, hardware),
        )
        figures = record.stage_result(stage, machine, with_hdr=False)
        if stage.ended is not None:
            return figures
        # Of a stage that runs, the latest seconds where there are no figures of the whole yet.
        engine = _last_seconds(record.engine) if stage.started.no_load else None
        needs_s, planned_s = stage.e2e_needs_s, stage.started.duration_s
        if needs_s is not None and planned_s is not None:  # beyond its planned end
            needs_s = max(0.0, needs_s - max(0.0, planned_s - stage.window_s))
        return replace(
            figures, stop_reason="", others=record.others, engine=stage.engine or engine, e2e_needs_s=needs_s
        )

    def _energy_of(self, index: int, stage: StageRecord, record: Record) -> EnergyResult | None:
        """The energy of an unsettled stage, computed once per GPU sample."""
        samples = stage.hardware_samples.count
        if self._energy.get(index, (None,))[0] != samples:
            self._energy[index] = (samples, stage_energy(stage, record.hardware))
        return self._energy[index][1]


def _last_seconds(engine: EngineView | None) -> EngineStage | None:
    if engine is None or engine.between_s is None:
        return None
    span_s = engine.between_s[1] - engine.between_s[0]
    rates = (engine.requests_per_s, engine.prompt_tokens_per_s, engine.generation_tokens_per_s)
    requests, prompt, generation = (None if rate is None else round(rate * span_s) for rate in rates)
    return EngineStage(
        latency_ms=engine.latency_ms,
        requests=requests,
        prompt_tokens=prompt,
        generation_tokens=generation,
        errors=engine.errors,
        between_s=engine.between_s,
    )


class BaselineWatch:
    """Compares the running or last stage of a record with the baseline, once a second."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._known: tuple[int, float, BaselineView] | None = None
        self._distributions: dict[LoadShape, Distribution] = {}

    def view(self, record: Record) -> BaselineView | None:
        """The comparison as of now; None before the first stage has figures."""
        stage = record.shown
        if stage is None or record.last_tick is None or not stage.counters["completed"]:
            return None
        index, now_s = stage.started.index, record.last_tick.t_s
        if self._known is not None and self._known[0] == index and now_s < self._known[1] + _COMPARED_EVERY_S:
            return self._known[2]
        # Its energy is known only when it is over.
        result = record.stage_result(stage, StageHardware(), with_hdr=False)
        model = record.server.model if record.server is not None else None
        view = compared_with(self._baseline, result, model, stage.metrics.latency)
        self._known = (index, now_s, view)
        return view

    def distribution(self, record: Record) -> Distribution | None:
        """The baseline's latency distributions under the same load; None if it has no such stage."""
        load = load_requested(record.shown.started) if record.shown is not None else None
        if load is None or load not in self._baseline.stages:
            return None
        if load not in self._distributions:
            measured = self._baseline.stages[load]
            self._distributions[load] = recorded_distribution(self._baseline.name, measured)
        return self._distributions[load]


def snapshot_of(
    record: Record,
    shown: ShownStages,
    *,
    t_s: float,
    unix_s: float,
    profile: str,
    phase: Phase,
    server: ServerView,
    load: LoadView,
    workers: int,
    telemetry: str,
    gpus_stale: bool = False,
    variants: tuple[str, ...] = (),
    result_path: str | None = None,
    past: tuple[SeriesPoint, ...] = (),
    replay: ReplayView | None = None,
    ending: RunState | None = None,
    reason: str = "",
    waiting_for: Sequence[str] = (),
    baseline: BaselineWatch | None = None,
) -> Snapshot:
    """The state of a run now: from its record, with what only a live run, or a replay, knows.

    `reason` is why it ends, as `ending`; `waiting_for` are the processes that a stop waits for.
    """
    client = client_view(record, workers)
    found = gpu_verdicts(record.hardware.facts())
    verdicts = _verdicts(record, found)
    headline = _load_headline(record, phase, client, server, verdicts)
    text, healthy = headline or phase_headline(
        phase,
        server.milestones,
        state=record.finished.state if record.finished is not None else ending,
        reason=reason.partition("\n")[0],
        waiting_for=waiting_for,
        has_server=server.exists,
    )
    records, together, stages = list(record.stages.values()), None, shown.of(record)
    if records:
        still_open = sum(stage.open_sent for stage in records)
        together = StageRecord(records[0].started, metrics=record.total, open_sent=still_open)
    # Published figures next to the running or last stage, or next to all once nothing changes any more.
    referred = records if phase == "done" else filter(None, [record.shown])
    return Snapshot(
        t_s=t_s,
        phase=phase,
        headline=text,
        healthy=healthy,
        server=server,
        point=record.timeline.points[-1] if record.timeline.points else SeriesPoint(t_s=t_s),
        client=client,
        engine=record.engine,
        others=record.others,
        compute=_compute(record),
        stages=stages,
        sessions=record.sessions,
        tiers=tier_results(stages),
        requests=requests_of(together) if together is not None else None,
        latency_ms=together.summaries(*MAIN_LATENCIES) if together is not None else {},
        recent=record.timeline.recent(),
        distributions=tuple(
            distribution_of(stage.started.index + 1, stage.started.label, stage.metrics.latency)
            for stage in records[:-3:-1]
        ),
        curve=shown.curve(),
        events=tuple(record.events),
        findings=record.findings,
        reference=tuple(one for stage in referred for one in record.compared(stage)),
        not_as_published=tuple(one.name for one in record.conditions if one.same is False),
        verdicts=verdicts,
        gpus=_gpu_views(record.hardware, found),
        host=record.hardware.host,
        slo_ms=record.limits.latency_ms,
        search=record.search,
        baseline=baseline.view(record) if baseline is not None else None,
        baseline_distribution=baseline.distribution(record) if baseline is not None else None,
        unix_s=unix_s,
        profile=profile,
        load=load,
        telemetry=telemetry,
        gpus_stale=gpus_stale,
        variants=variants,
        result_path=result_path,
        past=past,
        replay=replay,
    )


def _load_headline(
    record: Record, phase: Phase, client: ClientView, server: ServerView, verdicts: Sequence[Verdict]
) -> tuple[str, bool] | None:
    """The header's line for what the figures show, and whether all is well; None if the phase says more."""
    stalled = next((one.text for one in verdicts if one.id in (STALLED, NO_OUTPUT) and phase in _SERVING), "")
    if stalled:
        return stalled, False
    if phase == "running":
        if not server.exists:
            return _box_headline(verdicts, record.hardware)
        return _running_headline(record, client, server, verdicts)
    if phase == "draining" and (quiet := _quiet_words(record)):
        return f"draining: {quiet}", False
    return None


def _gpu_views(hardware: HardwareRecord, found: Sequence[Verdict]) -> tuple[GpuView, ...]:
    ours = hardware.sockets_of(hardware.now())
    return tuple(
        GpuView(
            gpu,
            hardware.latest.get(gpu.index),
            flags(found, gpu.index),
            hardware.pace(gpu.index),
            of_server=gpu in ours,
        )
        for gpu in hardware.gpus
    )


def _compute(record: Record) -> ComputeResult | None:
    engine, server = record.engine, record.server
    if engine is None or server is None:
        return None
    hardware = record.hardware
    return compute_of(engine, server.command, hardware.sockets_of(hardware.now()))


def client_view(record: Record, workers: int) -> ClientView:
    """The client's health now: CPU over the last two seconds, lags over the running stage."""
    stage = record.current
    client = stage.client if stage is not None else record.client
    recent = [point.client_cpu_percent for point in record.timeline.points[-_CPU_POINTS:]]
    why = stage.limit() if stage is not None else None
    return ClientView(
        timestamps=record.timestamps or "unknown",
        workers=workers,
        cpu_percent=mean_of(recent),
        read_lag_p99_ms=client.read_lag.percentile_ms(99),
        coalesced_share=client.coalesced_share,
        limited=why is not None,
        why=why,
    )


def _verdicts(record: Record, of_gpus: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Verdicts on GPUs, output and the running stage from the latest samples; bad ones first."""
    found = [*of_gpus, *record.run_verdicts()]
    stage, engine, host = record.current, record.engine, record.hardware.host
    if stage is not None:
        hardware = record.hardware
        used = [gpu for gpu in hardware.sockets_of(hardware.now()) if gpu.index in hardware.latest]
        full_share = full_host_share(stage.hardware_samples.host, (stage.metrics.window_start_ns or 0) / 1e9, math.inf)
        looks = [(gpu, hardware.latest[gpu.index]) for gpu in used]
        busy = [(gpu, now.gfx_percent, now.dram_percent, now.memory_percent) for gpu, now in looks if now.gfx_percent]
        host_figures = {} if host is None else msgspec.structs.asdict(host)
        facts = limit_facts(stage, busy, _compute(record), host_figures, full_share, record.others)
        if engine is not None:
            facts = msgspec.structs.replace(facts, waiting=engine.waiting, kv_usage=engine.kv_usage)
        found += stage_verdicts(stage.subject, facts)
        found += _output(record, stage)
    return tuple(sorted(found, key=lambda verdict: not verdict.bad))


def _output(record: Record, stage: StageRecord) -> Iterator[Verdict]:
    index, counters = stage.started.index, stage.counters
    yield from record.canaries.stage_verdicts(index)
    yield from token_verdicts(stage)
    yield from session_verdicts(stage)
    yield from answer_verdicts(stage, record.stages.values(), record.urls, record.engine)
    canary = record.canaries.stage(index, counters["sent"] + counters["warmup"])
    words = output_words(canary, stage.answers)
    if words is not None:
        yield Verdict("output", stage.subject, words, bad=False)


def load_view(
    requested: StageLoad | None,
    record: Record,
    t_s: float,
    *,
    stage: int,
    stages_planned: int,
    paused: bool,
    manual: bool,
    held_open: bool = False,
) -> LoadView:
    """The load at a moment: requested and held."""
    tick, running = record.last_tick, record.current
    concurrency, rate = (requested.concurrency, requested.rate) if requested is not None else (None, None)
    if running is not None and running.started.steps:
        load = running.started.load_at(running.measured_s(t_s)) or 0.0
        concurrency, rate = (int(load), None) if rate is None else (None, load)
    if record.shown is not None:
        in_sessions = record.shown.started.in_sessions
    else:  # before the first stage, by the profile
        load_settings = record.run.profile.get("load") if record.run is not None else None
        in_sessions = bool((load_settings or {}).get("sessions"))
    return LoadView(
        concurrency=concurrency,
        rate=rate,
        held=tick.held if tick is not None else 0,
        queued=tick.queued if tick is not None else 0,
        isl=requested.isl if requested is not None else 0,
        osl=requested.osl if requested is not None else 0,
        in_sessions=in_sessions,
        stage_elapsed_s=t_s - running.started.t_s if running is not None else 0.0,
        stage_progress=_progress(requested, running, t_s) if requested is not None and running is not None else None,
        waits_for=running.waits_for if running is not None else "",
        stage=stage,
        stages_planned=stages_planned,
        paused=paused,
        manual=manual,
        held_open=held_open,
    )


def _progress(stage: StageLoad, running: StageRecord, t_s: float) -> float | None:
    """How much of a bounded stage is done, 0 to 1; None without a bound."""
    done = []
    if stage.duration_s:
        done.append(running.measured_s(t_s) / stage.duration_s)
    if stage.requests:
        done.append(sum(running.counters[name] for name in OUTCOMES) / stage.requests)
    return min(1.0, max(done)) if done else None


def phase_headline(
    phase: Phase,
    milestones: Sequence[Milestone] = (),
    *,
    state: RunState | None = None,
    reason: str = "",
    waiting_for: Sequence[str] = (),
    has_server: bool = True,
) -> tuple[str, bool]:
    """One line for the header that says what a run that sends no load is doing, and whether all is well."""
    waits = f"stopping: waits for {', '.join(waiting_for)}" if waiting_for else ""
    words: dict[Phase, str] = {
        "checking": "preflight: looking at profile, installation and box",
        "blocked": "preflight: the start would fail",
        "starting": f"server starting: {_milestone_words(milestones)}" if has_server else "starting: no server",
        "probing": "server ready: asking what it serves" if has_server else "starting: no server",
        "paused": "paused",
        "draining": "draining: waiting for the streams on their way",
        "holding": "the plan is done, the server is up",
        "restarting": waits or "stopping: the server, to start it again",
        "stopping": waits or f"stopping: {reason}",
        "failed": reason,
        "done": f"{state}: {reason}",
    }
    ends_badly = phase in ("stopping", "done") and state not in ("complete", "stopped")
    return words[phase], not (ends_badly or phase in ("blocked", "failed"))


def _milestone_words(milestones: Sequence[Milestone]) -> str:
    for milestone in reversed(milestones):
        if milestone.state == "running":
            return f"{milestone.label} {milestone.detail}".strip()
    coming = [milestone.label for milestone in milestones if milestone.state == "waiting"]
    return f"next: {coming[0]}" if coming else "waiting for its answer"


def _running_headline(
    record: Record, client: ClientView, server: ServerView, verdicts: Sequence[Verdict]
) -> tuple[str, bool]:
    """The header's line while the run sends load, or watches others' load, and whether all is well."""
    engine, others, counters = record.engine, record.others, record.total.counters
    failed, completed = record.timeline.recent_ends()
    silent, several = sum(one.state == "unreachable" for one in server.instances), len(server.instances)
    if silent:
        return f"{silent} of {several} servers {'does' if silent == 1 else 'do'} not answer", False
    if server.state == "unreachable":
        return "the server does not answer", False
    if quiet := _quiet_words(record):
        return quiet, False
    if record.current is not None and record.current.started.no_load:
        return _limit_of(engine) or _no_load_words(engine, others), True
    errors = sum(counters[name] for name in ("failed", "warmup_failed", "carried_failed"))
    wrong_output = next((one.text for one in verdicts if is_of_output(one)), None)
    if wrong_output is not None and not _is_failing(failed, completed):
        return wrong_output, False
    text, healthy = load_headline(client, engine, failed=failed, completed=completed, errors=errors)
    bad = _bad_words(verdicts)
    if healthy and bad:
        subject = record.current.subject if record.current is not None else ""
        return bad.removeprefix(f"{subject}: "), False
    stage = record.current
    if text == "ok" and stage is not None and stage.started.rate is not None:
        loop = stage.open_loop
        text = loop.words(stage.started.rate) if loop is not None and loop.behind else text
    return f"{text}, not alone" if healthy and others is not None and others.seen else text, healthy


def _box_headline(verdicts: Sequence[Verdict], hardware: HardwareRecord) -> tuple[str, bool]:
    """The header's line of a run without a server: the worst of the GPUs, and whether all is well."""
    bad, gpus = _bad_words(verdicts), len(hardware.gpus)
    known = sum(sample.has_figures for sample in hardware.latest.values())
    if bad or not known:
        return bad or "no GPUs measured", not bad
    return f"nothing bad on {f'{known} of ' if known < gpus else ''}{counted(gpus, 'GPU')}", True


def _bad_words(verdicts: Sequence[Verdict]) -> str:
    """The first of the bad verdicts, with all its subjects, and how many others there are."""
    first, *others = by_text(verdict for verdict in verdicts if verdict.bad) or [""]
    return f"{first}, and {len(others)} more" if others else first


def _quiet_words(record: Record) -> str:
    quiet_s = record.timeline.quiet_s
    if quiet_s < _QUIET_S:
        return ""
    waiting = counted(record.open_streams, "stream")
    return f"no output for {quiet_s:.0f} s: {waiting} open, to fail after load.stall_timeout_s"


def load_headline(
    client: ClientView, engine: EngineView | None, *, failed: int, completed: int, errors: int
) -> tuple[str, bool]:
    """`failed` and `completed` streams of the last seconds, and all `errors` of the run."""
    if _is_failing(failed, completed):
        return f"failing: {failed} of the last {counted(failed + completed, 'request')}", False
    if client.limited:
        return f"client-limited, not trustworthy: {client.why}", False
    return _limit_of(engine) or ("ok" if not errors else f"ok, {errors} failed"), True


def _is_failing(failed: int, completed: int) -> bool:
    return failed > 0 and failed >= _MAX_FAILED * (failed + completed)


def _limit_of(engine: EngineView | None) -> str | None:
    if engine is None:
        return None
    return kv_limit(engine.waiting, engine.kv_usage) or queueing(engine.waiting)


def _no_load_words(engine: EngineView | None, others: OthersTraffic | None) -> str:
    if engine is None or others is None:
        return NO_LOAD
    if not others.seen:
        return f"{NO_LOAD}, and others send none"
    return f"{NO_LOAD}; others: {count(others.running)} running, {number(others.generation_tokens_per_s)} tok/s out"
