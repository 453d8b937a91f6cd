"""inference-perf's `stage_N_lifecycle_metrics.json` and `summary_lifecycle_metrics.json`: one load a file.

The keys are those of 0.1 to 0.7 (`inference_perf/reportgen/base.py`); times are in seconds, and a summary that is null
was not measured. The model and the date are in other files of the report.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from loadgen.schema.deltas import Summary
from loadgen.schema.result import Result, StageResult, Target
from loadgen.store.foreign.definitions import DEFINITIONS
from loadgen.store.foreign.load import Amount, Count, foreign_result, foreign_stage, summary_of

KEYS: frozenset[str] = frozenset({"load_summary", "successes", "failures"})
_NAMES = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "itl": "inter_token_latency"}
_NAMES |= {"e2e": "request_latency"}
_STATISTICS = {"mean": "mean", "min": "min", "max": "max", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
_STATISTICS |= {"p99.9": "p999"}
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
        definitions=DEFINITIONS["inference-perf"],
    )


def _stage(report: _Report) -> StageResult:
    done, load = report.successes, report.load_summary
    rate = done.throughput.requests_per_sec
    seconds = report.benchmark_time_seconds
    if seconds is None:
        seconds = done.count / rate if rate else 0.0
    output_tokens = _total(done.output_tokens, done.output_len, done.count)
    return foreign_stage(
        _target(load),
        start_unix_s=0.0,
        duration_s=seconds,
        completed=done.count,
        failed=report.failures.count,
        input_tokens=_total(done.prompt_tokens, done.prompt_len, done.count),
        output_tokens=output_tokens,
        requests_per_s=rate,
        output_tokens_per_s=done.throughput.output_tokens_per_sec,
        total_tokens_per_s=done.throughput.total_tokens_per_sec,
        latency_ms={
            ours: _summary(found, max(0, output_tokens - done.count) if ours == "itl" else done.count)
            for ours, theirs in _NAMES.items()
            if (found := done.latency.get(theirs)) is not None
        },
    )


def _target(load: _Load) -> Target:
    if load.concurrency is not None:
        return Target(load.concurrency, None, None)
    # The arrivals of its stages are constant or Poisson, which the file does not say.
    return Target(None, load.requested_rate, None if load.requested_rate is not None else "all stages together")


def _total(whole: _Statistics | None, each: _Statistics | None, count: int) -> int:
    if whole is not None and "total" in whole:
        return round(whole["total"])
    return round((each or {}).get("mean", 0.0) * count)


def _summary(found: _Statistics, count: int) -> Summary:
    return summary_of(count, {ours: found[theirs] * 1000 for theirs, ours in _STATISTICS.items() if theirs in found})
