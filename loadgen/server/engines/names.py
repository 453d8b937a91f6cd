"""Maps the figures that vramp shows to each engine's metric names, or says why it lacks them: a row per figure.

Names differ between versions: the newest comes first, and the first one on a page is used, so that a version with both
is not counted twice. Definitions follow the engines' sources: vLLM 0.6 (`vllm/engine/metrics.py`) to 0.33
(`vllm/v1/metrics/`), SGLang 0.4.6 to 0.5.23 (`srt/metrics/collector.py`, `srt/observability/metrics_collector.py`), TGI
3.3 (`router/src/server.rs`, `backends/v3/src/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from loadgen.schema.engine import EngineKind


class Series(NamedTuple):
    """The series with this name and these labels."""

    name: str
    where: Mapping[str, str]


class Names(NamedTuple):
    """A figure in one engine; if there are no series, `absent` says why."""

    series: tuple[Series, ...] = ()
    absent: str = ""  # why a page may lack all of them
    zero: str = ""  # why it may be 0
    label: str = ""  # the label that distinguishes its parts, if it has any


class Row(NamedTuple):
    """A figure in each engine."""

    vllm: Names
    sglang: Names
    tgi: Names
    shown: str = ""  # its name in `lacks` if it is part of another; a name with TOKEN in it would be masked as a secret

    def of(self, kind: EngineKind) -> Names:
        names: Names = getattr(self, kind)
        return names


def _reported(*series: str, absent: str = "", zero: str = "", label: str = "") -> Names:
    """A figure's series, given as PromQL selectors: `name`, or `name{label="value"}`."""
    return Names(tuple(_series(each) for each in series), absent, zero, label)


def _series(selector: str) -> Series:
    name, _, condition = selector.partition("{")
    label, _, value = condition.removesuffix("}").partition("=")
    return Series(name, {label: value.strip('"')} if condition else {})


def _none(why: str) -> Names:
    return Names(absent=why)


TITLES: Mapping[EngineKind, str] = {"vllm": "vLLM", "sglang": "SGLang", "tgi": "TGI"}
PREFIXES: Mapping[EngineKind, str] = {"vllm": "vllm:", "sglang": "sglang:", "tgi": "tgi_"}
ENGINE_LABELS = ("engine", "dp_rank")  # of vLLM and SGLang: which engine of a data-parallel server
SOURCES = {"input": "local_compute", "device_hit": "local_cache_hit", "storage_hit": "external_kv_transfer"}
"""vLLM's names for SGLang's sources of prompt tokens; SGLang's `host_hit` has no counterpart."""

LATE = frozenset({"sglang", "tgi"})  # most of their series appear only once there is something to count

_NO_SPECULATION = "speculative decoding is off"
_NO_MFU = "counted with --enable-mfu-metrics only"
_NO_CONNECTOR = "the engine has no external KV cache"
_NO_OFFLOAD = "no KV cache is offloaded"
_NO_HITS_TGI = "TGI does not count hits in its prefix cache"
_NO_OFFLOAD_TGI = "TGI does not offload its KV cache"
_NO_FLOPS_TGI = "TGI does not estimate what it computes"
_NO_TOKEN_TIMES_TGI = "TGI times whole requests, not their tokens"  # noqa: S105 - tokens of text

