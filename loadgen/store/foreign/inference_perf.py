"""inference-perf's `stage_N_lifecycle_metrics.json` and `summary_lifecycle_metrics.json`: one load a file.

The keys are those of 0.1 to 0.7 (`inference_perf/reportgen/base.py`); times are in seconds, and a summary that is null
was not measured. The model and the date are in other files of the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from loadgen.schema.result import Result, StageResult, Target
from loadgen.store.foreign.load import Amount, Count, foreign_result, foreign_stage

KEYS: frozenset[str] = frozenset({"load_summary", "successes", "failures"})
DEFINITIONS: Mapping[str, str] = {
    "throughput": "of completed requests, from the first request sent to the last answer, including ramp-in and "
    "tail; output tokens are counted by the client's tokenizer, unless it was told to use the server's usage",
    "ttft": "to when the client has read the first chunk with `content`, so that reasoning before it counts as "
    "waiting, including the client's own waits",
    "tpot": "(last token - first token) / (output tokens - 1) of each request",
    "itl": "every token of a chunk has the time of the chunk: within a chunk gaps are 0, between chunks whole",
    "e2e": "to the end of the stream, which comes after the last token",
}
_NAMES = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "itl": "inter_token_latency"}
_NAMES |= {"e2e": "request_latency"}
_STATISTICS = {"median": "p50", "p99.9": "p999", **{name: name for name in ("mean", "min", "max", "p90", "p95", "p99")}}
_Statistics = dict[str, Annotated[float, msgspec.Meta(ge=0, le=1e18)]]


class _Load(msgspec.Struct, frozen=True):
    count: Count | None = None
    requested_rate: Amount | None = None
    concurrency: Count | None = None
    send_duration: Amount | None = None


class _Throughput(msgspec.Struct, frozen=True):
    requests_per_sec: Amount
    output_tokens_per_sec: Amount
    total_tokens_per_sec: Amount


class _Successes(msgspec.Struct, frozen=True):
    count: Count
    latency: dict[str, _Statistics | None]
    throughput: _Throughput
    prompt_len: _Statistics | None = None  # before `prompt_tokens` existed
    prompt_tokens: _Statistics | None = None
    output_len: _Statistics | None = None
    output_tokens: _Statistics | None = None


class _Failures(msgspec.Struct, frozen=True):
    count: Count


class _Report(msgspec.Struct, frozen=True):
    load_summary: _Load
    successes: _Successes
    failures: _Failures
    benchmark_time_seconds: Amount | None = None


def read(document: bytes, name: str) -> Result:
    """Read a report on a stage or on the run; raises `msgspec.ValidationError` for invalid values."""
    report = msgspec.json.decode(document, type=_Report)
    return foreign_result(
        name,
        [_stage(report)],
        tool="inference-perf",
        model="unknown model",
        endpoint=None,
        definitions=DEFINITIONS,
    )


def _stage(report: _Report) -> StageResult:
    done, load = report.successes, report.load_summary
    rate = done.throughput.requests_per_sec
    seconds = report.benchmark_time_seconds
    if seconds is None:
        seconds = done.count / rate if rate else 0.0
    if load.concurrency is not None:
        target = Target(load.concurrency, None, None)
    else:  # The arrivals of its stages are constant or Poisson, which the file does not say.
        target = Target(None, load.requested_rate, None if load.requested_rate is not None else "all stages together")
    return foreign_stage(
        target,
        duration_s=seconds,
        completed=done.count,
        failed=report.failures.count,
        input_tokens=_total(done.prompt_tokens, done.prompt_len, done.count),
        output_tokens=_total(done.output_tokens, done.output_len, done.count),
        requests_per_s=rate,
        output_tokens_per_s=done.throughput.output_tokens_per_sec,
        total_tokens_per_s=done.throughput.total_tokens_per_sec,
        latency_ms={
            ours: {name: found[key] * 1000 for key, name in _STATISTICS.items() if key in found}
            for ours, theirs in _NAMES.items()
            if (found := done.latency.get(theirs)) is not None
        },
    )


def _total(whole: _Statistics | None, each: _Statistics | None, count: int) -> int:
    if whole is not None and "total" in whole:
        return round(whole["total"])
    return round((each or {}).get("mean", 0.0) * count)
