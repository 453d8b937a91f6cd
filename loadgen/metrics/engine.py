"""What the engine's own /metrics say, now and over a stage, and whether the client agrees with it."""

from __future__ import annotations

import msgspec


class EngineView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The engine's /metrics: gauges now, and rates over the last `WINDOW_S` seconds."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # 0 to 1, of the fullest engine
    preemptions: float | None = None  # since the server started
    waiting_by_reason: dict[str, float] = {}
    """Where some wait: `capacity`, no room; `deferred`, held back by something else, such as a KV transfer."""
    prefix_hit_rate: float | None = None  # 0 to 1, of the prompt tokens that were looked up; None while there are none
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    tflops_per_gpu: float | None = None  # TFLOP a second by the engine's estimate; None where it does not tell
    engines: dict[str, EngineView] = {}  # each engine of a data-parallel server, where there are several


class EngineLatencyMs(msgspec.Struct, frozen=True):
    """One latency over a stage as the engine saw it; percentiles are interpolated within its coarse buckets.

    None where they are too coarse to tell: in the first bucket, or beyond the last bound.
    """

    count: int
    mean: float
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class EngineStage(msgspec.Struct, frozen=True):
    """What the engine's own /metrics say about a stage: differences between its end and its beginning.

    Warm-up is in it, and what other clients sent.
    """

    ttft_mean_ms: float | None = None
    ttft_count: int | None = None
    itl_mean_ms: float | None = None
    tpot_mean_ms: float | None = None
    e2e_mean_ms: float | None = None
    queue_mean_ms: float | None = None
    prefill_mean_ms: float | None = None
    decode_mean_ms: float | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    preemptions: int | None = None
    prefix_hit_rate: float | None = None
    admission_rejections: int | None = None  # requests turned away because a queue was full
    latency_ms: dict[str, EngineLatencyMs] = {}
    """By name: ttft, itl, tpot, e2e, queue, prefill, decode; all but the first two of requests that ended."""
    engines: dict[str, EngineStage] = {}  # each engine of a data-parallel server, where there are several
    idle_around: bool | None = None
    """Nothing ran or waited when it was read, before and after; None where the engine does not say."""
    doubts: dict[str, str] = {}
    """Figures that are None because what the engine says of them cannot be, by name, and why; `all` for every one."""
    tflops_per_gpu: float | None = None
    """TFLOP a second of each GPU by the engine's own estimate, its engines' mean; None where it does not tell."""


class TruthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Client against engine over a stage; None where one of them does not know."""

    ttft_client_ms: float | None
    """Mean over all streams of the stage, warm-up and first wave too; None, as all times, where the server's is of
    other streams."""
    ttft_server_ms: float | None
    ttft_outside_ms: float | None  # the client's less the server's: HTTP, network and client
    queue_ms: float | None
    """Mean wait before the engine began a request; this and `prefill_ms` are parts of the server's TTFT."""
    prefill_ms: float | None
    frontend_ms: float | None  # the rest of the server's TTFT: tokenizing, and the way to the engine and back
    requests_client: int
    requests_server: int | None
    """Those that the server gave a first token; None, as its tokens, where they may be others."""
    input_tokens_client: int
    input_tokens_server: int | None
    output_tokens_client: int
    output_tokens_server: int | None
    agrees: bool | None  # of all that could be compared; None where nothing could
    why: str  # what does not agree, then what could not be compared and why; empty where everything agrees
