"""aiperf's `profile_export_aiperf.json`: one load, with an object per metric.

The schema is that of 0.1 to 0.13 (`aiperf/common/models/export_models.py`). Versions only added to it, except for the
configuration: first `input_config.loadgen`, later a list of phases. Metrics are optional and carry their unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from loadgen.schema.result import Result, StageResult, Target
from loadgen.store.foreign.load import Amount, Count, at, foreign_result, foreign_stage

KEYS: frozenset[str] = frozenset({"input_config", "request_throughput"})
CONFIG_KEYS: frozenset[str] = frozenset(
    {"endpoint", "loadgen", "phases"}
)  # of which its configuration has at least one
DEFINITIONS: Mapping[str, str] = {
    "throughput": "from the first request to the last response, including ramp-in and tail; output tokens are "
    "counted by the client's tokenizer, unless it was told to use the server's usage",
    "ttft": "from before the request is sent, including connecting, to when the client has read the first chunk "
    "with output, including the client's own waits: at 256 streams on 2 cores 100 ms where 57 were true",
    "tpot": "aiperf's inter-token latency, (E2E - TTFT) / (output tokens - 1)",
    "itl": "aiperf's inter-chunk latency: gaps between chunks, not divided by the tokens of a chunk",
    "e2e": "to when the client has read the last chunk with output, from the same beginning as TTFT",
}
_MS = {"ms": 1.0, "sec": 1e3, "s": 1e3, "us": 1e-3, "ns": 1e-6}
_OPEN_LOOP = ("poisson", "gamma", "constant")


class Metric(msgspec.Struct, frozen=True):
    unit: str
    avg: Amount | None = None
    p50: Amount | None = None
    p90: Amount | None = None
    p95: Amount | None = None
    p99: Amount | None = None
    min: Amount | None = None
    max: Amount | None = None
    std: Amount | None = None

    def statistics(self) -> dict[str, float]:
        """In milliseconds; raises `msgspec.ValidationError` if the metric is not a time."""
        if self.unit not in _MS:
            raise msgspec.ValidationError(f"Expected a unit of time, got `{self.unit}`")
        reported = {name: getattr(self, name) for name in ("p50", "p90", "p95", "p99", "min", "max")}
        reported |= {"mean": self.avg, "stddev": self.std}
        return {name: value * _MS[self.unit] for name, value in reported.items() if value is not None}


class _Item(msgspec.Struct, frozen=True):
    name: str


class _Endpoint(msgspec.Struct, frozen=True):
    type: str | None = None
    model_names: list[str] = []  # before `models` existed


class _Loadgen(msgspec.Struct, frozen=True):
    concurrency: Count | None = None
    request_rate: Amount | None = None
    request_rate_mode: str = "poisson"


class _Phase(msgspec.Struct, frozen=True):
    type: str
    name: str = ""
    kind: str | None = None
    concurrency: Count | None = None
    rate: Amount | None = None
    smoothness: Amount | None = None


class _Config(msgspec.Struct, frozen=True):
    endpoint: _Endpoint = _Endpoint()
    loadgen: _Loadgen | None = None
    phases: list[_Phase] = []


class Document(msgspec.Struct, frozen=True):
    """The metrics, which are those of genai-perf's file, too; what they were measured under is each tool's own."""

    input_config: msgspec.Raw
    request_throughput: Metric
    output_token_throughput: Metric | None = None
    total_token_throughput: Metric | None = None
    request_count: Metric | None = None
    error_request_count: Metric | None = None
    benchmark_duration: Metric | None = None
    total_isl: Metric | None = None
    total_osl: Metric | None = None
    input_sequence_length: Metric | None = None
    output_sequence_length: Metric | None = None
    time_to_first_token: Metric | None = None
    inter_token_latency: Metric | None = None
    inter_chunk_latency: Metric | None = None
    request_latency: Metric | None = None
    aiperf_version: str | None = None
    was_cancelled: bool | None = None
    is_complete: bool | None = None
    incomplete_reason: str | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None


def read(document: bytes, name: str) -> Result:
    """Read aiperf's file; raises `msgspec.ValidationError` for invalid values."""
    found = msgspec.json.decode(document, type=Document)
    config = msgspec.json.decode(found.input_config, type=_Config)
    items = at(found.input_config, "models.items", list[_Item]) or []
    models = [*(item.name for item in items), *config.endpoint.model_names]
    complete = not found.was_cancelled and found.is_complete is not False
    return foreign_result(
        name,
        [stage_of(found, _target(config))],
        tool=f"aiperf {found.aiperf_version or ''}".rstrip(),
        model=", ".join(models) or "unknown model",
        endpoint=config.endpoint.type if config.endpoint.type in ("chat", "completions", "responses") else None,
        definitions=DEFINITIONS,
        state="complete" if complete else "stopped",
        reason="" if complete else found.incomplete_reason or "cancelled",
    )


def stage_of(found: Document, target: Target) -> StageResult:
    """The one load of a file."""
    completed = round(_avg(found.request_count) or 0)
    began = found.start_time.replace(tzinfo=found.start_time.tzinfo or UTC) if found.start_time is not None else None
    ended = found.end_time.replace(tzinfo=found.end_time.tzinfo or UTC) if found.end_time is not None else None
    whole_s = (ended - began).total_seconds() if began is not None and ended is not None else 0.0
    duration_ms = found.benchmark_duration.statistics().get("mean") if found.benchmark_duration is not None else None
    rate = found.request_throughput.avg
    if duration_ms is None and not whole_s and rate:
        duration_ms = 1000 * completed / rate  # genai-perf's file has no times
    latencies = {
        "ttft": found.time_to_first_token,
        "tpot": found.inter_token_latency,
        "itl": found.inter_chunk_latency,
        "e2e": found.request_latency,
    }
    return foreign_stage(
        target,
        start_unix_s=began.timestamp() if began is not None else 0.0,
        duration_s=max(0.0, whole_s if duration_ms is None else duration_ms / 1000),
        completed=completed,
        failed=round(_avg(found.error_request_count) or 0),
        input_tokens=_total(found.total_isl, found.input_sequence_length, completed),
        output_tokens=_total(found.total_osl, found.output_sequence_length, completed),
        requests_per_s=found.request_throughput.avg,
        output_tokens_per_s=_avg(found.output_token_throughput),
        total_tokens_per_s=_avg(found.total_token_throughput),
        latency_ms={name: metric.statistics() for name, metric in latencies.items() if metric is not None},
    )


def _target(config: _Config) -> Target:
    if config.loadgen is not None:
        old = config.loadgen
        if old.request_rate is not None:
            return Target(None, old.request_rate, old.request_rate_mode)
        return Target(old.concurrency or 1, None, None)
    measured = [phase for phase in config.phases if "warmup" not in (phase.kind, phase.name)]
    if not measured:
        return Target(None, None, "unknown load")
    phase = measured[-1]
    if phase.type in _OPEN_LOOP and phase.rate is not None:
        shape = f":{phase.smoothness:g}" if phase.type == "gamma" and phase.smoothness is not None else ""
        return Target(None, phase.rate, f"{phase.type}{shape}")
    if phase.type == "concurrency":
        return Target(phase.concurrency or 1, None, None)
    return Target(None, None, phase.type)


def _avg(metric: Metric | None) -> float | None:
    return metric.avg if metric is not None else None


def _total(total: Metric | None, each: Metric | None, completed: int) -> int:
    """The tokens of all requests; computed from their mean where the file has no total."""
    known, mean = _avg(total), _avg(each)
    return round(known if known is not None else (mean or 0.0) * completed)