GAUGES = {
    "running": Row(
        vllm=_reported("vllm:num_requests_running"),
        sglang=_reported("sglang:num_running_reqs"),
        tgi=_reported("tgi_batch_current_size"),
    ),
    "waiting": Row(
        vllm=_reported("vllm:num_requests_waiting"),
        sglang=_reported("sglang:num_queue_reqs"),
        tgi=_reported("tgi_queue_size"),
    ),
    "kv_usage": Row(
        vllm=_reported("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        sglang=_reported("sglang:token_usage"),
        tgi=_none("TGI does not say how full its KV cache is"),
    ),
    "spec_acceptance": Row(
        vllm=_none(""),
        sglang=_reported("sglang:spec_accept_rate", zero=_NO_SPECULATION),
        tgi=_none(""),
        shown="spec",
    ),
    "spec_length": Row(
        vllm=_none(""),
        sglang=_reported("sglang:spec_accept_length", zero=_NO_SPECULATION),
        tgi=_none(""),
        shown="spec",
    ),
}
COUNTERS = {
    "prompt_tokens": Row(
        vllm=_reported("vllm:prompt_tokens_total"),
        sglang=_reported("sglang:prompt_tokens_total"),  # this and the next three are counted when a request ends
        tgi=_reported("tgi_request_input_length_sum"),
        shown="throughput",
    ),
    "generation_tokens": Row(
        vllm=_reported("vllm:generation_tokens_total"),
        sglang=_reported("sglang:generation_tokens_total"),
        tgi=_reported("tgi_request_generated_tokens_sum"),  # counted when a request ends
        shown="throughput",
    ),
    "prefix_queries": Row(
        vllm=_reported("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        sglang=_reported("sglang:prompt_tokens_total"),
        tgi=_none(_NO_HITS_TGI),
        shown="prefix_hit_rate",
    ),
    "prefix_hits": Row(
        vllm=_reported("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        sglang=_reported("sglang:cached_tokens_total"),
        tgi=_none(_NO_HITS_TGI),
        shown="prefix_hit_rate",
    ),
    "external_queries": Row(
        vllm=_reported("vllm:external_prefix_cache_queries_total", zero=_NO_CONNECTOR),
        sglang=_none("SGLang counts the hits of each tier, not the look-ups"),
        tgi=_none(_NO_HITS_TGI),
        shown="external_prefix_hit_rate",
    ),
    "external_hits": Row(
        vllm=_reported("vllm:external_prefix_cache_hits_total"),
        sglang=_none(""),
        tgi=_none(""),
        shown="external_prefix_hit_rate",
    ),
    "preemptions": Row(
        vllm=_reported("vllm:num_preemptions_total"),
        sglang=_reported("sglang:num_retracted_requests_total"),
        tgi=_none("TGI does not count preemptions"),
    ),
    "admission_rejections": Row(
        vllm=_reported("vllm:admission_rejections_total"),
        sglang=_none("SGLang does not count requests that it turned away"),
        tgi=_reported('tgi_request_failure{err="overloaded"}'),
    ),
    "drafts": Row(
        vllm=_reported("vllm:spec_decode_num_drafts_total", absent=_NO_SPECULATION),
        sglang=_reported("sglang:spec_verify_calls_total"),
        tgi=_reported("tgi_request_skipped_tokens_count"),
        shown="spec",
    ),
    "drafted_tokens": Row(
        vllm=_reported("vllm:spec_decode_num_draft_tokens_total", absent=_NO_SPECULATION),
        sglang=_none(""),
        tgi=_none(""),
        shown="spec",
    ),
    "accepted_tokens": Row(
        vllm=_reported("vllm:spec_decode_num_accepted_tokens_total", absent=_NO_SPECULATION),
        sglang=_none(""),
        tgi=_reported("tgi_request_skipped_tokens_sum", zero=_NO_SPECULATION),
        shown="spec",
    ),
    "offload_load_bytes": Row(
        vllm=_reported(
            "vllm:kv_offload_load_bytes_total",
            'vllm:kv_offload_total_bytes_total{transfer_type="CPU_to_GPU"}',
            absent=_NO_OFFLOAD,
        ),
        sglang=_reported("sglang:load_back_bytes_total", absent=_NO_OFFLOAD),
        tgi=_none(_NO_OFFLOAD_TGI),
        shown="kv_offload_bytes",
    ),
    "offload_store_bytes": Row(
        vllm=_reported(
            "vllm:kv_offload_store_bytes_total",
            'vllm:kv_offload_total_bytes_total{transfer_type="GPU_to_CPU"}',
            absent=_NO_OFFLOAD,
        ),
        sglang=_reported("sglang:hicache_backup_bytes_total", absent=_NO_OFFLOAD),
        tgi=_none(_NO_OFFLOAD_TGI),
        shown="kv_offload_bytes",
    ),
    "flops_per_gpu": Row(
        vllm=_reported("vllm:estimated_flops_per_gpu_total", zero=_NO_MFU),
        sglang=_reported("sglang:estimated_flops_per_gpu_total", zero=_NO_MFU),
        tgi=_none(_NO_FLOPS_TGI),
        shown="tflops_per_gpu",
    ),
    "read_bytes_per_gpu": Row(
        vllm=_reported("vllm:estimated_read_bytes_per_gpu_total", zero=_NO_MFU),
        sglang=_reported("sglang:estimated_read_bytes_per_gpu_total", zero=_NO_MFU),
        tgi=_none(_NO_FLOPS_TGI),
        shown="hbm_bytes_per_s",
    ),
    "write_bytes_per_gpu": Row(
        vllm=_reported("vllm:estimated_write_bytes_per_gpu_total", zero=_NO_MFU),
        sglang=_reported("sglang:estimated_write_bytes_per_gpu_total", zero=_NO_MFU),
        tgi=_none(_NO_FLOPS_TGI),
        shown="hbm_bytes_per_s",
    ),
}
BY_LABEL = {
    "waiting_by_reason": Row(
        vllm=_reported("vllm:num_requests_waiting_by_reason", label="reason"),
        sglang=_none("SGLang does not say why requests wait"),
        tgi=_none("TGI does not say why requests wait"),
    ),
    "prompt_tokens_by_source": Row(
        vllm=_reported("vllm:prompt_tokens_by_source_total", label="source"),
        sglang=_reported("sglang:prefill_effective_tokens_total", label="mode"),
        tgi=_none(_NO_HITS_TGI),
        shown="by_source",
    ),
    "finished": Row(
        vllm=_reported("vllm:request_success_total", label="finished_reason"),
        sglang=_none("SGLang does not say how requests ended"),
        tgi=_none("TGI does not say how requests ended"),
    ),
    "errors": Row(
        vllm=_reported('http_requests_total{method="POST"}', label="status", absent="no request has come yet"),
        sglang=_reported('sglang:http_responses_total{method="POST"}', label="status_code"),
        tgi=_reported("tgi_request_failure", label="err", absent="no request has failed yet"),
    ),
    "accepted_by_position": Row(
        vllm=_reported("vllm:spec_decode_num_accepted_tokens_per_pos_total", label="position", absent=_NO_SPECULATION),
        sglang=_none(""),
        tgi=_none(""),
        shown="spec",
    ),
}
HISTOGRAMS = {
    "ttft": Row(
        vllm=_reported("vllm:time_to_first_token_seconds"),
        sglang=_reported("sglang:time_to_first_token_seconds"),
        tgi=_none(_NO_TOKEN_TIMES_TGI),
    ),
    "itl": Row(
        vllm=_reported("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        sglang=_reported("sglang:inter_token_latency_seconds"),
        tgi=_none(_NO_TOKEN_TIMES_TGI),
    ),
    "tpot": Row(
        vllm=_reported("vllm:request_time_per_output_token_seconds"),
        sglang=_reported("sglang:request_time_per_output_token_seconds"),
        tgi=_none("TGI's time per token includes the prefill"),
    ),
    "e2e": Row(
        vllm=_reported("vllm:e2e_request_latency_seconds"),
        sglang=_reported("sglang:e2e_request_latency_seconds"),
        tgi=_reported("tgi_request_duration"),
    ),
    "queue": Row(
        vllm=_reported("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
        sglang=_reported("sglang:queue_time_seconds"),
        tgi=_reported("tgi_request_queue_duration"),
    ),
    "prefill": Row(
        vllm=_reported("vllm:request_prefill_time_seconds"),
        sglang=_reported('sglang:per_stage_req_latency_seconds{stage="prefill_forward"}'),
        tgi=_none("TGI times the prefill of batches, not of requests"),
    ),
    "decode": Row(
        vllm=_reported("vllm:request_decode_time_seconds"),
        sglang=_none("SGLang does not time the decode of requests"),
        tgi=_none(_NO_TOKEN_TIMES_TGI),
    ),
}
LATENCIES = tuple(HISTOGRAMS)
