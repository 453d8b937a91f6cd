"""The figures of `/metrics` that vramp reads, and a block for each engine: its series for them, or why it has none.

Names differ between versions: the newest comes first, and the first one on a page is used, so that a version with both
is not counted twice. Definitions follow the engines' sources: vLLM 0.6 (`vllm/engine/metrics.py`) to 0.33
(`vllm/v1/metrics/`), SGLang 0.4.6 to 0.5.23 (`srt/metrics/collector.py`, `srt/observability/metrics_collector.py`), TGI
3.3 (`router/src/server.rs`, `backends/v3/src/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from loadgen.schema.engine import EngineKind


class EngineHistogram(msgspec.Struct, frozen=True):
    """A histogram since the server started, in seconds; `buckets` are (upper bound, count up to it)."""

    sum_s: float
    count: float
    buckets: tuple[tuple[float, float], ...]

    @property
    def mean_s(self) -> float:
        return self.sum_s / self.count


class Counters(msgspec.Struct, frozen=True):
    """What only grows: in a sample since the server started, in a window since the window's start."""

    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    preemptions: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    external_queries: float | None = None
    external_hits: float | None = None
    prompt_tokens_by_source: Mapping[str, float] | None = None
    """By `local_compute`, `local_cache_hit`, `external_kv_transfer`; each prompt is counted once."""
    admission_rejections: float | None = None
    finished: Mapping[str, float] | None = None
    errors: Mapping[str, float] | None = None
    drafts: float | None = None
    drafted_tokens: float | None = None
    accepted_tokens: float | None = None
    accepted_by_position: Mapping[str, float] | None = None
    offload_load_bytes: float | None = None
    offload_store_bytes: float | None = None
    flops_per_gpu: float | None = None
    read_bytes_per_gpu: float | None = None
    write_bytes_per_gpu: float | None = None
    ttft: EngineHistogram | None = None
    itl: EngineHistogram | None = None
    tpot: EngineHistogram | None = None
    e2e: EngineHistogram | None = None
    queue: EngineHistogram | None = None
    prefill: EngineHistogram | None = None
    decode: EngineHistogram | None = None

    @property
    def prefix_hit_rate(self) -> float | None:
        """The share of prompt tokens that hit the prefix cache; None if there were none, or the figures conflict.

        Hits per look-up are the last resort: before mid-2026, vLLM counts a waiting request at each look-up.
        """
        if self.prompt_tokens_by_source is not None:
            tokens = sum(self.prompt_tokens_by_source.values())
            return self.prompt_tokens_by_source.get("local_cache_hit", 0.0) / tokens if tokens else None
        return _share(self.prefix_hits, self.prefix_queries)

    @property
    def external_prefix_hit_rate(self) -> float | None:
        return _share(self.external_hits, self.external_queries)


def _share(hits: float | None, queries: float | None) -> float | None:
    return None if not queries or hits is None or hits > queries else hits / queries


COUNTER_FIELDS = Counters.__struct_fields__


class EngineSample(Counters, frozen=True):
    """One reading of `/metrics`; counters are since the server started."""

    kind: EngineKind | None = None  # None if the page is of no known engine
    running: float | None = None
    waiting: float | None = None
    waiting_by_reason: Mapping[str, float] | None = None
    kv_usage: float | None = None  # 0 to 1, of the fullest engine
    spec_acceptance: float | None = None  # as computed by the engine over its own time span
    spec_length: float | None = None
    started_unix_s: float | None = None  # if the page is of a single process
    unavailable: Mapping[str, str] = msgspec.field(default_factory=dict)
    engines: Mapping[str, EngineSample] = msgspec.field(default_factory=dict)
    """Each engine by the value of its label, if there are several."""

    @property
    def open_requests(self) -> float | None:
        """Requests running or waiting; None if the engine does not say."""
        return None if self.running is None or self.waiting is None else self.running + self.waiting

    @property
    def is_idle(self) -> bool | None:
        return None if self.open_requests is None else self.open_requests == 0


class EngineFigure(NamedTuple):
    series: tuple[tuple[str, Mapping[str, str]], ...]  # by name and labels
    absent: str = ""  # why a page may lack all of them
    zero: str = ""  # why it may be 0
    label: str = ""  # the label that distinguishes its parts, if it has any


class EngineNames(NamedTuple):
    title: str
    prefix: str  # of its series
    figures: Mapping[str, EngineFigure]  # by field of `EngineSample`
    unavailable: Mapping[str, str] = {}  # why it never has others, by the names in `SHOWN`
    label: str = ""  # which engine of a data-parallel server
    late: bool = False  # most of its series appear only once there is something to count
    parts: Mapping[str, str] = {}  # vLLM's names for the values of its labels


