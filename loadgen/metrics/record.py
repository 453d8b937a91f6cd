"""The fold of a run's journal: every number on the screen and in the result comes from here.

`Record.apply` takes one line after another, live or from a file; nothing else changes a record. So a run that was
killed becomes a result by folding what it left, and screen, table and JSON cannot disagree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from loadgen.metrics.histogram import Histogram, Summary
from loadgen.metrics.journal import (
    EngineMeasured,
    EngineStage,
    Happened,
    Line,
    RunFinished,
    RunStarted,
    RunState,
    ServerChanged,
    StageEnded,
    StageStarted,
    Ticked,
)
from loadgen.metrics.result import (
    ClientResult,
    Concurrency,
    InstanceResult,
    Requests,
    Result,
    SloCheck,
    StageResult,
    Target,
    Throughput,
    Tokens,
)
from loadgen.metrics.snapshot import WINDOW_S, Point, RunEvent
from loadgen.metrics.stage import LATENCIES, ClientMetrics, StageMetrics
from loadgen.metrics.verdict import ClientFacts, client_limit


class StageRecord:
    """One stage, or one server's part in it: what it asked for, its numbers so far, how it ended."""

    def __init__(self, started: StageStarted, whole: StageRecord | None = None) -> None:
        """`whole` is the stage that this is a part of: rates are over its window, so that the parts add up."""
        self.started = started
        self.metrics = StageMetrics()
        self.parts: list[StageRecord] = []
        """By server, where there are several."""
        self._whole = whole
        self.client = ClientMetrics()
        self.client_span_ns = 0
        self.ended: StageEnded | None = None
        self.engine: EngineStage | None = None

    @property
    def counters(self) -> dict[str, int]:
        """The counts of `StageMetrics`."""
        return self.metrics.counters

    @property
    def window_s(self) -> float:
        """Length of the measured window in seconds, 0 before it has begun."""
        return (self._whole or self).metrics.window_s

    def part(self, number: int) -> StageRecord:
        """The part of one of several servers."""
        while len(self.parts) <= number:
            self.parts.append(StageRecord(self.started, self))
        return self.parts[number]

    def per_second(self, *counters: str) -> float | None:
        """Counts of the window over its length; None before it has one."""
        window_s = self.window_s
        return sum(self.counters[name] for name in counters) / window_s if window_s else None

    @property
    def held_mean(self) -> float | None:
        """Mean number of open streams in the window."""
        window_s = self.window_s
        return self.counters["held_area_ns"] / 1e9 / window_s if window_s else None

    def summaries(self, *names: str, with_hdr: bool = False) -> dict[str, Summary]:
        """The statistics of the named latencies, in milliseconds."""
        empty = Histogram()
        return {name: self.metrics.latency.get(name, empty).summary(with_hdr=with_hdr) for name in names}

    def limit(self) -> str | None:
        """Why the client could not keep up in this stage; None when it could."""
        started, window_s = self.started, self.window_s
        bounded_by_time = started.requests is None
        e2e = self.metrics.latency.get("e2e", Histogram())
        facts = ClientFacts(
            cpu_share=self.client.cpu_ns / self.client_span_ns if self.client_span_ns else None,
            read_lag_p99_ms=self.client.read_lag.percentile_ms(99),
            coalesced_share=self.client.coalesced_share,
            # A stage that counts requests runs empty at its end, whoever is to blame.
            held_mean=self.held_mean if bounded_by_time and window_s > 1 else None,
            wanted=started.concurrency,
            send_lag_mean_ms=self.client.send_lag.mean_ms(),
            e2e_mean_ms=e2e.mean_ms(),
        )
        return client_limit(facts)

    def slo(self, limits_ms: dict[str, float]) -> dict[str, SloCheck]:
        """Each limit against what was measured; a metric without a value misses its limit."""
        checks = {}
        for name, limit_ms in limits_ms.items():
            metric, _, statistic = name.rpartition("_")
            measured_ms = getattr(self.summaries(metric)[metric], statistic)
            met = measured_ms is not None and measured_ms <= limit_ms
            checks[name] = SloCheck(limit_ms=limit_ms, measured_ms=measured_ms, met=met)
        return checks


