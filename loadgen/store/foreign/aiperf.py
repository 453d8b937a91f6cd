"""aiperf's `profile_export_aiperf.json`, and genai-perf's `*_genai_perf.json`: one load, with an object per metric.

aiperf followed genai-perf and has its metrics; what they were measured under differs. aiperf's schema is that of 0.1 to
0.13 (`aiperf/common/models/export_models.py`). Versions only added to it, except for the configuration: first
`input_config.loadgen`, later a list of phases. Metrics are optional and carry their unit.

In genai-perf's file, `input_config` holds the program's arguments (`genai_perf/export_data/json_exporter.py`): flat,
and since configuration files exist with those of perf_analyzer in an object of their own. A request that was not
streamed has its whole time as TTFT there, which is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.schema.result import Result, StageResult, Target
from loadgen.store.foreign.load import Amount, Count, at, foreign_result, foreign_stage

KEYS: frozenset[str] = frozenset({"input_config", "request_throughput"})
# Of these, the configuration has at least one.
CONFIG_KEYS: frozenset[str] = frozenset({"endpoint", "loadgen", "phases"})
GENAI_CONFIG_KEYS: frozenset[str] = frozenset({"formatted_model_name", "perf_analyzer"})
DEFINITIONS: Mapping[str, str] = {
    "throughput": "from the first request to the last response, including ramp-in and tail; output tokens are "
    "counted by the client's tokenizer, unless it was told to use the server's usage",
    "ttft": "from before the request is sent, including connecting, to when the client has read the first chunk "
    "with output, including the client's own waits: at 256 streams on 2 cores 100 ms where 57 were true",
    "tpot": "aiperf's inter-token latency, (E2E - TTFT) / (output tokens - 1)",
    "itl": "aiperf's inter-chunk latency: gaps between chunks, not divided by the tokens of a chunk",
    "e2e": "to when the client has read the last chunk with output, from the same beginning as TTFT",
}
_GENAI_DEFINITIONS: Mapping[str, str] = {
    "throughput": "from the first request to the last response of perf_analyzer's measurement; output tokens are "
    "counted by the client's tokenizer",
    "ttft": "from perf_analyzer's request to its first response, including the client's own waits",
    "tpot": "genai-perf's inter-token latency, (E2E - TTFT) / (output tokens - 1)",
    "e2e": "to perf_analyzer's last response",
}
_ENDPOINTS = ("chat", "completions", "responses")
_MS = {"ms": 1.0, "sec": 1e3, "s": 1e3, "us": 1e-3, "ns": 1e-6}
_OPEN_LOOP = ("poisson", "gamma", "constant")


class _Metric(msgspec.Struct, frozen=True):
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


class _Document(msgspec.Struct, frozen=True):
    input_config: msgspec.Raw
    request_throughput: _Metric
    output_token_throughput: _Metric | None = None
    total_token_throughput: _Metric | None = None
    request_count: _Metric | None = None
    error_request_count: _Metric | None = None
    benchmark_duration: _Metric | None = None
    total_isl: _Metric | None = None
    total_osl: _Metric | None = None
    input_sequence_length: _Metric | None = None
    output_sequence_length: _Metric | None = None
    time_to_first_token: _Metric | None = None
    inter_token_latency: _Metric | None = None
    inter_chunk_latency: _Metric | None = None
    request_latency: _Metric | None = None
    aiperf_version: str | None = None
    was_cancelled: bool | None = None
    is_complete: bool | None = None
    incomplete_reason: str | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None


def read(document: bytes, name: str) -> Result:
    """Read aiperf's file; raises `msgspec.ValidationError` for invalid values."""
    found = msgspec.json.decode(document, type=_Document)
    config = found.input_config
    endpoint = at(config, "endpoint.type", str)
    models = [item.name for item in at(config, "models.items", list[_Item]) or []]
    models += at(config, "endpoint.model_names", list[str]) or []  # before `models` existed
    complete = not found.was_cancelled and found.is_complete is not False
    return foreign_result(
        name,
        [_stage(found, _target(config))],
        tool=f"aiperf {found.aiperf_version or ''}".rstrip(),
        model=", ".join(models) or "unknown model",
        endpoint=endpoint if endpoint in _ENDPOINTS else None,
        definitions=DEFINITIONS,
        state="complete" if complete else "stopped",
        reason="" if complete else found.incomplete_reason or "cancelled",
    )


def read_genai(document: bytes, name: str) -> Result:
    """Read genai-perf's file; raises `msgspec.ValidationError` for invalid values."""
    found = msgspec.json.decode(document, type=_Document)
    config = found.input_config
    is_table = isinstance(at(config, "endpoint", dict[str, Any] | str), dict)
    endpoint = at(config, "endpoint.type" if is_table else "endpoint_type", str)
    if False in (at(config, "streaming", bool), at(config, "endpoint.streaming", bool) if is_table else None):
        found = replace(found, time_to_first_token=None, inter_token_latency=None)
    rate = at(config, "request_rate", Amount) or at(config, "perf_analyzer.stimulus.request_rate", Amount)
    held = at(config, "concurrency", Count) or at(config, "perf_analyzer.stimulus.concurrency", Count) or 1
    target = Target(None, rate, "constant") if rate else Target(held, None, None)
    models = at(config, "model_names", list[str]) or at(config, "model", list[str] | str) or []
    model = models if isinstance(models, str) else ", ".join(models)
    return foreign_result(
        name,
        [_stage(replace(found, inter_chunk_latency=None), target)],
        tool="genai-perf",
        model=model or at(config, "formatted_model_name", str) or "unknown model",
        endpoint=endpoint if endpoint in _ENDPOINTS else None,
        definitions=_GENAI_DEFINITIONS,
    )


def _stage(found: _Document, target: Target) -> StageResult:
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


def _target(config: msgspec.Raw) -> Target:
    old: _Loadgen | None = at(config, "loadgen", _Loadgen)
    if old is not None:
        if old.request_rate is not None:
            return Target(None, old.request_rate, old.request_rate_mode)
        return Target(old.concurrency or 1, None, None)
    measured = [phase for phase in at(config, "phases", list[_Phase]) or [] if "warmup" not in (phase.kind, phase.name)]
    if not measured:
        return Target(None, None, "unknown load")
    phase = measured[-1]
    if phase.type in _OPEN_LOOP and phase.rate is not None:
        shape = f":{phase.smoothness:g}" if phase.type == "gamma" and phase.smoothness is not None else ""
        return Target(None, phase.rate, f"{phase.type}{shape}")
    if phase.type == "concurrency":
        return Target(phase.concurrency or 1, None, None)
    return Target(None, None, phase.type)


def _avg(metric: _Metric | None) -> float | None:
    return metric.avg if metric is not None else None


def _total(total: _Metric | None, each: _Metric | None, completed: int) -> int:
    """The tokens of all requests; computed from their mean where the file has no total."""
    known, mean = _avg(total), _avg(each)
    return round(known if known is not None else (mean or 0.0) * completed)
