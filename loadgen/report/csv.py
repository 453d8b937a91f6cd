"""The stages of results as CSV for spreadsheets and pandas: one row a stage, one header, units in the names.

Columns are only ever added at the end, so that a script may go by position too; what is unknown is an empty cell.
Latencies are `<name>_<statistic>_ms` for the names of a result and mean, stddev, min, p50, p90, p95, p99, p999, max.
`engine_` columns are the engine's own word, `gpu_` columns means over all GPUs, `met_limits` is `true`,
`false` or empty where no limit is set. Texts that a spreadsheet would take for a formula begin with an apostrophe.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from statistics import fmean

from loadgen.errors import ResultError
from loadgen.metrics.gpu_stage import GpuStage
from loadgen.metrics.histogram import Summary
from loadgen.metrics.result import Result, StageResult
from loadgen.metrics.slo import met_limits
from loadgen.metrics.stage import LATENCIES
from loadgen.report.cells import engine_of, hardware_of, model_of
from loadgen.text import harmless

_STATISTICS = ("mean", "stddev", "min", "p50", "p90", "p95", "p99", "p999", "max")
_ENGINE = (
    "ttft_mean_ms",
    "queue_mean_ms",
    "prefill_mean_ms",
    "preemptions",
    "prefix_hit_rate",
    "prompt_tokens",
    "generation_tokens",
)
_GPU = ("gfx_percent", "memory_percent", "power_w", "temperature_hotspot_c", "gfx_clock_mhz")

Cell = str | float | bool | None
Cells = dict[str, Cell]


def csv_report(results: Sequence[Result]) -> str:
    """The stages of all results in which requests were sent; raises `ResultError` where there is none."""
    rows = [stage_cells(result, stage) for result in results for stage in result.stages if stage.requests.sent]
    if not rows:
        raise ResultError("there is no stage in which a request was sent: no row to write")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows([_written(cell) for cell in row.values()] for row in rows)
    return file.getvalue()


def stage_cells(result: Result, stage: StageResult) -> dict[str, Cell]:
    """The cells of one stage by their column, always the same columns in the same order."""
    return {
        "run_id": result.run_id,
        "started_at": stage.started_at,
        "state": result.state,
        "model": model_of(result),
        "engine": engine_of(result),
        "hardware": hardware_of(result),
        **_load(stage),
        **_throughput(stage),
        **_latencies(stage.latency_ms),
        **_limits(stage),
        **{f"engine_{name}": getattr(stage.engine, name, None) for name in _ENGINE},
        **_energy(stage),
        **{f"gpu_{name}": _gpu_mean(stage.gpu, name) for name in _GPU},
        "client_limited": stage.limited,
        "client_why": stage.why,
        "verdicts": "; ".join(verdict.text for verdict in stage.verdicts),
    }


def _load(stage: StageResult) -> Cells:
    target, requests = stage.target, stage.requests
    return {
        "stage": stage.index + 1,
        "label": stage.label,
        "concurrency": target.concurrency,
        "rate_per_s": target.rate,
        "arrival": target.arrival,
        "isl": stage.isl,
        "osl": stage.osl,
        "measured_s": stage.measured_s,
        "sent": requests.sent,
        "completed": requests.completed,
        "failed": requests.failed,
        "unfinished": requests.unfinished,
        "cancelled": requests.cancelled,
    }


def _throughput(stage: StageResult) -> Cells:
    tokens, rate = stage.tokens, stage.throughput
    return {
        "concurrency_mean": stage.concurrency.mean,
        "input_tokens": tokens.input,
        "output_tokens": tokens.output,
        "tokens_source": tokens.source,
        "requests_per_s": rate.requests_per_s,
        "input_tokens_per_s": rate.input_tokens_per_s,
        "output_tokens_per_s": rate.output_tokens_per_s,
        "total_tokens_per_s": rate.total_tokens_per_s,
        "output_tokens_per_s_per_user": rate.output_tokens_per_s_per_user,
    }


def _latencies(latency_ms: dict[str, Summary]) -> Cells:
    empty = Summary(count=0)
    return {
        f"{name}_{statistic}_ms": getattr(latency_ms.get(name, empty), statistic)
        for name in LATENCIES
        for statistic in _STATISTICS
    }


def _limits(stage: StageResult) -> Cells:
    goodput = stage.goodput
    return {
        "met_limits": met_limits(stage),
        "goodput_share": goodput.share if goodput is not None else None,
        "goodput_requests_per_s": goodput.requests_per_s if goodput is not None else None,
    }


def _energy(stage: StageResult) -> Cells:
    energy = stage.energy
    return {
        "joules": energy.joules if energy is not None else None,
        "joules_per_output_token": energy.joules_per_output_token if energy is not None else None,
        "tokens_per_s_per_w": energy.tokens_per_s_per_w if energy is not None else None,
    }


def _gpu_mean(gpus: Sequence[GpuStage], name: str) -> float | None:
    figures = [figure for gpu in gpus if (figure := getattr(gpu, name)) is not None]
    return fmean(figure.mean for figure in figures) if figures else None


def _written(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, str):
        text = harmless(cell)
        return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
    return repr(cell)
