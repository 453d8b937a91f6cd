"""The JSON lines of SGLang's `bench_serving`: one load a line.

The keys are those of SGLang 0.4 to 0.5 (`sglang/bench_serving.py`, later `sglang/benchmark`): they follow vLLM's, with
other names for totals and E2E. A line has no date, and names the model only if it also has what the server says of
itself. Without streaming, TTFT is the whole time, and ITL is 0: both are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from loadgen.schema.result import Result, StageResult, Target
from loadgen.store.foreign.load import (
    OVER_ALL_TIME,
    TPOT,
    Amount,
    Count,
    at,
    foreign_result,
    foreign_stage,
    reported_ms,
)

KEYS: frozenset[str] = frozenset(
    {"completed", "duration", "request_throughput", "output_throughput", "mean_e2e_latency_ms", "accept_length"}
)
DEFINITIONS: Mapping[str, str] = {
    "throughput": f"{OVER_ALL_TIME}; output tokens are the server's count, or those asked for where it gives none",
    "ttft": "from before the request is encoded, including connecting where that is needed, to when the client has "
    "read the first chunk with text, including the client's own waits",
    "tpot": TPOT,
    "itl": "gaps between chunks, divided by the tokens of a chunk only with the backend `sglang`, including the "
    "client's own waits",
    "e2e": "to when the client has read the last chunk of the stream, which may come after the last token",
}
_ENDPOINTS = {"sglang-oai": "completions", "vllm": "completions", "lmdeploy": "completions"}
_ENDPOINTS |= {"sglang-oai-chat": "chat", "vllm-chat": "chat", "lmdeploy-chat": "chat"}


class _Line(msgspec.Struct, frozen=True):
    """The keys that are read, without the latencies."""

    completed: Count
    duration: Amount
    request_throughput: Amount
    output_throughput: Amount
    total_throughput: Amount | None = None
    input_throughput: Amount | None = None
    total_input_tokens: Count | None = None
    total_output_tokens: Count | None = None
    total_input: Count | None = None  # since the benchmark has a package of its own
    total_output: Count | None = None
    backend: str | None = None
    request_rate: float | str | None = None
    max_concurrency: Count | None = None
    concurrency: Amount | None = None
    max_concurrent_requests: Count | None = None
    errors: list[str] = []


def read(lines: Sequence[bytes], name: str) -> Result:
    """Read SGLang's lines, each as one load; raises `ValueError` for invalid values."""
    loads = [msgspec.json.decode(line, type=_Line) for line in lines]
    figures = [msgspec.json.decode(line, type=dict[str, msgspec.Raw]) for line in lines]
    first = loads[0]
    model = at(lines[0], "server_info.served_model_name", str) or at(lines[0], "server_info.model_path", str)
    return foreign_result(
        name,
        [_stage(load, found) for load, found in zip(loads, figures, strict=True)],
        tool="SGLang bench_serving",
        model=model or "unknown model",
        endpoint=_ENDPOINTS.get(first.backend or ""),
        definitions=DEFINITIONS,
    )


def _stage(line: _Line, figures: dict[str, msgspec.Raw]) -> StageResult:
    total = line.total_throughput
    if total is None and line.input_throughput is not None:
        total = line.input_throughput + line.output_throughput
    latencies = reported_ms(figures, e2e="e2e_latency")
    if not latencies.get("itl", {}).get("mean"):  # it was not streamed
        latencies = {"e2e": latencies.get("e2e", {})}
    return foreign_stage(
        _target(line),
        duration_s=line.duration,
        completed=line.completed,
        failed=sum(map(bool, line.errors)),
        input_tokens=line.total_input_tokens or line.total_input or 0,
        output_tokens=line.total_output_tokens or line.total_output or 0,
        requests_per_s=line.request_throughput,
        output_tokens_per_s=line.output_throughput,
        total_tokens_per_s=total,
        held_mean=line.concurrency,
        peak=line.max_concurrent_requests or 0,
        latency_ms=latencies,
    )


def _target(line: _Line) -> Target:
    if line.request_rate == "trace":
        return Target(None, None, "a trace's times")
    rate = float(line.request_rate if line.request_rate is not None else "inf")
    if 0 < rate < float("inf"):
        return Target(None, rate, "poisson")
    return Target(line.max_concurrency, None, None if line.max_concurrency is not None else "all at once")
