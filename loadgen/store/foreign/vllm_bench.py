"""The JSON of `vllm bench serve --save-result` and `--append-result`, of `benchmark_serving.py` before them, and of the
same command in Rust (`vllm-rs`, `vllm-bench`).

The keys are those of vLLM 0.6 to 0.33 (`vllm/benchmarks/serve.py`, `rust/src/bench`), which only added to them. A file
has the mean, the median and the requested percentiles (p99 by default); if it also has the values of all requests, the
other percentiles are computed from those. The Rust client also has the figures of its steady state, which are read in
place of those of the whole time, unless it warns of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.metrics.histogram import Histogram
from loadgen.schema.result import Result, StageResult, Target
from loadgen.store.foreign.load import (
    OVER_ALL_TIME,
    TPOT,
    Amount,
    Count,
    foreign_result,
    foreign_stage,
    reported_ms,
)

KEYS: frozenset[str] = frozenset(
    {"completed", "duration", "total_output_tokens", "request_throughput", "output_throughput"}
)
"""The keys by which such a result is recognised."""
_GAPS = "gaps between chunks, not divided by the tokens of a chunk, including the client's own waits"
_ROLE_CHUNK = "; a first chunk with only the role counts, too"
DEFINITIONS: Mapping[str, str] = {
    "throughput": OVER_ALL_TIME,
    "ttft": "from before the request is encoded to when the client has read the first chunk, including the "
    "client's own waits: at 256 streams on 2 cores 147 ms where 57 were true",
    "tpot": TPOT,
    "itl": _GAPS,
    "e2e": "to when the client has read the last chunk with output, from the same beginning as TTFT",
}
_IN_RUST: Mapping[str, str] = {
    "throughput": "`steady state`: of the time from when the streams first reached a share of --max-concurrency to "
    f"when they last fell below it, one output token counted per chunk; other loads: {OVER_ALL_TIME}",
    "ttft": "from before the request is encoded to when the client has read the first chunk with a choice, also if "
    "it has only the role, including the client's own waits; `steady state`: of requests sent in that time",
    "tpot": f"{TPOT}; `steady state`: of requests sent in that time, also where they ended after it",
    "itl": f"{_GAPS}; left out for `steady state`, for which its file has none",
    "e2e": "to when the client has read the last chunk with a choice, from the same beginning as TTFT; left out "
    "for `steady state`, for which its file has none",
}
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Figures = dict[str, msgspec.Raw]
_ENDPOINTS = {"openai": "completions", "vllm": "completions", "openai-chat": "chat", "openai-responses": "responses"}


class _Window(msgspec.Struct, frozen=True):
    start_s: Amount
    duration_s: Amount
    requests_started_in_window: Count
    requests_completed_in_window: Count
    warning: str | None = None


class _SteadyState(msgspec.Struct, frozen=True):
    """The figures while the streams were at or above a share of `max_concurrency`."""

    window: _Window
    request_throughput: Amount
    input_throughput: Amount
    output_throughput: Amount
    total_token_throughput: Amount
    mean_ttft_ms: Amount
    median_ttft_ms: Amount
    percentiles_ttft_ms: list[tuple[float, Amount]]
    mean_tpot_ms: Amount
    median_tpot_ms: Amount
    p90_tpot_ms: Amount
    p99_tpot_ms: Amount


class _Document(msgspec.Struct, frozen=True):
    """The keys that are read; the names of latencies follow from its options, see `reported_ms`."""

    completed: Count
    duration: Amount
    total_input_tokens: Count
    total_output_tokens: Count
    request_throughput: Amount
    output_throughput: Amount
    total_token_throughput: Amount | None = None
    failed: Count | None = None
    num_prompts: Count | None = None
    date: str | None = None
    backend: str | None = None
    model_id: str | None = None
    request_rate: float | str | None = None
    burstiness: Amount | None = None
    max_concurrency: Count | None = None
    multi_turn_concurrency: Count | None = None
    ramp_up_strategy: str | None = None
    ramp_up_start_rps: Amount = 0
    ramp_up_end_rps: Amount = 0
    max_concurrent_requests: Count | None = None
    ttfts: list[_Seconds] = []
    itls: list[list[_Seconds]] = []
    latencies: list[_Seconds] = []
    steady_state: _SteadyState | None = None


def read(documents: Sequence[bytes], name: str) -> Result:
    """Read vLLM's results, each document as one load; raises `ValueError` for invalid values."""
    loads = [msgspec.json.decode(document, type=_Document) for document in documents]
    figures = [msgspec.json.decode(document, type=_Figures) for document in documents]
    if any("vramp" in found for found in figures):
        raise ValueError("written by `vramp report --vllm-json`; use the result.json of that run instead")
    first = loads[0]
    # Only the client in Rust writes these.
    in_rust = any("steady_state" in found or "conversations_completed" in found for found in figures)
    definitions = dict(_IN_RUST if in_rust else DEFINITIONS)
    if first.backend == "openai-chat" and not in_rust:
        definitions["ttft"] += _ROLE_CHUNK
    return foreign_result(
        name,
        [_stage(load, found) for load, found in zip(loads, figures, strict=True)],
        tool="vllm-rs bench serve" if in_rust else "vllm bench serve",
        model=first.model_id or "unknown model",
        endpoint=_ENDPOINTS.get(first.backend or ""),
        definitions=definitions,
    )


