"""The tables of vLLM's three benchmarks, line by line as `vllm bench` prints them.

What vLLM measures and a result lacks is left out, never estimated. A value without measurements is `-`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadgen.format import Statistic, bounded, fixed
from loadgen.metrics.histogram import Histogram
from loadgen.report.document import per_minute, serving_curve
from loadgen.report.notes import has_numbers, request_counts, stage_notes, took_part
from loadgen.report.text import section_lines
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


def serve_tables(result: Result, *, metrics: Sequence[str], percents: Sequence[float]) -> str:
    """One table for each stage, the serving curve of a rate ladder, and whether to trust them."""
    tables = [_serve_table(stage, metrics=metrics, percents=percents) for stage in result.stages if took_part(stage)]
    curve = serving_curve(result.stages)
    lines = [] if curve.is_empty else section_lines(curve)
    return "\n".join([*tables, *lines, *trust_lines(result)])


def _serve_table(stage: StageResult, *, metrics: Sequence[str], percents: Sequence[float]) -> str:
    """The result of `vllm bench serve` for one stage; `metrics` are keys of `SERVE_METRICS`."""
    requests, target, throughput, goodput = stage.requests, stage.target, stage.throughput, stage.goodput
    is_bounded = target.concurrency is not None and target.concurrency < requests.sent
    lines = [
        f"{' Serving Benchmark Result ':=^{_WIDTH}}",
        _line("Successful requests:", requests.completed),
        _line("Failed requests:", requests.failed),
        *(_line(f"{name}:", words) for name, words in request_counts(requests).items() if name not in _VLLMS),
        *([_line("Maximum request concurrency:", target.concurrency)] if is_bounded else []),
        *([_line("Request rate configured (RPS):", target.rate)] if target.rate is not None else []),
        _line("Benchmark duration (s):", stage.measured_s),
        _line("Total input tokens:", stage.tokens.input),
        _line("Total generated tokens:", stage.tokens.output),
        _line("Request throughput (req/s):", throughput.requests_per_s),
        *([_line("Request goodput (req/s):", goodput.requests_per_s)] if goodput is not None else []),
        _line("Output token throughput (tok/s):", throughput.output_tokens_per_s),
        _line("Peak concurrent requests:", float(stage.concurrency.peak)),
        _line("Total token throughput (tok/s):", throughput.total_tokens_per_s),
    ]
    for metric in metrics if has_numbers(stage) else []:
        lines += _metric_lines(stage, metric, percents)
    return "\n".join([*lines, "=" * _WIDTH])


def _metric_lines(stage: StageResult, metric: str, percents: Sequence[float]) -> list[str]:
    short, long, name = SERVE_METRICS[metric]
    summary = stage.latency_ms[name]
    return [
        f"{long:-^{_WIDTH}}",
        _line(f"Mean {short} (ms):", bounded(Statistic.of(summary, "mean"), fixed)),
        _line(f"Median {short} (ms):", bounded(Statistic.of(summary, "p50"), fixed)),
        *[_line(f"P{percent:g} {short} (ms):", bounded(percentile(summary, percent), fixed)) for percent in percents],
    ]


def percentile(summary: Summary, percent: float) -> Statistic:
    """Any nearest-rank percentile, from the histogram; a lower bound if the next higher one in the result is."""
    if summary.hdr is None or summary.max is None:
        return Statistic(None)
    value_ms = Histogram.from_hdr(summary.hdr).percentile_ms(percent)
    above = next((name for name, known in _KNOWN.items() if known >= percent), "max")
    # The encoded histogram has the maximum only to the precision of its bucket.
    return Statistic(None if value_ms is None else min(value_ms, summary.max), above in summary.lower_bounds)


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
    lines = []
    for stage in result.stages:
        requests, rate = stage.requests, stage.throughput
        if not requests.sent:
            continue
        lost = requests.failed + requests.unfinished
        lines += [f"Failed or unfinished requests: {lost} of {requests.sent}"] if lost else []
        lines += [
            f"Throughput: {fixed(rate.requests_per_s)} requests/s, {fixed(rate.total_tokens_per_s)} total tokens/s, "
            f"{fixed(rate.output_tokens_per_s)} output tokens/s",
            f"Throughput: {fixed(per_minute(rate.requests_per_s))} requests/min",
            f"Total num prompt tokens:  {fixed(stage.tokens.input, 0)}",
            f"Total num output tokens:  {stage.tokens.output}",
        ]
    return "\n".join([*lines, *trust_lines(result)])


def trust_lines(result: Result, *, without: Sequence[str] = ()) -> list[str]:
    """What a reader must know to judge a table: notes, a limited client, failures, an early end."""
    limited = result.client.limited
    failures = [each for stage in result.stages for each in stage.requests.messages.items()]
    messages = [f"  {kind}: {texts[0]}" for kind, texts in failures if texts]
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
