"""A run's live figures as Prometheus metrics, each declared once in the table below.

Measured figures have the stage as a label, so that no average mixes two loads. A stage that ended stays for another
scrape. Latencies are classic histograms whose bounds are the upper bounds of the HDR histogram's buckets, so every
count is exact. Text from the server is sanitised before it becomes a label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

import loadgen
from loadgen.format import plain
from loadgen.metrics.histogram import EXPORTED_BOUNDS_US
from loadgen.record.record import Record
from loadgen.report.notes import latencies_so_far, met_so_far
from loadgen.report.tabular import figure
from loadgen.schema.deltas import MAIN_LATENCIES, OUTCOMES
from loadgen.schema.engine import EngineView
from loadgen.schema.result import StageResult
from loadgen.schema.samples import GpuSample
from loadgen.schema.snapshot import Snapshot

KEPT_S = 60.0
"""How long a stage is exported after its end: longer than the usual scrape intervals."""
_BOUNDS = [*(str(bound_us / 1e6) for bound_us in EXPORTED_BOUNDS_US), "+Inf"]
_PERCENTILES = {"50": "p50", "90": "p90", "95": "p95", "99": "p99"}  # `quantile` is reserved for summaries
_STAGE = ("stage", "load", "isl", "osl")
_TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token after the first, of a stream",
    "itl": "Gap between output events, divided by the tokens of the event",
    "e2e": "From sending a request to its last token",
}


class _Stage(NamedTuple):
    figures: StageResult
    input_tokens: int | None
    output_tokens: int
    latencies: dict[str, tuple[list[int], float]]  # counts up to each bound, and in all; their sum in seconds

    @property
    def labels(self) -> tuple[str, ...]:
        stage = self.figures
        return str(stage.number), plain(stage.label), str(stage.isl), str(stage.osl)


class ExportedState(NamedTuple):
    """What is exported until the next moment; immutable, so that another thread may read it."""

    snapshot: Snapshot
    run_id: str
    stages: tuple[_Stage, ...]


def moment_of(snapshot: Snapshot, record: Record) -> ExportedState:
    """The state of the run now, with current and recent stages."""
    recent = []
    for figures, stage in zip(snapshot.stages, record.stages.values(), strict=True):
        has_just_ended = stage.ended is not None and snapshot.t_s - stage.ended.t_s < KEPT_S
        if stage is not record.shown and not has_just_ended:
            continue
        latencies = {}
        for name in latencies_so_far(figures):
            histogram = stage.histogram(name)
            counts = [*histogram.counts_within(EXPORTED_BOUNDS_US), histogram.count]
            latencies[name] = (counts, histogram.sum_us / 1e6)
        input_tokens = None if stage.misses_input else stage.counters["window_input_tokens"]
        recent.append(_Stage(figures, input_tokens, stage.counters["window_output_tokens"], latencies))
    run_id = record.run.run_id if record.run is not None else ""
    return ExportedState(snapshot, run_id, tuple(recent))


Samples = Iterable[tuple[tuple[str, ...], float | None]]
_Kind = type[GaugeMetricFamily | CounterMetricFamily]


class _Family(NamedTuple):
    kind: _Kind
    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[ExportedState], Samples]


def _gauge(name: str, words: str, value: Callable[[Snapshot], Any]) -> _Family:
    """A metric with one value for the whole run."""
    return _Family(GaugeMetricFamily, name, words, (), lambda moment: [((), value(moment.snapshot))])


def _stage_gauge(name: str, words: str, value: Callable[[StageResult], float | None]) -> _Family:
    return _of_stages(GaugeMetricFamily, name, words, lambda stage: value(stage.figures))


def _stage_counter(name: str, words: str, value: Callable[[_Stage], int | None]) -> _Family:
    return _of_stages(CounterMetricFamily, name, words, value)


def _of_stages(kind: _Kind, name: str, words: str, value: Callable[[_Stage], float | None]) -> _Family:
    return _Family(kind, name, words, _STAGE, lambda moment: [(stage.labels, value(stage)) for stage in moment.stages])


def _engine_latencies(moment: ExportedState) -> Samples:
    engine = moment.snapshot.engine or EngineView()
    for name, latency in engine.latency_ms.items():
        for percentile, statistic in _PERCENTILES.items():
            lower, upper = latency.within.get(statistic, (None, None))
            yield (name, percentile, "lower"), _divided(lower, 1000)
            if lower is not None:
                yield (name, percentile, "upper"), math.inf if upper is None else upper / 1000


def _gpu_gauge(name: str, words: str, value: Callable[[GpuSample], float | None], per: float = 1.0) -> _Family:
    return _Family(
        GaugeMetricFamily,
        name,
        words,
        ("gpu", "name"),
        lambda moment: [
            ((str(gpu.static.index), plain(gpu.static.name)), _divided(value(gpu.sample), per))
            for gpu in moment.snapshot.gpus
            if gpu.sample is not None
        ],
    )


def _divided(value: float | None, per: float) -> float | None:
    return None if value is None else value / per


def _info(moment: ExportedState) -> Samples:
    snapshot, server = moment.snapshot, moment.snapshot.server
    words = (moment.run_id, snapshot.profile, server.model or "", server.engine, server.version or "")
    yield (*(plain(word) for word in words), loadgen.__version__), 1


def _outcomes(moment: ExportedState) -> Samples:
    for stage in moment.stages:
        for outcome in OUTCOMES:
            yield (*stage.labels, outcome), getattr(stage.figures.requests, outcome)


def _recent(moment: ExportedState) -> Samples:
    for name, summary in moment.snapshot.recent.items():
        for percentile, statistic in _PERCENTILES.items():
            yield (name, percentile), _divided(getattr(summary, statistic), 1000)


def _verdicts(moment: ExportedState) -> Samples:
    found = {(one.id, plain(one.subject), "bad" if one.bad else "note"): 1.0 for one in moment.snapshot.verdicts}
    return found.items()


_FAMILIES = (
    _Family(
        GaugeMetricFamily,
        "vramp_run_info",
        "The run that is exported",
        ("run_id", "profile", "model", "engine", "engine_version", "vramp_version"),
        _info,
    ),
    _Family(
        GaugeMetricFamily,
        "vramp_run_phase",
        "What the run is doing",
        ("phase",),
        lambda moment: [((moment.snapshot.phase,), 1)],
    ),
    _gauge("vramp_run_healthy", "1 while nothing needs the operator's attention", lambda now: now.healthy),
    _gauge("vramp_run_seconds", "Time since the run began", lambda now: now.t_s),
    _gauge("vramp_run_stage", "Number of the running stage, 0 before the first", lambda now: now.load.stage),
    _gauge("vramp_streams_target", "Streams that the closed loop should hold", lambda now: now.load.concurrency),
    _gauge("vramp_request_rate_target", "Requests a second of the open loop", lambda now: now.load.rate),
    _gauge("vramp_streams_open", "Streams that are open now", lambda now: now.load.held),
    _gauge("vramp_sessions_live", "Sessions that are live now", figure("sessions", "live")),
    _gauge("vramp_requests_queued", "Arrivals that wait for a connection", lambda now: now.load.queued),
    _stage_counter("vramp_requests_sent", "Requests sent", lambda stage: stage.figures.requests.sent),
    _Family(CounterMetricFamily, "vramp_requests", "Requests by what became of them", (*_STAGE, "outcome"), _outcomes),
    _Family(
        CounterMetricFamily,
        "vramp_request_errors",
        "Failures of the whole run by kind",
        ("kind",),
        lambda moment: [((plain(kind),), count) for kind, count in moment.snapshot.errors.items()],
    ),
    _stage_counter("vramp_input_tokens", "Input tokens in the measured window", lambda stage: stage.input_tokens),
    _stage_counter("vramp_output_tokens", "Output tokens in the measured window", lambda stage: stage.output_tokens),
    _stage_gauge(
        "vramp_stage_output_tokens_per_second",
        "Output tokens a second over the measured window so far",
        lambda stage: stage.throughput.output_tokens_per_s,
    ),
    _stage_gauge(
        "vramp_stage_requests_per_second",
        "Completed requests a second over the measured window so far",
        lambda stage: stage.throughput.requests_per_s,
    ),
    _stage_gauge(
        "vramp_stage_streams_mean", "Mean number of open streams in the window", lambda stage: stage.concurrency.mean
    ),
    _stage_gauge(
        "vramp_stage_prefix_hits_ratio",
        "Prompt tokens from the cache by the server's usage, 0 to 1",
        lambda stage: None if stage.hits is None else stage.hits.measured,
    ),
    _stage_gauge("vramp_stage_limits_met", "1 where every limit is met so far", met_so_far),
    _Family(
        GaugeMetricFamily,
        "vramp_recent_latency_seconds",
        "Exact percentiles of the last 10 seconds, as the cockpit shows them",
        ("latency", "percentile"),
        _recent,
    ),
    _gauge("vramp_client_limited", "1 where the client is the limit", lambda now: now.client.limited),
    _gauge(
        "vramp_client_read_lag_p99_seconds",
        "The client's own delay in reading, p99 over the stage",
        lambda now: _divided(now.client.read_lag_p99_ms, 1000),
    ),
    _gauge("vramp_client_cpu_cores", "Cores that the workers use", lambda now: _divided(now.client.cpu_percent, 100)),
    _gauge("vramp_engine_requests_running", "Requests that the engine runs", figure("engine", "running")),
    _gauge("vramp_engine_requests_waiting", "Requests in the engine's queue", figure("engine", "waiting")),
    _gauge("vramp_engine_kv_usage_ratio", "KV cache in use, 0 to 1", figure("engine", "kv_usage")),
    _gauge(
        "vramp_engine_prompt_tokens_per_second",
        "Of all clients, over the last seconds",
        figure("engine", "prompt_tokens_per_s"),
    ),
    _gauge(
        "vramp_engine_generation_tokens_per_second",
        "Of all clients, over the last seconds",
        figure("engine", "generation_tokens_per_s"),
    ),
    _Family(
        GaugeMetricFamily,
        "vramp_engine_latency_bound_seconds",
        "Between which bounds of the engine's buckets a percentile of the last seconds lies",
        ("latency", "percentile", "bound"),
        _engine_latencies,
    ),
    _gauge(
        "vramp_others_requests_per_second",
        "Requests of clients other than vramp that ended on the engine",
        figure("others", "requests_per_s"),
    ),
    _gauge(
        "vramp_others_generation_tokens_per_second",
        "Tokens generated for clients other than vramp",
        figure("others", "generation_tokens_per_s"),
    ),
    _gpu_gauge("vramp_gpu_power_watts", "Power", lambda gpu: gpu.power_w),
    _gpu_gauge("vramp_gpu_busy_ratio", "Share of time in which compute was busy", lambda gpu: gpu.gfx_percent, 100),
    _gpu_gauge("vramp_gpu_memory_used_bytes", "HBM in use", lambda gpu: gpu.hbm_used_bytes),
    _gpu_gauge("vramp_gpu_temperature_celsius", "Hotspot", lambda gpu: gpu.temperature_hotspot_c),
    _Family(
        GaugeMetricFamily,
        "vramp_verdict",
        "1 for each verdict that holds now",
        ("id", "subject", "weight"),
        _verdicts,
    ),
)


def metric_families(moment: ExportedState) -> Iterator[Metric]:
    """All metrics at a moment; an unknown value has no sample."""
    for declared in _FAMILIES:
        family = declared.kind(declared.name, declared.help, labels=declared.labels)
        for labels, value in declared.samples(moment):
            if value is not None:
                family.add_metric(labels, float(value))
        yield family
    for name in MAIN_LATENCIES:
        histogram = HistogramMetricFamily(f"vramp_{name}_seconds", _TITLES[name], labels=_STAGE)
        for stage in moment.stages:
            if name in stage.latencies:
                counts, sum_s = stage.latencies[name]
                histogram.add_metric(stage.labels, list(zip(_BOUNDS, counts, strict=True)), sum_s)
        yield histogram
