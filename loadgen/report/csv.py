"""The stages of results as CSV for spreadsheets and pandas: one row a stage, one header, units in the names.

A stage whose load moves has neither load nor latencies in its own row: a row for each of its steps follows, whose
`step` counts from 1 and whose `direction` is `up` or `down`; `step` is empty in the row of a stage.

Columns are only ever added at the end, so that a script may go by position too; what is unknown is an empty cell.
Latencies are `<name>_<statistic>_ms` for the names of a result and mean, stddev, min, p50, p90, p95, p99, p999, max.
Of `ttft` and `ttft_from_intended`, `<name>_lower_bounds` names the statistics that are only known to be at least what
is written, and `<name>_censored` counts the streams that still waited.
`engine_` columns are the engine's own word, `gpu_` columns means over all GPUs, `met_limits` is `true`,
`false` or empty where no limit is set. Texts that a spreadsheet would take for a formula begin with an apostrophe.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from statistics import fmean

from loadgen.errors import ResultError
from loadgen.format import harmless
from loadgen.metrics.deltas import LATENCIES, Summary
from loadgen.metrics.result import CurvePoint, Result, StageResult
from loadgen.metrics.samples import GpuStage
from loadgen.metrics.slo import met_limits
from loadgen.report.configuration import engine_of, hardware_of, model_of
from loadgen.report.notes import failed_words, latencies, took_part

_STATISTICS = ("mean", "stddev", "min", "p50", "p90", "p95", "p99", "p999", "max")
_OF_STAGE = (
    *("run_id", "started_at", "state", "model", "engine", "hardware"),
    *("stage", "label", "arrival", "isl", "osl", "tokens_source", "client_limited"),
)
"""What a step has of its stage."""
_ENGINE = (
    "ttft_mean_ms",
    "queue_mean_ms",
    "prefill_mean_ms",
    "preemptions",
    "prefix_hit_rate",
    "prompt_tokens",
    "generation_tokens",
)
_REQUESTS = (
    "scheduled",
    "unsent",
    "unsent_longest_wait_s",
    "carried_over",
    "carried_in",
    "carried_failed",
    "lost",
    "warmup",
)
_GPU = ("gfx_percent", "memory_percent", "power_w", "temperature_hotspot_c", "gfx_clock_mhz")

Cell = str | float | bool | None
Cells = dict[str, Cell]


def csv_report(results: Sequence[Result]) -> str:
    """The stages of all results in which requests were sent; raises `ResultError` where there is none."""
    rows = [row for result in results for stage in result.stages if took_part(stage) for row in _rows(result, stage)]
    if not rows:
        raise ResultError("there is no stage in which a request was sent: no row to write")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows([_written(cell) for cell in row.values()] for row in rows)
    return file.getvalue()


def _rows(result: Result, stage: StageResult) -> Iterator[Cells]:
    cells = stage_cells(result, stage)
    yield cells
    for number, point in enumerate(stage.curve, 1):
        yield dict.fromkeys(cells) | {name: cells[name] for name in _OF_STAGE} | _step(stage, number, point)


def _step(stage: StageResult, number: int, point: CurvePoint) -> Cells:
    by_rate = stage.target.rate is not None
    return {
        "rate_per_s" if by_rate else "concurrency": point.load if by_rate else round(point.load),
        "measured_s": point.measured_s,
        "concurrency_mean": point.held,
        "output_tokens_per_s": point.output_tokens_per_s,
        "output_tokens_per_s_per_user": point.output_tokens_per_s_per_user,
        **{
            f"{name}_{statistic}_ms": getattr(summary, statistic)
            for name, summary in (("ttft", point.ttft_ms), ("itl", point.itl_ms))
            for statistic in _STATISTICS
        },
        "step": number,
        "direction": point.direction or None,
        "ttft_count": point.ttft_ms.count,
        "itl_count": point.itl_ms.count,
    }


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
        **_latencies(latencies(stage)),
        **_limits(stage),
        **{f"engine_{name}": getattr(stage.engine, name, None) for name in _ENGINE},
        **_energy(stage),
        **{f"gpu_{name}": _gpu_mean(stage.gpu, name) for name in _GPU},
        "client_limited": stage.limited,
        "client_why": stage.why,
        "verdicts": "; ".join(verdict.text for verdict in stage.verdicts),
        **_accounts(stage),
        **_bounds(latencies(stage)),
        **_trust(stage),
        "step": None,
        "direction": None,
        **{f"{name}_count": latencies(stage)[name].count if name in latencies(stage) else None for name in LATENCIES},
    }


def _load(stage: StageResult) -> Cells:
    target, requests = stage.target, stage.requests
    return {
        "stage": stage.index + 1,
        "label": stage.label,
        "concurrency": None if stage.curve else target.concurrency,
        "rate_per_s": None if stage.curve else target.rate,
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


def _accounts(stage: StageResult) -> Cells:
    requests, failures = stage.requests, stage.failures
    return {
        **{name: getattr(requests, name) for name in _REQUESTS},
        "errors": failed_words(requests.errors),
        "failures": failures.count if failures is not None else None,
        "failures_allowed": failures.allowed if failures is not None else None,
    }


def _bounds(latency_ms: dict[str, Summary]) -> Cells:
    cells: Cells = {}
    for name in ("ttft", "ttft_from_intended"):
        summary = latency_ms.get(name, Summary(count=0))
        cells |= {f"{name}_censored": summary.censored, f"{name}_lower_bounds": " ".join(summary.lower_bounds)}
    return cells


def _trust(stage: StageResult) -> Cells:
    wave = stage.first_wave
    ttft = wave.ttft_ms if wave is not None else None
    return {
        "inconclusive": stage.inconclusive,
        "e2e_inconclusive": stage.e2e_inconclusive,
        "carried_share": stage.carried_share,
        "tpot_parts": stage.tpot_parts,
        "tail_share": stage.tail_share,
        "first_wave_streams": wave.streams if wave is not None else None,
        "first_wave_counted": wave.counted if wave is not None else None,
        "first_wave_ttft_p50_ms": ttft.p50 if ttft is not None else None,
        "first_wave_ttft_p99_ms": ttft.p99 if ttft is not None else None,
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
