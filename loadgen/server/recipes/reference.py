"""What another load generator measured as the `[reference]` of a profile, which a run then shows next to its own.

Figures keep their values, and the tool's definitions go along as notes. Only loads that a stage can have become points:
a number of streams, or a rate.
"""

from __future__ import annotations

from typing import Any

from loadgen.masking import masked_text
from loadgen.profile.schema import Reference
from loadgen.record.subject import model_of
from loadgen.schema.result import Result, StageResult
from loadgen.server.recipes.imported import table_lines

_RATES = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
_LATENCIES = ("ttft", "tpot", "itl", "e2e")
_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "p999")
_DIGITS = 6


def reference_of(result: Result, source: str) -> dict[str, Any]:
    """The table, valid as one of a profile; without points if no load can be one of a stage's."""
    measured_by = result.measured_by or f"vramp {result.vramp_version}"
    notes = [f"measured with {measured_by}"]
    notes += [f"{name}: {text}" for name, text in result.definitions.items()]
    environment, model = result.environment, model_of(result)
    system = {
        "model": "" if model == "unknown model" else model,
        "version": environment.get("vllm_version"),
        "image": environment.get("image"),
        "gpu": result.gpus[0].name if result.gpus else None,
        "gpus": len(result.gpus) or None,
    }
    reference = {
        "source": source,
        "notes": list(map(masked_text, notes)),
        "system": {name: value for name, value in system.items() if value},
        "points": list(filter(None, map(_point, result.stages))),
    }
    Reference.model_validate(reference)
    return reference


def reference_text(reference: dict[str, Any]) -> str:
    """As a part of a profile."""
    return "\n".join(table_lines("", {"reference": reference})).lstrip("\n") + "\n"


def _point(stage: StageResult) -> dict[str, Any]:
    """The load and the figures of a stage, empty without both; a lower bound is no figure to compare with."""
    target = stage.target
    load = {"concurrency": target.concurrency, "rate": target.rate} if target.moves is None else {}
    load = {name: value for name, value in load.items() if value}
    shape = {name: tokens for name in ("isl", "osl") if (tokens := getattr(stage, name))}
    rates = {name: getattr(stage.throughput, name) for name in _RATES}
    times = {
        f"{latency}_{statistic}_ms": getattr(summary, statistic)
        for latency in _LATENCIES
        if (summary := stage.latency_ms.get(latency)) is not None
        for statistic in _STATISTICS
        if statistic not in summary.lower_bounds
    }
    figures = {name: float(f"{value:.{_DIGITS}g}") for name, value in (rates | times).items() if value is not None}
    return load | shape | {"figures": figures} if load and figures else {}
