"""Stages as llm-d's benchmark report 0.2, one document each, valid by its schema (`br_v0_2_json_schema.json`).

A statistic there has a mean: a latency without one is left out. What the schema requires and a run does not know is
`unknown`, or the part that needs it is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from loadgen.metrics.mfu import flags_of
from loadgen.record.subject import known_time, model_of
from loadgen.report.notes import latencies
from loadgen.report.vllm_json import can_be_written
from loadgen.schema.deltas import Summary
from loadgen.schema.result import Result, StageResult

_LATENCIES = {
    "time_to_first_token": ("ttft", "ms"),
    "time_per_output_token": ("tpot", "ms/token"),
    "inter_token_latency": ("itl", "ms/token"),
    "normalized_time_per_output_token": ("normalized", "ms/token"),
    "request_latency": ("e2e", "ms"),
}
_STATISTICS = {name: name for name in ("mean", "stddev", "min", "p50", "p90", "p95", "p99", "max")} | {"p99p9": "p999"}


def llm_d_reports(result: Result) -> list[dict[str, Any]]:
    """A report a stage in which requests were sent or answered."""
    return [_report(result, stage) for stage in result.stages if can_be_written(result, stage)]


def _report(result: Result, stage: StageResult) -> dict[str, Any]:
    times = {}
    if known_time(stage.started_at) is not None:
        began = datetime.fromisoformat(stage.started_at)
        times = {"start": began.isoformat(), "end": (began + timedelta(seconds=stage.duration_s)).isoformat()}
    return {
        "version": "0.2",
        "run": {
            "uid": f"{result.run_id}-{stage.number}",
            "eid": result.run_id,
            "time": times | {"duration": f"PT{stage.duration_s:.3f}S"},
            "description": f"{result.measured_by or 'vramp'}, stage {stage.number}: {stage.label}",
        },
        "scenario": {"stack": _stack(result), "load": _load(result, stage)},
        "results": {"request_performance": {"aggregate": _aggregate(stage)}},
    }


def _stack(result: Result) -> list[dict[str, Any]]:
    """The engine; its accelerator needs a model and a count, so that without GPUs it is a component of no kind."""
    environment = result.environment
    command = list(environment.get("server_command") or [])
    flags = flags_of(command)
    standardized: dict[str, Any] = {
        "kind": "generic",
        "tool": str(environment.get("engine") or "unknown"),
        "tool_version": str(environment.get("vllm_version") or "unknown"),
        "model": {"name": model_of(result)},
    }
    gpus = sum(gpu.partition == 0 for gpu in result.gpus)
    if gpus and flags:
        names = {"tp": "tensor-parallel-size", "dp": "data-parallel-size", "pp": "pipeline-parallel-size"}
        sizes = {name: int(flags[flag]) if flags.get(flag, "").isdecimal() else 1 for name, flag in names.items()}
        parallelism = {**sizes, "dp_local": sizes["dp"], "workers": 1}
        parallelism["ep"] = sizes["tp"] * sizes["dp"] if "enable-expert-parallel" in flags else 1
        count = sizes["tp"] * sizes["dp"] * sizes["pp"]
        names_of_gpus = ", ".join(dict.fromkeys(gpu.name for gpu in result.gpus))
        standardized |= {
            "kind": "inference_engine",
            "role": "replica",
            "replicas": 1,
            "accelerator": {"model": names_of_gpus, "count": count, "parallelism": parallelism},
        }
    native = {"args": flags, "envars": dict(environment.get("server_env") or {})}
    return [{"metadata": _metadata("engine", native), "standardized": standardized, "native": native}]


def _load(result: Result, stage: StageResult) -> dict[str, Any]:
    load = result.profile.get("load") or {}
    is_own = result.measured_by is None
    source = "sampled" if load.get("data") or load.get("trace") else "random"
    standardized: dict[str, Any] = {
        "tool": result.measured_by or "vramp",
        "tool_version": result.vramp_version if is_own else "unknown",
        "parallelism": max(1, result.client.workers),
        "source": source if is_own else "unknown",
        "stage": stage.index,
        "input_seq_len": _length(load.get("isl"), stage.isl),
        "output_seq_len": _length(load.get("osl"), stage.osl),
    }
    target = stage.target
    if target.rate:
        standardized["rate_qps"] = target.rate
    if target.concurrency:
        standardized["concurrency"] = target.concurrency
    native = {"args": {}, "envars": {}, "config": load}
    return {"metadata": _metadata(None, native), "standardized": standardized, "native": native}


def _length(requested: object, stage_tokens: int) -> dict[str, Any]:
    """A stage's length; `other` if the profile draws it from a distribution."""
    return {"distribution": "other" if isinstance(requested, str) else "fixed", "value": stage_tokens}


def _metadata(label: str | None, native: Mapping[str, Any]) -> dict[str, Any]:
    digest = hashlib.sha256(msgspec.json.encode(native, order="sorted")).hexdigest()[:32]
    return {"schema_version": "0.0.1", "cfg_id": digest} | ({"label": label} if label is not None else {})


def _aggregate(stage: StageResult) -> dict[str, Any]:
    requests, tokens, rates = stage.requests, stage.tokens, stage.throughput
    found = latencies(stage)
    counts = {
        "input_length": _mean("count", tokens.input_per_request),
        "output_length": _mean("count", tokens.output_per_request),
    }
    throughput = {
        "input_token_rate": _mean("tokens/s", rates.input_tokens_per_s),
        "output_token_rate": _mean("tokens/s", rates.output_tokens_per_s),
        "total_token_rate": _mean("tokens/s", rates.total_tokens_per_s),
        "request_rate": _mean("queries/s", rates.requests_per_s),
    }
    latency = {theirs: _statistics(found.get(ours), units) for theirs, (ours, units) in _LATENCIES.items()}
    incomplete = requests.sent - requests.completed - requests.failed
    totals = {"total": requests.sent, "failures": requests.failed, "incomplete": max(0, incomplete)}
    return {
        "requests": totals | _known(counts),
        "latency": _known(latency),
        "throughput": _known(throughput),
    }


def _known(values: Mapping[str, dict[str, Any] | None]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _mean(units: str, value: float | None) -> dict[str, Any] | None:
    return {"units": units, "mean": value} if value is not None else None


def _statistics(summary: Summary | None, units: str) -> dict[str, Any] | None:
    """Every statistic that is known exactly: a lower bound would be read as a value."""
    if summary is None or summary.mean is None or "mean" in summary.lower_bounds:
        return None
    exact = {theirs: ours for theirs, ours in _STATISTICS.items() if ours not in summary.lower_bounds}
    values = {theirs: getattr(summary, ours) for theirs, ours in exact.items()}
    return {"units": units} | {name: value for name, value in values.items() if value is not None}
