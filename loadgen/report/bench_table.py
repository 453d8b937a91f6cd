"""The tables of vLLM's three benchmarks, line by line as `vllm bench` prints them.

What vLLM measures and a result lacks is left out, never estimated. A value without measurements is `-`.

Below the tables of a ladder of rates comes its serving curve: normalized latency (E2E divided by input and output
tokens) against the requests a minute that were answered. While a server keeps up, latency is flat; beyond that, the
curve turns upwards and the achieved rate falls behind the requested one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadgen.format import Statistic, bounded, fixed
from loadgen.metrics.histogram import Histogram
from loadgen.report.notes import first_messages, has_numbers, request_counts, stage_notes, took_part
from loadgen.report.tabular import Column, text_lines
from loadgen.schema.deltas import Summary
from loadgen.schema.result import Result, StageResult

SERVE_METRICS = {
    "ttft": ("TTFT", "Time to First Token", "ttft"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)", "tpot"),
    "itl": ("ITL", "Inter-token Latency", "itl"),
    "e2el": ("E2EL", "End-to-end Latency", "e2e"),
}
"""By vLLM's name: short title, long title, and the name in a result."""
ITERATION = "iteration"  # how the labels of the latency benchmark's measured stages begin
LATENCY_PERCENTS = (10, 25, 50, 75, 90, 99)
_OF_EVERY_BATCH = ("First wave", "Tail")  # notes that hold for every batch
_KNOWN = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9}
_VLLMS = ("Successful requests", "Failed requests")  # the outcomes that vLLM counts
_WIDTH = 50
_BAR = 30


def serve_tables(result: Result, *, metrics: Sequence[str], percents: Sequence[float]) -> str:
    """One table for each stage, the serving curve of a rate ladder, and whether to trust them."""
    tables = [_serve_table(stage, metrics=metrics, percents=percents) for stage in result.stages if took_part(stage)]
    curve = serving_curve_table(result)
    return "\n".join([*tables, *([curve] if curve else []), *trust_lines(result)])


def _serve_table(stage: StageResult, *, metrics: Sequence[str], percents: Sequence[float]) -> str:
    """The result of `vllm bench serve` for one stage; `metrics` are keys of `SERVE_METRICS`."""
    blocks = [_metric_lines(stage, metric, percents) for metric in metrics] if has_numbers(stage) else []
    return "\n".join(
        [
            f"{' Serving Benchmark Result ':=^{_WIDTH}}",
            *_count_lines(stage),
            *_throughput_lines(stage),
            *(line for block in blocks for line in block),
            "=" * _WIDTH,
        ]
    )


def _count_lines(stage: StageResult) -> list[str]:
    requests, target = stage.requests, stage.target
    bounded = target.concurrency is not None and target.concurrency < requests.sent
    return [
        _line("Successful requests:", requests.completed),
        _line("Failed requests:", requests.failed),
        *(_line(f"{one.name}:", one.words) for one in request_counts(requests) if one.name not in _VLLMS),
        *([_line("Maximum request concurrency:", target.concurrency)] if bounded else []),
        *([_line("Request rate configured (RPS):", target.rate)] if target.rate is not None else []),
        _line("Benchmark duration (s):", stage.measured_s),
        _line("Total input tokens:", stage.tokens.input),
        _line("Total generated tokens:", stage.tokens.output),
    ]


def _throughput_lines(stage: StageResult) -> list[str]:
    throughput, goodput = stage.throughput, stage.goodput
    return [
        _line("Request throughput (req/s):", throughput.requests_per_s),
        *([_line("Request goodput (req/s):", goodput.requests_per_s)] if goodput is not None else []),
        _line("Output token throughput (tok/s):", throughput.output_tokens_per_s),
        _line("Peak concurrent requests:", float(stage.concurrency.peak)),
        _line("Total token throughput (tok/s):", throughput.total_tokens_per_s),
    ]


def _metric_lines(stage: StageResult, metric: str, percents: Sequence[float]) -> list[str]:
    short, long, name = SERVE_METRICS[metric]
    summary = stage.latency_ms[name]
    return [
        f"{long:-^{_WIDTH}}",
        _line(f"Mean {short} (ms):", bounded(Statistic.of(summary, "mean"), fixed)),
        _line(f"Median {short} (ms):", bounded(Statistic.of(summary, "p50"), fixed)),
        *[_line(f"P{percent:g} {short} (ms):", _percentile(summary, percent)) for percent in percents],
    ]


def _percentile(summary: Summary, percent: float) -> str:
    """The percentile; a lower bound if the next higher percentile in the result is one."""
    value_ms = percentile_ms(summary, percent)
    above = next((name for name, known in _KNOWN.items() if known >= percent), "max")
    return bounded(Statistic(value_ms, above in summary.lower_bounds), fixed)


def percentile_ms(summary: Summary, percent: float) -> float | None:
    """Any nearest-rank percentile of a summary, read from its HDR histogram; None without one."""
    if summary.hdr is None or summary.max is None:
        return None
    value_ms = Histogram.from_hdr(summary.hdr).percentile_ms(percent)
    # The encoded histogram has the maximum only to the precision of its bucket.
    return None if value_ms is None else min(value_ms, summary.max)