class Record:
    """A run, as far as its journal goes."""

    def __init__(self) -> None:
        self.run: RunStarted | None = None
        self.server: ServerChanged | None = None
        self.stages: dict[int, StageRecord] = {}
        self.current: StageRecord | None = None
        self.total = StageMetrics()
        """All stages together."""
        self.client = ClientMetrics()
        self.events: list[RunEvent] = []
        self.points: list[Point] = []
        self.last_tick: Ticked | None = None
        self.finished: RunFinished | None = None
        self._recent: deque[tuple[float, list[Histogram], list[Histogram]]] = deque()

    def apply(self, line: Line) -> None:
        """Take in the next line."""
        match line:
            case Ticked():
                self._tick(line)
            case StageStarted():
                self.current = self.stages[line.index] = StageRecord(line)
            case StageEnded():
                self.stages[line.index].ended = line
                self.current = None
            case EngineMeasured():
                self._measured(line)
            case Happened():
                self.events.append(RunEvent(t_s=line.t_s, kind=line.kind, text=line.text))
            case ServerChanged():
                self.server = line
            case RunStarted():
                self.run = line
            case RunFinished():
                self.finished = line

    def _measured(self, line: EngineMeasured) -> None:
        stage = self.stages[line.index]
        stage.engine = line.engine
        for number, engine in enumerate(line.instances):
            stage.part(number).engine = engine

    def _tick(self, line: Ticked) -> None:
        self.last_tick = line
        for number, stages in enumerate(line.instances):
            for index, delta in stages.items():
                if index in self.stages:
                    self.stages[index].part(number).metrics.add(delta)
        ttft, tpot = [], []
        for index, delta in line.stages.items():
            metrics = StageMetrics.of(delta)
            if index in self.stages:
                self.stages[index].metrics.merge(metrics)
                self.total.merge(metrics)
            ttft += [metrics.latency[name] for name in ("ttft", "warmup_ttft") if name in metrics.latency]
            tpot += [metrics.latency[name] for name in ("tpot", "warmup_tpot") if name in metrics.latency]
        self._recent.append((line.t_s, ttft, tpot))
        while self._recent[0][0] <= line.t_s - WINDOW_S:
            self._recent.popleft()
        self.client.add(line.client)
        if self.current is not None:
            self.current.client.add(line.client)
            self.current.client_span_ns += int(line.span_s * 1e9) * line.workers
        self.points.append(self._point(line))

    def _point(self, line: Ticked) -> Point:
        ttft, tpot = _merged(entry[1] for entry in self._recent), _merged(entry[2] for entry in self._recent)
        current = self.current.started if self.current is not None else None
        read_lag = line.client.read_lag
        return Point(
            t_s=round(line.t_s, 3),
            held=line.held,
            target=None if current is None else current.rate if current.concurrency is None else current.concurrency,
            output_tokens_per_s=_rate(line.client.output_tokens, line.span_s),
            requests_per_s=_rate(sum(delta.completed for delta in line.stages.values()), line.span_s),
            ttft_p50_ms=ttft.percentile_ms(50),
            ttft_p99_ms=ttft.percentile_ms(99),
            tpot_p50_ms=tpot.percentile_ms(50),
            tpot_p99_ms=tpot.percentile_ms(99),
            errors=sum(delta.failed + delta.warmup_failed for delta in line.stages.values()),
            engine_running=line.engine.running if line.engine is not None else None,
            engine_waiting=line.engine.waiting if line.engine is not None else None,
            kv_usage=line.engine.kv_usage if line.engine is not None else None,
            read_lag_p99_ms=None if read_lag is None else Histogram.decode(read_lag).percentile_ms(99),
            client_rss_mb=round(line.rss_bytes / 1e6, 1) if line.rss_bytes else None,
            client_cpu_percent=round(100 * line.client.cpu_ns / 1e9 / line.span_s, 1) if line.span_s else None,
        )

    @property
    def timestamps(self) -> Literal["kernel", "user"] | None:
        """Who stamped the reads (but for a stray few); None before the first."""
        if self.client.reads == 0:
            return None
        return "kernel" if self.client.unstamped_reads < 0.01 * self.client.reads else "user"

    # The result.

    def result(self) -> Result:
        """The document of the run, complete or as far as it came."""
        run = self.run
        assert run is not None, "a record begins with RunStarted"
        state, reason = self._state()
        slo_ms = run.profile.get("slo") or {}
        return Result(
            vramp_version=run.vramp_version,
            run_id=run.run_id,
            started_at=_iso(run.unix_s),
            finished_at=_iso(self.finished.unix_s) if self.finished is not None else None,
            state=state,
            reason=reason,
            profile=run.profile,
            environment=run.environment | self._server_environment(),
            client=self._client_result(),
            stages=[self._stage_result(stage, slo_ms) for stage in self.stages.values()],
            series=_columns(self.points),
            events=self.events,
        )

    def _state(self) -> tuple[RunState, str]:
        if self.finished is None:
            return "failed", "the run was killed; this is what its journal holds"
        return self.finished.state, self.finished.reason

    def _server_environment(self) -> dict[str, Any]:
        server = self.server
        if server is None:
            return {}
        environment = {
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
        return environment

    def _client_result(self) -> ClientResult:
        client = self.client
        limits = [(stage.started.index, why) for stage in self.stages.values() if (why := stage.limit()) is not None]
        return ClientResult(
            timestamps=self.timestamps,
            workers=self.run.workers if self.run is not None else 0,
            cpu_s=round(client.cpu_ns / 1e9, 3),
            read_lag_ms=client.read_lag.summary(),
            send_lag_ms=client.send_lag.summary(),
            coalesced_reads=client.coalesced_share,
            unstamped_reads=client.unstamped_reads,
            connects=client.connects,
            limited=bool(limits),
            why="; ".join(f"stage {index + 1}: {why}" for index, why in limits) or None,
        )

    def _stage_result(self, stage: StageRecord, slo_ms: dict[str, float]) -> StageResult:
        started, counters, why = stage.started, stage.counters, stage.limit()
        assert self.run is not None
        end_s = stage.ended.t_s if stage.ended is not None else self.points[-1].t_s if self.points else started.t_s
        return StageResult(
            index=started.index,
            label=started.label,
            target=Target(
                concurrency=started.concurrency,
                rate=started.rate,
                arrival=started.arrival if started.rate is not None else None,
            ),
            isl=started.isl,
            osl=started.osl,
            started_at=_iso(self.run.unix_s + started.t_s),
            duration_s=round(max(0.0, end_s - started.t_s), 3),
            measured_s=stage.window_s,
            stop_reason=stage.ended.reason if stage.ended is not None else "the run ended in this stage",
            requests=_requests(stage),
            concurrency=Concurrency(mean=stage.held_mean, peak=stage.metrics.peak),
            tokens=Tokens(
                input=counters["input_tokens"],
                output=counters["output_tokens"],
                source="events" if counters["counted_by_events"] else "usage",
            ),
            throughput=_throughput(stage),
            latency_ms=stage.summaries(*LATENCIES, with_hdr=True),
            slo=stage.slo(slo_ms),
            engine=stage.engine,
            limited=why is not None,
            why=why,
            instances=self._instance_results(stage),
        )

    def _instance_results(self, stage: StageRecord) -> list[InstanceResult]:
        urls = [instance.url for instance in self.server.instances] if self.server is not None else []
        # A server that took no part in a stage has a part of zeros.
        return [_instance_result(url, stage.part(number)) for number, url in enumerate(urls)]


def _instance_result(url: str, part: StageRecord) -> InstanceResult:
    return InstanceResult(
        url=url,
        requests=_requests(part),
        throughput=_throughput(part),
        latency_ms=part.summaries("ttft", "tpot"),
        engine=part.engine,
    )


def _requests(stage: StageRecord) -> Requests:
    names = ("sent", "completed", "failed", "unfinished", "warmup", "retried", "clock_steps")
    counts = {name: stage.counters[name] for name in names}
    return Requests(**counts, errors=dict(stage.metrics.errors), messages=dict(stage.metrics.messages))


def _throughput(stage: StageRecord) -> Throughput:
    output = stage.per_second("window_output_tokens")
    held = stage.held_mean
    return Throughput(
        requests_per_s=stage.per_second("window_requests"),
        input_tokens_per_s=stage.per_second("window_input_tokens"),
        output_tokens_per_s=output,
        total_tokens_per_s=stage.per_second("window_input_tokens", "window_output_tokens"),
        output_tokens_per_s_per_user=output / held if output is not None and held else None,
    )


def _merged(groups: Iterable[list[Histogram]]) -> Histogram:
    total = Histogram()
    for group in groups:
        for histogram in group:
            total.add(histogram)
    return total


def _rate(count: int, span_s: float) -> float | None:
    return round(count / span_s, 2) if span_s else None


def _columns(points: list[Point]) -> dict[str, list[float | int | None]]:
    names = [field.name for field in msgspec.structs.fields(Point)]
    return {name: [getattr(point, name) for point in points] for name in names}


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