def _of(*series: str, absent: str = "", zero: str = "", label: str = "") -> EngineFigure:
    """A figure by its series, given as PromQL selectors: `name`, or `name{label="value"}`."""
    parsed: list[tuple[str, Mapping[str, str]]] = []
    for selector in series:
        name, _, condition = selector.partition("{")
        key, _, value = condition.removesuffix("}").partition("=")
        parsed.append((name, {key: value.strip('"')} if condition else {}))
    return EngineFigure(tuple(parsed), absent, zero, label)


LATENCIES = ("ttft", "itl", "tpot", "e2e", "queue", "prefill", "decode")
"""The figures that are histograms."""
GAUGES = ("running", "waiting", "kv_usage", "preemptions")
"""The figures that `EngineView` has as they are read, under the same name."""
RATES = ("prompt_tokens", "generation_tokens")
"""Counters that it has per second, as `prompt_tokens_per_s`."""
MEANS = ("spec_acceptance", "spec_length", "flops_per_gpu", "read_bytes_per_gpu", "write_bytes_per_gpu")
"""Figures whose mean over several engines or servers is shown, not their sum."""
_PARTS_OF = {
    "throughput": ("prompt_tokens", "generation_tokens"),
    "by_source": ("prompt_tokens_by_source",),
    "prefix_hit_rate": ("prefix_queries", "prefix_hits"),
    "external_prefix_hit_rate": ("external_queries", "external_hits"),
    "kv_offload_bytes": ("offload_load_bytes", "offload_store_bytes"),
    "tflops_per_gpu": ("flops_per_gpu",),
    "hbm_bytes_per_s": ("read_bytes_per_gpu", "write_bytes_per_gpu"),
    "spec": ("spec_acceptance", "spec_length", "drafts", "drafted_tokens", "accepted_tokens", "accepted_by_position"),
}
SHOWN = {part: name for name, parts in _PARTS_OF.items() for part in parts}
"""The name in `unavailable` of a figure that is a part of another; one with TOKEN in it would be masked as a secret."""

_NO_SPECULATION = "speculative decoding is off"
_NO_MFU = "counted with --enable-mfu-metrics only"
_NO_OFFLOAD = "no KV cache is offloaded"
_NO_HITS_TGI = "TGI does not count hits in its prefix cache"
_NO_FLOPS_TGI = "TGI does not estimate what it computes"
_NO_TOKEN_TIMES_TGI = "TGI times whole requests, not their tokens"  # noqa: S105 - tokens of text

