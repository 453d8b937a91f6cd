"""The fold of a run's journal: every number on the screen and in the result comes from here.

`Record.apply` takes one line after another, live or from a file; nothing else changes a record. So a killed run's
journal can be folded into its result, and screen, table and JSON cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import msgspec

from loadgen.format import iso_time
from loadgen.metrics.frontier import Price, price_of
from loadgen.metrics.others import LAG_S, Traffic, others_of
from loadgen.metrics.stage import ClientMetrics, StageMetrics
from loadgen.metrics.stall import NO_OUTPUT, STALLED, Stall, StallSample, StallWatch
from loadgen.profile.schema import Reference
from loadgen.record.crosscheck import account_of
from loadgen.record.curve import LoadCurve
from loadgen.record.hardware import HardwareRecord
from loadgen.record.output import CanaryRecord
from loadgen.record.reference import compare, conditions, published_reference, requested_server
from loadgen.record.slo import limits_of, tier_results
from loadgen.record.stage import FIRST_TOKENS, StageRecord
from loadgen.record.stage_result import (
    run_health,
    stage_compute,
    stage_hardware,
    stage_result,
    summarise_hardware,
)
from loadgen.record.start import start_verdicts
from loadgen.record.timeline import RunTimeline
from loadgen.schema.comparison import Comparison, Condition, PublishedRatio, ReferenceResult
from loadgen.schema.deltas import SessionsNow
from loadgen.schema.engine import EngineView, OthersTraffic, OwnRequests
from loadgen.schema.finding import Finding, Verdict
from loadgen.schema.journal import (
    CanaryMeasured,
    Checked,
    ClockMoved,
    DevicesChosen,
    EngineMeasured,
    EnginesQuiet,
    GpusSampled,
    Happened,
    HostSampled,
    HostsJoined,
    Line,
    ReferenceDisturbed,
    RunFinished,
    RunStarted,
    SearchEnded,
    ServerChanged,
    StageEnded,
    StageSettled,
    StageStarted,
    TelemetryChanged,
    Ticked,
    WorkersPlaced,
)
from loadgen.schema.result import ClientResult, Limits, Result, RunEvent, StageHardware, StageResult
from loadgen.schema.shared import HostFacts, Placement, RunState, SearchResult
from loadgen.schema.start import ServerResult

_EVENTS_OF_A_KIND = 1_000
_LONG_OVER_S = 60.0  # a stage that ended this long ago gets no more reports about its engine or GPUs


class Record:
    """A run, up to the last line of its journal."""

    def __init__(self) -> None:
        self.run: RunStarted | None = None
        self.findings: tuple[Finding, ...] = ()
        self.hardware = HardwareRecord()
        self.server: ServerChanged | None = None
        self.server_starts: list[ServerChanged] = []
        self.server_since_s = 0.0  # since when the server has been in its state
        self.placement: Placement | None = None
        self.stages: dict[int, StageRecord] = {}
        self.current: StageRecord | None = None
        self._earlier: list[StageRecord] = []  # not summarised yet; the last two are shown, and not among them
        self.total = StageMetrics()  # all stages together
        self.client = ClientMetrics()
        self.events: list[RunEvent] = []
        """All events, but only the first few of a kind that repeats endlessly."""
        self.timeline = RunTimeline()
        self.last_tick: Ticked | None = None
        self.finished: RunFinished | None = None
        self.search: SearchResult | None = None
        self.traffic = Traffic()
        self.canaries = CanaryRecord()
        self.ended_stalls: list[Stall] = []  # with the last tick
        self._restarted_stalls: list[Verdict] = []  # that ended with a restart of the server
        self._begin_stalls()
        self.hosts: tuple[HostFacts, ...] = ()  # of the cluster, if the load comes from one
        self.limits, self.price = Limits(), Price()  # of the profile
        self._reference: Reference | None = None
        self._events_by_kind: Counter[str] = Counter()
        self._begin_span()

    def apply(self, line: Line) -> None:
        match line:
            case StageEnded() | StageSettled() | EngineMeasured() if line.index not in self.stages:
                pass  # of a damaged journal that has lost the line with which the stage began
            case Ticked():
                self._tick(line)
            case StageStarted():
                self._begin_stage(line)
            case StageEnded():
                self.current, stage = None, self.stages[line.index]
                stage.ended = line
                # Each GPU's next sample is still needed, for the edge of the window.
                stage.hardware_samples.until_s = self.hardware.began_s + line.t_s
            case GpusSampled():
                self.hardware.sampled(line)
            case HostSampled():
                self.hardware.host_sampled(line)
            case TelemetryChanged():
                self.hardware.gpus, self.hardware.meta = line.gpus, line.meta
            case DevicesChosen():
                self.hardware.choose(line.devices)
            case StageSettled():
                self.stages[line.index].settled = line
            case SearchEnded():
                self.search = line.search
            case EngineMeasured():
                stage = self.stages[line.index]
                stage.engine = line.engine
                stage.others = others_of(line.engine, self.traffic.own, stage.others_running)
                for number, engine in enumerate(line.instances):
                    stage.part(number).engine = engine
            case EnginesQuiet():
                self._end_span(line)
            case CanaryMeasured():
                self.canaries.apply(line)
                if line.when != "before":
                    self._span_canaries += line.traffic
                if line.index in self.stages:
                    self.stages[line.index].canaries += line.traffic
            case ReferenceDisturbed():
                self.canaries.disturbed(line)
            case HostsJoined():
                self.hosts = line.hosts
            case ClockMoved():
                if self.current is not None:
                    self.current.clock_moves.append(line)
            case Happened():
                self._happened(line)
            case ServerChanged():
                self._server_changed(line)
            case WorkersPlaced():
                self.placement = line.placement
            case Checked():
                self.findings = line.findings
            case RunStarted():
                self.run = line
                self.hardware.began_s = line.monotonic_s
                self._reference = published_reference(line)
                self.limits, self.price = limits_of(line.profile), price_of(line.profile)
            case RunFinished():
                self.finished = line

    def _server_changed(self, line: ServerChanged) -> None:
        if self.server is None or self.server.state != line.state:
            self.server_since_s = line.t_s
        self.server = line
        if line.state == "starting":
            self._begin_span()
            self._restarted_stalls += (one for one in self._stall_verdicts() if one.bad)
            self._begin_stalls()
            if line.engine not in ("attach", "none") and not self.server_starts:
                self.hardware.keep_before_start()
            self.server_starts.append(line)

    def _begin_stage(self, line: StageStarted) -> None:
        self._earlier = [stage for stage in list(self.stages.values())[:-1] if stage.hardware_figures is None]
        for stage in self._earlier:  # streams of the last may still be in flight
            stage.blocks.freeze()
        stage = self.current = self.stages[line.index] = StageRecord(line)
        stage.hardware_samples = self.hardware.begin_stage()
        server = self.server
        stage.server_command = server.command if server is not None else None
        if server is not None and server.start is not None and server.start.kv_cache_tokens is not None:
            stage.kv_tokens = server.start.kv_cache_tokens * max(1, len(server.instances))
        stage.alone = self.last_tick is None or not self.last_tick.open_stages

    def _begin_span(self) -> None:
        """Count from now on what the engines are compared with at their next idle reading."""
        self._span_canaries = OwnRequests()
        self._span_client = dict(self.client.counters)

    def _end_span(self, line: EnginesQuiet) -> None:
        stages = [stage for index, stage in self.stages.items() if line.first <= index <= line.last]
        if line.engine is not None and len(stages) == line.last - line.first + 1:
            totals = {name: count - self._span_client[name] for name, count in self.client.counters.items()}
            span = account_of(stages, line.engine, totals, self._span_canaries, is_span=True)
            for stage in stages:
                stage.span = span
        self._begin_span()

    def _summarise(self, before_s: float) -> None:
        """Summarise a stage that ended before a moment with all its streams: its samples take memory.

        One a tick, and not as a load ends, when there is enough to do.
        """
        for stage in self._earlier:
            if stage.ended is not None and stage.ended.t_s < before_s and not stage.open_sent:
                summarise_hardware(stage, self.hardware)
                stage.thin()
                self._earlier.remove(stage)
                return

    def _happened(self, line: Happened) -> None:
        self._events_by_kind[line.kind] += 1
        count, text = self._events_by_kind[line.kind], line.text
        if count == _EVENTS_OF_A_KIND:
            text = f"{count:,} events of this kind: this one and those to come are in the journal only"
        if count <= _EVENTS_OF_A_KIND:
            self.events.append(RunEvent(t_s=line.t_s, kind=line.kind, text=text))

    def _tick(self, line: Ticked) -> None:
        self.last_tick = line
        for index, stage in self.stages.items():
            stage.open_sent = line.open_sent.get(index, 0)
        for number, deltas in enumerate(line.instances):
            for index in deltas.keys() & self.stages.keys():
                part = self.stages[index].part(number)
                part.metrics.add(deltas[index])
                part.add_answers(deltas[index], line.t_s)
        for number, (facts, host_tick) in enumerate(zip(self.hosts, line.hosts, strict=False)):
            for index in host_tick.stages.keys() & self.stages.keys():
                self.stages[index].host_part(number).metrics.add(host_tick.stages[index])
            if self.current is not None:
                self.current.add_host(number, facts.name, host_tick, line.span_s)

        reported = {index: StageMetrics.of(delta) for index, delta in line.stages.items()}
        if self.current is not None:
            self.current.workers = line.sharing or line.workers
        for index, metrics in reported.items():
            if index in self.stages:
                stage = self.stages[index]
                stage.add(metrics)
                stage.add_answers(line.stages[index], line.t_s)
                stage.blocks.add(metrics, stage.window_s)
                self.total.merge(metrics)
        self.client.add(line.client)
        if self.traffic.tick(line) and self.current is not None and self.others is not None:
            self.current.add_others(self.others)
        self._update_others(line.t_s)
        self._see_stall(line)
        if self.current is not None:
            self.current.add_client(line.client, span_s=line.span_s, workers=self.current.workers)
            if line.engine is not None:
                self.current.add_engine(line.engine, line.span_s)
        self.timeline.add(line, reported.values(), running=self.current, others=self.others)
        self._summarise(line.t_s - _LONG_OVER_S)

    def _begin_stalls(self) -> None:
        self._stalls = StallWatch()  # of all servers together
        self._stalls_of: dict[str, StallWatch] = {}  # of each server, or engine of one, if there are several
        self._engines: dict[str, EngineView | None] = {}

    def _see_stall(self, line: Ticked) -> None:
        self.ended_stalls = []
        if self.server is None or self.server.state != "ready":
            return
        heard = line.has_output
        moment = StallSample(
            line.t_s,
            heard=heard,
            open_streams=line.held,
            answered=line.held > 0 and self._has_answered(),
            engine=line.engine,
            gfx_percent=None if heard else self.hardware.busy_percent(line.t_s),
            waits_for_worker=line.waits_for_worker,
        )
        ended = [self._stalls.add(moment), *self._see_stalls_of_each(moment, line)]
        # If all servers were stalled, that of one is no news.
        self.ended_stalls = [stall for stall in ended if stall is not None][:1]

    def _see_stalls_of_each(self, moment: StallSample, line: Ticked) -> list[Stall | None]:
        """Judge each of several servers, or engines of a data-parallel one, by its own figures alone."""
        if line.engines:
            self._engines = {f"instance {number}": engine for number, engine in enumerate(line.engines)}
        elif line.engine is not None and line.engine.engines:
            self._engines = {f"engine {name}": engine for name, engine in line.engine.engines.items()}
        unknown = moment._replace(open_streams=0, gfx_percent=None, waits_for_worker=False)
        return [
            self._stalls_of.setdefault(name, StallWatch(name)).add(
                unknown._replace(engine=engine, heard=bool(engine and engine.generation_tokens_per_s))
            )
            for name, engine in self._engines.items()
        ]

    def _has_answered(self) -> bool:
        """Whether a stream with prompts of the present length has had its first token."""
        alike = [stage for stage in self.stages.values() if self.shown and stage.started.isl == self.shown.started.isl]
        found = (stage.metrics.latency.get(name) for stage in alike for name in FIRST_TOKENS)
        return any(latency is not None and latency.count for latency in found)

    def _update_others(self, t_s: float) -> None:
        """Others' traffic of the latest stages: ticks of a stage's last moments come after the engine's figures."""
        for stage in list(self.stages.values())[-2:]:
            engine = stage.engine
            if engine is not None and engine.between_s is not None and t_s < engine.between_s[1] + 2 * LAG_S:
                stage.others = others_of(engine, self.traffic.own, stage.others_running)

    @property
    def others(self) -> OthersTraffic | None:
        """Others' traffic over the latest seconds; None if unknown.

        A stalled engine keeps requests that vramp has given up, which are then not others'.
        """
        is_ours = self.shown is not None and not self.shown.started.no_load
        return None if is_ours and self.stall is not None else self.traffic.others

    @property
    def stall(self) -> Stall | None:
        """The stall of the server that goes on, or went on when it was stopped or died."""
        return next(
            (watch.stall for watch in (self._stalls, *self._stalls_of.values()) if watch.stall is not None), None
        )

    @property
    def shown(self) -> StageRecord | None:
        """The running stage, otherwise the last; None before the first."""
        return self.current or next(reversed(self.stages.values()), None)

    @property
    def workers(self) -> int:
        """How many workers there were at the last tick; before the first, how many are planned."""
        if self.last_tick is not None:
            return self.last_tick.workers
        return self.run.workers if self.run is not None else 0

    @property
    def engine(self) -> EngineView | None:
        """The engine's gauges at the last tick; None if the server has been restarted since then."""
        tick, starts = self.last_tick, self.server_starts
        return tick.engine if tick is not None and (not starts or starts[-1].t_s <= tick.t_s) else None

    @property
    def sessions(self) -> SessionsNow | None:
        """The sessions at the last tick, the longest one by one; None where the load is not sessions."""
        return self.last_tick.sessions if self.last_tick is not None else None

    @property
    def open_streams(self) -> int:
        return self.last_tick.held if self.last_tick is not None else 0

    @property
    def timestamps(self) -> Literal["kernel", "user"] | None:
        """The clock of the reads' timestamps (apart from stray ones); None before the first read."""
        if self.client.counters["reads"] == 0:
            return None
        return "kernel" if self.client.counters["unstamped_reads"] < 0.01 * self.client.counters["reads"] else "user"

    # The result.

    def result(self, stages: list[StageResult] | None = None) -> Result:
        """The result of the run, or of its part so far; `stages` are from `stage_result`, where they are known."""
        run = self.run
        assert run is not None, "a record begins with RunStarted"
        finished_at: str | None = None
        state: RunState = "failed"
        reason = "the run was killed; this is what its journal holds"
        if self.finished is not None:
            state, reason = self.finished.state, self.finished.reason
            finished_at = iso_time(self.finished.unix_s)
        if stages is None:
            stages = [self.stage_result(stage) for stage in self.stages.values()]
        server, started = self.server, None
        if server is not None and server.start is not None:
            started = ServerResult(server.start, server.start_differences)
        return Result(
            vramp_version=run.vramp_version,
            run_id=run.run_id,
            kind="monitor" if self.stages and all(one.started.no_load for one in self.stages.values()) else "load",
            started_at=iso_time(run.unix_s),
            finished_at=finished_at,
            state=state,
            reason=reason,
            profile=run.profile,
            environment=run.environment | self._server_environment(),
            client=self._client_result(),
            stages=stages,
            series=self.timeline.series.columns(),
            events=self.events,
            findings=list(self.findings),
            server=started,
            provenance=server.provenance if server is not None else None,
            diagnosis=server.diagnosis if server is not None else None,
            reference=self._reference_result(),
            data=run.data,
            telemetry_meta=self.hardware.meta,
            gpus=list(self.hardware.gpus),
            gpu_series=self.hardware.series(),
            host_series=self.hardware.host_series(),
            hosts=list(self.hosts),
            verdicts=[*run_health(self.stages.values(), self.hardware), *self._restarted_stalls, *self.run_verdicts()],
            search=self.search,
            tiers=tier_results(stages),
            curve=LoadCurve(self.stages.values()).points(),
            canary=self.canaries.result(self.total.counters["sent"] + self.total.counters["warmup"]),
        )

    def _client_result(self) -> ClientResult:
        client, stages = self.client, self.stages.values()
        limits = [(stage.subject, why) for stage in stages if (why := stage.limit()) is not None]
        realtime_ns = sum(stage.client.counters["realtime_ns"] for stage in stages)
        span_ns = sum(stage.client_span_ns for stage in stages)  # summed over workers
        return ClientResult(
            timestamps=self.timestamps,
            workers=self.workers,
            cpu_s=round(client.counters["cpu_ns"] / 1e9, 3),
            read_lag_ms=client.read_lag.summary(),
            send_lag_ms=client.send_lag.summary(),
            coalesced_reads=client.coalesced_share,
            unstamped_reads=client.counters["unstamped_reads"],
            connects=client.counters["connects"],
            limited=bool(limits),
            why="; ".join(f"{subject}: {why}" for subject, why in limits) or None,
            realtime=min(1.0, realtime_ns / span_ns) if span_ns else None,
            placement=self.placement,
        )

    def stage_result(
        self, stage: StageRecord, machine: StageHardware | None = None, *, with_hdr: bool = True
    ) -> StageResult:
        """The figures of a stage, over or not; `machine` are those of its hardware, where they are known."""
        began_s = self.run.unix_s if self.run is not None else 0.0
        return stage_result(
            stage,
            started_at=iso_time(began_s + stage.started.t_s),
            now_s=self.timeline.points[-1].t_s if self.timeline.points else stage.started.t_s,
            limits=self.limits,
            price=self.price,
            machine=machine if machine is not None else stage_hardware(stage, self.hardware),
            canaries=self.canaries,
            urls=self.urls,
            stages=self.stages.values(),
            with_hdr=with_hdr,
        )

    @property
    def urls(self) -> list[str]:
        """The URLs of the servers, if there are several."""
        return [instance.url for instance in self.server.instances] if self.server is not None else []

    def compared(self, stage: StageRecord) -> list[Comparison]:
        """Published figures for the load of this stage, next to the measured ones."""
        if self._reference is None:
            return []
        number, index = stage.started.pass_number or 1, stage.started.index
        earlier = [one for one in self.stages.values() if index - number < one.started.index < index]
        return compare(self._reference, stage, stage_compute(stage, self.hardware), earlier)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of the publication next to those of this run; empty without a publication."""
        if self._reference is None or self.run is None:
            return ()
        requested = requested_server(self.run)
        served = [self.server.model] if self.server is not None and self.server.model else []
        return conditions(
            self._reference,
            models=[*([requested.model] if requested.model else []), *served],
            version=self.server.version if self.server is not None else None,
            image=requested.image,
            gpus=self.hardware.server_names(),
            requests=[one.started.requests for one in self.stages.values() if not one.started.no_load],
            data=self.run.data,
            canaries=self.canaries.sent,
        )

    def _reference_result(self) -> ReferenceResult | None:
        if self._reference is None:
            return None
        compared = [comparison for stage in self.stages.values() for comparison in self.compared(stage)]
        ratios = tuple(PublishedRatio(**ratio.model_dump()) for ratio in self._reference.ratios)
        return ReferenceResult(self._reference.source, list(self._reference.notes), compared, self.conditions, ratios)

    def run_verdicts(self) -> list[Verdict]:
        """Verdicts on the whole run as it is now: a stall that goes on, the output, and the server's start."""
        differences = self.server.start_differences if self.server is not None else ()
        return [*self._stall_verdicts(), *self.canaries.run_verdicts(), *start_verdicts(differences)]

    def _stall_verdicts(self) -> list[Verdict]:
        if self.stall is None or self.last_tick is None:
            return []
        subject = self.shown.subject if self.shown is not None else "server"
        id = STALLED if self.stall.is_certain else NO_OUTPUT
        return [Verdict(id, subject, self.stall.words(self.last_tick.t_s), bad=self.stall.is_certain)]

    def _server_environment(self) -> dict[str, Any]:
        server = self.server
        if server is None:
            return {}
        environment: dict[str, Any] = {
            "engine": server.engine,
            "server_url": server.url,
            "model": server.model,
            "max_model_len": server.max_model_len,
            "vllm_version": server.version,
            "server_command": server.command,
            "server_env": server.env,
        }
        if server.instances:
            environment["server_instances"] = [msgspec.to_builtins(instance) for instance in server.instances]
        if len(self.server_starts) > 1:
            environment["server_starts"] = [
                {"t_s": start.t_s, "variant": start.variant, "server_command": start.command}
                for start in self.server_starts
            ]
        return environment
