"""guidellm's JSON: one document with a benchmark per load.

The schema is that of 0.2 to 0.8 (`guidellm/benchmark`): until 0.3 the strategy is in `args` and totals are next to the
metrics; from 0.4 on they are in `config` and in the metrics. Every distribution exists for successful, incomplete and
errored requests; guidellm's own tables show the successful ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from loadgen.schema.result import Result, StageResult, Target
from loadgen.store.foreign.load import Amount, Count, at, foreign_result, foreign_stage

KEYS: frozenset[str] = frozenset({"benchmarks"})
DEFINITIONS: Mapping[str, str] = {
    "throughput": "means of rates over its measured time, which leaves out warm-up only if that was asked for",
    "ttft": "from when the headers are sent to when the client has read the first line with output, by the wall "
    "clock: excluding encoding and connecting, including the client's own waits: at 256 streams on 2 cores 79 ms "
    "where 57 were true",
    "tpot": "guidellm's inter-token latency, (last token - first token) / (output tokens - 1), whose mean and "
    "percentiles are over tokens and not over requests",
    "itl": "guidellm keeps no single gaps, only their mean for each request",
    "e2e": "to the end of the stream, which comes after the last token",
}
_ENDPOINTS = {"/v1/completions": "completions", "/v1/chat/completions": "chat", "/v1/responses": "responses"}
_ENDPOINTS |= {"text_completions": "completions", "chat_completions": "chat"}  # until 0.5

_TPOT_SINCE_0_4 = "; what guidellm calls TPOT includes TTFT, and is left out here"
_TPOT_BEFORE = "; what this guidellm calls TPOT divides the same time by all output tokens, and is left out here"


class _Percentiles(msgspec.Struct, frozen=True):
    p90: Amount
    p95: Amount
    p99: Amount
    p999: Amount


class _Distribution(msgspec.Struct, frozen=True):
    mean: Amount
    median: Amount
    std_dev: Amount
    min: Amount
    max: Amount
    count: Count
    total_sum: Amount
    percentiles: _Percentiles

    def statistics(self, per: float) -> dict[str, float]:
        """In milliseconds; a value of 1 is `per` ms."""
        known = {"mean": self.mean, "p50": self.median, "stddev": self.std_dev, "min": self.min, "max": self.max}
        known |= msgspec.structs.asdict(self.percentiles)
        return {"count": self.count, **{name: value * per for name, value in known.items()}}


class _ByStatus(msgspec.Struct, frozen=True):
    successful: _Distribution | None = None
    total: _Distribution | None = None


class _Totals(msgspec.Struct, frozen=True):
    successful: Count
    incomplete: Count = 0
    errored: Count = 0


class _Metrics(msgspec.Struct, frozen=True):
    requests_per_second: _ByStatus
    request_concurrency: _ByStatus
    request_latency: _ByStatus
    prompt_token_count: _ByStatus
    output_token_count: _ByStatus
    time_to_first_token_ms: _ByStatus
    inter_token_latency_ms: _ByStatus
    output_tokens_per_second: _ByStatus
    tokens_per_second: _ByStatus
    request_totals: _Totals | None = None


class _Strategy(msgspec.Struct, frozen=True):
    type_: str
    streams: Count | None = None
    rate: Amount | None = None
    max_concurrency: Count | None = None


class _Benchmark(msgspec.Struct, frozen=True):
    start_time: Amount
    duration: Amount
    metrics: _Metrics
    request_totals: _Totals | None = None  # before 0.4


def read(document: bytes, name: str) -> Result:
    """Read guidellm's file; raises `ValueError` for invalid values."""
    benchmarks = at(document, "benchmarks", list[msgspec.Raw])
    if not benchmarks:
        raise ValueError("benchmarks: expected at least one")
    first = benchmarks[0]
    model = (
        at(first, "config.backend.model", str)
        or at(document, "config.spec.backend.model", str)
        or at(document, "args.model", str)  # until 0.6
        or at(first, "worker.backend_model", str)  # until 0.3
    )
    form = at(document, "config.spec.backend.request_format", str)
    if not form:  # until 0.6: a name, or a formatter's settings
        form = str(at(document, "args.data_request_formatter", Any))
    tpot = DEFINITIONS["tpot"] + (_TPOT_BEFORE if at(first, "config", dict[str, Any]) is None else _TPOT_SINCE_0_4)
    return foreign_result(
        name,
        [_stage(benchmark) for benchmark in benchmarks],
        tool=f"guidellm {at(document, 'metadata.guidellm_version', str) or ''}".rstrip(),
        model=model or "unknown model",
        endpoint=_ENDPOINTS.get(form),
        definitions={**DEFINITIONS, "tpot": tpot},
    )


def _stage(document: msgspec.Raw) -> StageResult:
    benchmark = msgspec.json.decode(document, type=_Benchmark)
    metrics = benchmark.metrics
    totals = metrics.request_totals or benchmark.request_totals or _Totals(0)
    held = metrics.request_concurrency.total or metrics.request_concurrency.successful
    latencies = {
        "ttft": (metrics.time_to_first_token_ms, 1.0),
        "tpot": (metrics.inter_token_latency_ms, 1.0),
        "e2e": (metrics.request_latency, 1000.0),
    }
    return foreign_stage(
        _target(at(document, "config.strategy", _Strategy) or at(document, "args.strategy", _Strategy)),
        start_unix_s=benchmark.start_time,
        duration_s=benchmark.duration,
        completed=totals.successful,
        failed=totals.errored,
        unfinished=totals.incomplete,
        input_tokens=_sum(metrics.prompt_token_count),
        output_tokens=_sum(metrics.output_token_count),
        requests_per_s=_mean(metrics.requests_per_second),
        output_tokens_per_s=_mean(metrics.output_tokens_per_second),
        total_tokens_per_s=_mean(metrics.tokens_per_second),
        held_mean=held.mean if held is not None else None,
        latency_ms={
            name: values.successful.statistics(per)
            for name, (values, per) in latencies.items()
            if values.successful is not None
        },
    )


def _target(strategy: _Strategy | None) -> Target:
    if strategy is None:
        return Target(None, None, None)
    match strategy.type_:
        case "synchronous":
            return Target(1, None, None)
        case "concurrent":
            return Target(strategy.streams, None, None)
        case "constant" | "poisson":
            return Target(None, strategy.rate, strategy.type_)
        case "throughput" if strategy.max_concurrency is not None:
            return Target(strategy.max_concurrency, None, None)
        case other:
            return Target(None, None, other)


def _mean(values: _ByStatus) -> float | None:
    return values.successful.mean if values.successful is not None else None


def _sum(values: _ByStatus) -> int:
    return round(values.successful.total_sum) if values.successful is not None else 0