_VLLM = EngineNames(
    "vLLM",
    "vllm:",
    {
        "running": _of("vllm:num_requests_running"),
        "waiting": _of("vllm:num_requests_waiting"),
        "kv_usage": _of("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "prompt_tokens": _of("vllm:prompt_tokens_total"),
        "generation_tokens": _of("vllm:generation_tokens_total"),
        "prefix_queries": _of("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        "prefix_hits": _of("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        "external_queries": _of("vllm:external_prefix_cache_queries_total", zero="the engine has no external KV cache"),
        "external_hits": _of("vllm:external_prefix_cache_hits_total"),
        "preemptions": _of("vllm:num_preemptions_total"),
        "admission_rejections": _of("vllm:admission_rejections_total"),
        "drafts": _of("vllm:spec_decode_num_drafts_total", absent=_NO_SPECULATION),
        "drafted_tokens": _of("vllm:spec_decode_num_draft_tokens_total", absent=_NO_SPECULATION),
        "accepted_tokens": _of("vllm:spec_decode_num_accepted_tokens_total", absent=_NO_SPECULATION),
        "offload_load_bytes": _of(
            "vllm:kv_offload_load_bytes_total",
            'vllm:kv_offload_total_bytes_total{transfer_type="CPU_to_GPU"}',
            absent=_NO_OFFLOAD,
        ),
        "offload_store_bytes": _of(
            "vllm:kv_offload_store_bytes_total",
            'vllm:kv_offload_total_bytes_total{transfer_type="GPU_to_CPU"}',
            absent=_NO_OFFLOAD,
        ),
        "flops_per_gpu": _of("vllm:estimated_flops_per_gpu_total", zero=_NO_MFU),
        "read_bytes_per_gpu": _of("vllm:estimated_read_bytes_per_gpu_total", zero=_NO_MFU),
        "write_bytes_per_gpu": _of("vllm:estimated_write_bytes_per_gpu_total", zero=_NO_MFU),
        "waiting_by_reason": _of("vllm:num_requests_waiting_by_reason", label="reason"),
        "prompt_tokens_by_source": _of("vllm:prompt_tokens_by_source_total", label="source"),
        "finished": _of("vllm:request_success_total", label="finished_reason"),
        "errors": _of('http_requests_total{method="POST"}', label="status", absent="no request has come yet"),
        "accepted_by_position": _of(
            "vllm:spec_decode_num_accepted_tokens_per_pos_total", label="position", absent=_NO_SPECULATION
        ),
        "ttft": _of("vllm:time_to_first_token_seconds"),
        "itl": _of("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "tpot": _of("vllm:request_time_per_output_token_seconds"),
        "e2e": _of("vllm:e2e_request_latency_seconds"),
        "queue": _of("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
        "prefill": _of("vllm:request_prefill_time_seconds"),
        "decode": _of("vllm:request_decode_time_seconds"),
    },
    label="engine",
)
_SGLANG = EngineNames(
    "SGLang",
    "sglang:",
    {
        "running": _of("sglang:num_running_reqs"),
        "waiting": _of("sglang:num_queue_reqs"),
        "kv_usage": _of("sglang:token_usage"),
        "spec_acceptance": _of("sglang:spec_accept_rate", zero=_NO_SPECULATION),
        "spec_length": _of("sglang:spec_accept_length", zero=_NO_SPECULATION),
        "prompt_tokens": _of("sglang:prompt_tokens_total"),  # this and the next three: when a request ends
        "generation_tokens": _of("sglang:generation_tokens_total"),
        "prefix_queries": _of("sglang:prompt_tokens_total"),
        "prefix_hits": _of("sglang:cached_tokens_total"),
        "preemptions": _of("sglang:num_retracted_requests_total"),
        "drafts": _of("sglang:spec_verify_calls_total"),
        "offload_load_bytes": _of("sglang:load_back_bytes_total", absent=_NO_OFFLOAD),
        "offload_store_bytes": _of("sglang:hicache_backup_bytes_total", absent=_NO_OFFLOAD),
        "flops_per_gpu": _of("sglang:estimated_flops_per_gpu_total", zero=_NO_MFU),
        "read_bytes_per_gpu": _of("sglang:estimated_read_bytes_per_gpu_total", zero=_NO_MFU),
        "write_bytes_per_gpu": _of("sglang:estimated_write_bytes_per_gpu_total", zero=_NO_MFU),
        "prompt_tokens_by_source": _of("sglang:prefill_effective_tokens_total", label="mode"),
        "errors": _of('sglang:http_responses_total{method="POST"}', label="status_code"),
        "ttft": _of("sglang:time_to_first_token_seconds"),
        "itl": _of("sglang:inter_token_latency_seconds"),
        "tpot": _of("sglang:request_time_per_output_token_seconds"),
        "e2e": _of("sglang:e2e_request_latency_seconds"),
        "queue": _of("sglang:queue_time_seconds"),
        "prefill": _of('sglang:per_stage_req_latency_seconds{stage="prefill_forward"}'),
    },
    unavailable={
        "external_prefix_hit_rate": "SGLang counts the hits of each tier, not the look-ups",
        "admission_rejections": "SGLang does not count requests that it turned away",
        "waiting_by_reason": "SGLang does not say why requests wait",
        "finished": "SGLang does not say how requests ended",
        "decode": "SGLang does not time the decode of requests",
    },
    label="dp_rank",
    late=True,
    # `host_hit` has no counterpart.
    parts={"input": "local_compute", "device_hit": "local_cache_hit", "storage_hit": "external_kv_transfer"},
)
_TGI = EngineNames(
    "TGI",
    "tgi_",
    {
        "running": _of("tgi_batch_current_size"),
        "waiting": _of("tgi_queue_size"),
        "prompt_tokens": _of("tgi_request_input_length_sum"),
        "generation_tokens": _of("tgi_request_generated_tokens_sum"),  # counted when a request ends
        "admission_rejections": _of('tgi_request_failure{err="overloaded"}'),
        "drafts": _of("tgi_request_skipped_tokens_count"),
        "accepted_tokens": _of("tgi_request_skipped_tokens_sum", zero=_NO_SPECULATION),
        "errors": _of("tgi_request_failure", label="err", absent="no request has failed yet"),
        "e2e": _of("tgi_request_duration"),
        "queue": _of("tgi_request_queue_duration"),
    },
    unavailable={
        "kv_usage": "TGI does not say how full its KV cache is",
        "prefix_hit_rate": _NO_HITS_TGI,
        "external_prefix_hit_rate": _NO_HITS_TGI,
        "preemptions": "TGI does not count preemptions",
        "kv_offload_bytes": "TGI does not offload its KV cache",
        "tflops_per_gpu": _NO_FLOPS_TGI,
        "hbm_bytes_per_s": _NO_FLOPS_TGI,
        "waiting_by_reason": "TGI does not say why requests wait",
        "by_source": _NO_HITS_TGI,
        "finished": "TGI does not say how requests ended",
        "ttft": _NO_TOKEN_TIMES_TGI,
        "itl": _NO_TOKEN_TIMES_TGI,
        "tpot": "TGI's time per token includes the prefill",
        "prefill": "TGI times the prefill of batches, not of requests",
        "decode": _NO_TOKEN_TIMES_TGI,
    },
    late=True,
)
ENGINES: Mapping[EngineKind, EngineNames] = {"vllm": _VLLM, "sglang": _SGLANG, "tgi": _TGI}
