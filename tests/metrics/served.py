"""Stages as an engine could have served them, with known truth: streams that are independent, or that go in step."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.difference import Estimate
from loadgen.metrics.frontier import Price
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage import StageMetrics
from loadgen.record.figures import figures_of
from loadgen.record.output import CanaryRecord
from loadgen.record.stage import StageRecord
from loadgen.record.stage_result import stage_result
from loadgen.schema.journal import StageEnded, StageStarted
from loadgen.schema.result import Limits, Result, StageHardware, StageResult
from tests.report.test_text import result

NO_LIMITS = Limits()
TICK_S = 0.25
E2E_S = 1.0
TOKENS = 128


def started(**changes: Any) -> StageStarted:
    fields: dict[str, Any] = {
        "t_s": 0.0,
        "index": 0,
        "label": "conc 16",
        "concurrency": 16,
        "rate": None,
        "arrival": "poisson",
        "isl": 512,
        "osl": TOKENS,
        "requests": None,
        "duration_s": 60.0,
        "warmup_requests": 0,
        "warmup_s": 0.0,
    }
    return StageStarted(**fields | changes)


def served(
    seed: int,
    *,
    seconds: float = 30.0,
    concurrency: int = 16,
    scale: float = 1.0,
    in_step: bool = False,
    growth_per_s: float = 0.0,
    **load: Any,
) -> StageRecord:
    """A stage over; each stream takes about a second, and `scale` is what all its times are multiplied by.

    In step, streams come and go together, and what delays one delays all: they vary by 5 % from wave to wave and by
    1 % within one. Else each varies by 5 % on its own.
    """
    rng = np.random.default_rng(seed)
    stage = StageRecord(started(concurrency=concurrency, **load))
    per_tick, per_wave = round(concurrency * TICK_S / E2E_S), round(E2E_S / TICK_S)
    for tick in range(round(seconds / TICK_S)):
        grown = scale * (1 + growth_per_s * tick * TICK_S)
        if in_step:
            done = concurrency if tick % per_wave == 0 else 0
            times = grown * (1 + 0.05 * rng.standard_normal()) * (1 + 0.01 * rng.standard_normal(done))
        else:
            done = per_tick
            times = grown * (1 + 0.05 * rng.standard_normal(done))
        metrics = _tick(times, tick, concurrency)
        stage.metrics.merge(metrics)
        stage.blocks.add(metrics, stage.window_s)
    stage.ended = StageEnded(t_s=seconds, index=stage.started.index, reason="its time was up")
    return stage


def _tick(times: NDArray[np.float64], tick: int, held: int) -> StageMetrics:
    metrics = StageMetrics()
    metrics.window_start_ns, metrics.window_end_ns = 0, round((tick + 1) * TICK_S * 1e9)
    tokens = round(TOKENS * len(times) / max(1e-9, float(times.mean()))) if len(times) else 0
    metrics.counters |= {
        "sent": len(times),
        "completed": len(times),
        "good": len(times),
        "input_tokens": 512 * len(times),
        "output_tokens": TOKENS * len(times),
        "window_requests": len(times),
        "window_output_tokens": tokens,
        "held_area_ns": round(held * TICK_S * 1e9),
    }
    for name, base_ms in (("ttft", 100.0), ("tpot", 8.0), ("itl", 8.0), ("e2e", 1e3 * E2E_S)):
        histogram = Histogram()
        histogram.record_us(np.maximum(0, base_ms * 1000 * times).astype(np.int64))
        metrics.latency[name] = histogram
    return metrics


def result_of(stage: StageRecord, limits: Limits = NO_LIMITS) -> StageResult:
    return stage_result(
        stage,
        started_at="2026-01-01T00:00:00.000Z",
        now_s=60.0,
        limits=limits,
        urls=[],
        machine=StageHardware(),
        canaries=CanaryRecord(),
        price=Price(),
        stages=[stage],
        with_hdr=True,
    )


def running_figures(stage: StageRecord, limits: Limits = NO_LIMITS) -> dict[str, Estimate]:
    """Its figures as they are while it runs: from its histograms, not from those of a result."""
    return figures_of(result_of(stage, limits), histograms=stage.metrics.latency)


def run_of(*stages: StageRecord, **changes: Any) -> Result:
    """The result of a run that had these stages."""
    fields: dict[str, Any] = {
        "run_id": "the-run",
        "started_at": "2026-01-01T00:00:00.000Z",
        "profile": {"server": {"engine": "vllm", "args": {}}, "load": {"endpoint": "completions", "isl": 512}},
        "environment": {"engine": "vllm", "model": "some/model", "vllm_version": "0.32.0"},
    }
    whole = result(*(result_of(stage) for stage in stages))
    return msgspec.structs.replace(whole, **fields | changes)