def _steady_stage(document: _Document, steady: _SteadyState) -> StageResult:
    window = steady.window
    seconds = window.duration_s
    count = {"count": window.requests_started_in_window}
    percentiles = {f"p{percent:g}".replace(".", ""): value for percent, value in steady.percentiles_ttft_ms}
    known = {name: value for name, value in percentiles.items() if name in ("p50", "p90", "p95", "p99", "p999")}
    stage = foreign_stage(
        _target(document),
        start_unix_s=_unix_s(document) + window.start_s,
        duration_s=seconds,
        completed=window.requests_completed_in_window,
        failed=document.failed or 0,
        input_tokens=round(steady.input_throughput * seconds),
        output_tokens=round(steady.output_throughput * seconds),
        requests_per_s=steady.request_throughput,
        output_tokens_per_s=steady.output_throughput,
        total_tokens_per_s=steady.total_token_throughput,
        latency_ms={
            "ttft": {"mean": steady.mean_ttft_ms, "p50": steady.median_ttft_ms} | known | count,
            "tpot": {
                "mean": steady.mean_tpot_ms,
                "p50": steady.median_tpot_ms,
                "p90": steady.p90_tpot_ms,
                "p99": steady.p99_tpot_ms,
            }
            | count,
        },
    )
    # Tokens are counted by time, and requests where they end, so that their ratio is no length of a request.
    completed = max(1, document.completed)
    isl, osl = document.total_input_tokens // completed, document.total_output_tokens // completed
    tokens = replace(stage.tokens, input_per_request=None, output_per_request=None)
    label = f"{stage.label}, steady state"
    return replace(stage, label=label, isl=isl, osl=osl, tokens=tokens, tail_share=0.0)


def _stage(document: _Document, figures: _Figures) -> StageResult:
    steady = document.steady_state
    if steady is not None and steady.window.warning is None:
        return _steady_stage(document, steady)
    failed = document.failed
    if failed is None:
        failed = max(0, (document.num_prompts or 0) - document.completed)
    return foreign_stage(
        _target(document),
        start_unix_s=_unix_s(document),
        duration_s=document.duration,
        completed=document.completed,
        failed=failed,
        input_tokens=document.total_input_tokens,
        output_tokens=document.total_output_tokens,
        requests_per_s=document.request_throughput,
        output_tokens_per_s=document.output_throughput,
        total_tokens_per_s=document.total_token_throughput,
        peak=document.max_concurrent_requests or 0,
        latency_ms=_latencies(document, figures),
    )


def _target(document: _Document) -> Target:
    if document.ramp_up_strategy is not None:
        span = f"{document.ramp_up_start_rps:g} to {document.ramp_up_end_rps:g}/s"
        return Target(None, None, f"{document.ramp_up_strategy} ramp, {span}")
    rate = float(document.request_rate if document.request_rate is not None else "inf")
    if 0 < rate < float("inf"):
        shape = document.burstiness if document.burstiness is not None else 1.0
        return Target(None, rate, "poisson" if shape == 1 else f"gamma:{shape:g}")
    streams = document.max_concurrency if document.max_concurrency is not None else document.multi_turn_concurrency
    if streams is not None:
        return Target(streams, None, None)
    return Target(None, None, "all at once")


def _unix_s(document: _Document) -> float:
    """The time at which the run began, from the local time of its end, which has no zone and is taken as UTC."""
    try:
        ended = datetime.strptime(document.date or "", "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return 0.0
    return ended.timestamp() - document.duration


def _latencies(document: _Document, figures: _Figures) -> dict[str, dict[str, float]]:
    """Those that the file reports, and of its values, if it has all, the statistics that it does not report."""
    found = reported_ms(figures)
    lists = {
        "ttft": (len(document.ttfts), document.ttfts),
        "e2e": (len(document.latencies), document.latencies),
        "itl": (len(document.itls), [gap for gaps in document.itls for gap in gaps]),
    }
    for name, (requests, values_s) in lists.items():
        # Failed requests appear as zeros, and older files do not have all lists.
        if values_s and requests == document.completed and not document.failed:
            histogram = Histogram()
            histogram.record_ns((np.array(values_s) * 1e9).astype(np.int64))
            found[name] = msgspec.structs.asdict(histogram.summary()) | found.get(name, {})
    return found