def latency_table(result: Result) -> str:
    """The result of `vllm bench latency`: average and percentiles of a batch's latency, interpolated as vLLM does."""
    iterations = [stage for stage in result.stages if stage.label.startswith(ITERATION)]
    latencies_s = [latency for stage in iterations if (latency := batch_latency_s(stage)) is not None]
    lost = len(iterations) - len(latencies_s)
    lines = [f"Batch size: {iterations[0].target.concurrency}"] if iterations else []
    lines += [f"Iterations with failed or unfinished requests, left out: {lost}"] if lost else []
    if latencies_s:
        lines.append(f"Avg latency: {np.mean(latencies_s):.6f} seconds")
        values = np.percentile(latencies_s, LATENCY_PERCENTS)
        pairs = zip(LATENCY_PERCENTS, values, strict=True)
        lines += [f"{percent}% percentile latency: {value:.6f} seconds" for percent, value in pairs]
    return "\n".join([*lines, *trust_lines(result, without=_OF_EVERY_BATCH)])


def batch_latency_s(stage: StageResult) -> float | None:
    """The time from the request to the last token of a batch's slowest stream; None if the batch is incomplete."""
    slowest_ms = stage.latency_ms["e2e"].max
    if slowest_ms is None or stage.requests.completed != stage.target.concurrency:
        return None
    return slowest_ms / 1000


def throughput_table(result: Result) -> str:
    """The result of `vllm bench throughput`, and requests a minute."""
    lines = [line for stage in result.stages if stage.requests.sent for line in _offline_lines(stage)]
    return "\n".join([*lines, *trust_lines(result)])


def _offline_lines(stage: StageResult) -> list[str]:
    requests, rate = stage.requests, stage.throughput
    lost = requests.failed + requests.unfinished
    return [
        *([f"Failed or unfinished requests: {lost} of {requests.sent}"] if lost else []),
        f"Throughput: {fixed(rate.requests_per_s)} requests/s, {fixed(rate.total_tokens_per_s)} total tokens/s, "
        f"{fixed(rate.output_tokens_per_s)} output tokens/s",
        f"Throughput: {fixed(_per_min(rate.requests_per_s))} requests/min",
        f"Total num prompt tokens:  {fixed(stage.tokens.input, 0)}",
        f"Total num output tokens:  {stage.tokens.output}",
    ]


def trust_lines(result: Result, *, without: Sequence[str] = ()) -> list[str]:
    """What a reader must know to judge a table: notes, a limited client, failures, an early end."""
    limited = result.client.limited
    messages = [line for stage in result.stages for line in first_messages(stage)]
    reported = [(stage, note) for stage in result.stages for note in stage_notes(stage) if note.subject not in without]
    notes = [f"stage {stage.index + 1}: {note}" for stage, note in reported]
    return [
        *notes,
        *([f"client: LIMITED ({result.client.why}): these are not the server's numbers alone"] if limited else []),
        *dict.fromkeys(messages),
        *([f"data: {result.data.words}"] if result.data is not None else []),
        *([f"run: {result.state}: {result.reason}"] if result.state != "complete" else []),
    ]


def _line(name: str, value: float | str | None) -> str:
    return f"{name:<40} {value if isinstance(value, int | str) else fixed(value)}"


def _serving_stages(result: Result) -> list[StageResult]:
    """The open-loop stages of a result with completed requests, by rate."""
    found = (stage for stage in result.stages if stage.target.rate is not None and stage.requests.completed)
    return sorted(found, key=_rate)


def _rate(stage: StageResult) -> float:
    return stage.target.rate or 0.0


def is_rate_ladder(result: Result) -> bool:
    """Whether there is a curve to draw: stages at two or more rates."""
    return len({_rate(stage) for stage in _serving_stages(result)}) > 1


def serving_curve_table(result: Result) -> str:
    """The points of the curve, each with a bar; empty if the result is not a rate ladder."""
    if not is_rate_ladder(result):
        return ""
    stages = _serving_stages(result)
    top = max(_normalized_ms(stage, "mean") or 0.0 for stage in stages) or 1.0
    bar = Column[StageResult](
        "", lambda stage: "#" * round(_BAR * (_normalized_ms(stage, "mean") or 0.0) / top), words=True
    )
    above = f"{'requests/min':>25}{'latency (ms/token)':>22}"
    return "\n".join([f"{' Serving curve ':=^80}", above, *text_lines([*_SERVING, bar], stages, fixed)])


def _per_min(per_s: float | None) -> float | None:
    return None if per_s is None else per_s * 60


def _normalized_ms(stage: StageResult, statistic: str) -> float | None:
    value: float | None = getattr(stage.latency_ms.get("normalized"), statistic, None)
    return value


_SERVING: tuple[Column[StageResult], ...] = (
    Column("asked", lambda stage: _per_min(stage.target.rate), decimals=1, width=12),
    Column("achieved", lambda stage: _per_min(stage.throughput.requests_per_s), decimals=1, width=13),
    Column("mean", lambda stage: _normalized_ms(stage, "mean"), decimals=3, width=11),
    Column("p99", lambda stage: _normalized_ms(stage, "p99"), decimals=3, width=11),
)
