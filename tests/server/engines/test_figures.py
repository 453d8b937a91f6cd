"""What is shown of an engine and kept of a stage, for each engine."""

from __future__ import annotations

import pytest

from loadgen.schema.engine import EngineStage, SpecDecode
from loadgen.server.engines.figures import stage_of, view_of
from loadgen.server.engines.names import EngineSample
from tests.server.engines.pages import page


def stage(before: str, after: str, span_s: float = 10.0) -> EngineStage:
    found = stage_of(page(before), page(after), between_s=(1.0, 1.0 + span_s), oldest_s=None)
    assert found is not None
    return found


def test_vllm() -> None:
    """vLLM 0.32.0: 64 requests of 256 and 32 tokens, and two of vramp's own."""
    one = stage("vllm_0.32_before", "vllm_0.32_after")
    assert (one.kind, one.requests, one.requests_per_s, one.finished) == ("vllm", 66, 6.6, {"length": 66})
    assert one.latency_ms["ttft"].within == {"p50": (10.0, 20.0), "p90": (20.0, 40.0), "p99": (80.0, 100.0)}
    assert one.latency_ms["queue"].within["p99"] == (0.0, 300.0)
    assert one.prompt_tokens_by_source["local_compute"] + one.prompt_tokens_by_source["local_cache_hit"] == 16416
    assert (one.tflops_per_gpu, one.hbm_bytes_per_s) == (None, None)
    assert (
        one.unavailable["tflops_per_gpu"]
        == one.unavailable["hbm_bytes_per_s"]
        == "counted with --enable-mfu-metrics only"
    )
    assert {"spec", "kv_offload_bytes", "external_prefix_hit_rate"} <= one.unavailable.keys()
    assert not {"ttft", "kv_usage", "preemptions", "finished"} & one.unavailable.keys()


def test_speculation_of_the_real_vllm() -> None:
    spec = stage("vllm_0.32_ngram_before", "vllm_0.32_ngram_after").spec
    assert spec is not None and spec.drafts and spec.accepted_tokens and spec.drafted_tokens
    assert spec.acceptance == spec.accepted_tokens / spec.drafted_tokens
    assert spec.mean_accepted_length == 1 + spec.accepted_tokens / spec.drafts
    assert len(spec.acceptance_by_position) == 4
    assert spec.acceptance_by_position == tuple(sorted(spec.acceptance_by_position, reverse=True))
    assert sum(spec.acceptance_by_position) == pytest.approx(spec.mean_accepted_length - 1)


def test_positions_are_in_the_order_of_numbers() -> None:
    before = EngineSample(kind="vllm", drafts=0.0, drafted_tokens=0.0, accepted_tokens=0.0)
    by_position = {str(position): float(12 - position) for position in (10, 2, 1, 0)}
    after = EngineSample(
        kind="vllm", drafts=12.0, drafted_tokens=24.0, accepted_tokens=6.0, accepted_by_position=by_position
    )
    view = view_of(before, after, 5.0)
    assert view is not None and view.spec is not None
    assert view.spec.acceptance_by_position == (1.0, 11 / 12, 10 / 12, 2 / 12)


def test_sglang() -> None:
    one = stage("sglang_0.5.23_before", "sglang_0.5.23_after")
    assert (one.kind, one.requests, one.generation_tokens, one.generation_tokens_per_s) == ("sglang", 64, 2048, 204.8)
    assert {name: latency.count for name, latency in one.latency_ms.items()} == {
        "ttft": 64, "itl": 1984, "tpot": 64, "e2e": 64, "queue": 64, "prefill": 64,
    }  # fmt: skip
    assert one.latency_ms["ttft"].within["p50"] == (200.0, 400.0)
    assert (one.errors, one.preemptions, one.idle_around) == ({"503": 2}, 2, False)
    assert one.prompt_tokens_by_source == {
        "local_compute": 11520, "local_cache_hit": 3840, "host_hit": 640, "external_kv_transfer": 384,
    }  # fmt: skip
    assert one.prefix_hit_rate == pytest.approx(3840 / 16384)
    assert one.spec == SpecDecode(drafts=768, acceptance=0.55, mean_accepted_length=2.6)
    assert one.unavailable["decode"] == "SGLang does not time the decode of requests"
    assert one.unavailable["finished"] == "SGLang does not say how requests ended"


def test_tgi() -> None:
    one = stage("tgi_3.3_before", "tgi_3.3_after")
    assert (one.kind, one.requests, one.prompt_tokens, one.generation_tokens) == ("tgi", 40, 10240, 1280)
    assert one.latency_ms.keys() == {"e2e", "queue"}
    assert (one.errors, one.admission_rejections) == ({"overloaded": 4, "validation": 1}, 4)
    assert one.spec == SpecDecode(drafts=800, accepted_tokens=480, mean_accepted_length=1.6)
    assert one.unavailable["ttft"] == "TGI times whole requests, not their tokens"
    assert one.unavailable["kv_usage"] == "TGI does not say how full its KV cache is"
    now = view_of(None, page("tgi_3.3_after"), 0.0)
    assert now is not None and (now.running, now.waiting) == (6, 3)


def test_an_engine_that_does_not_speculate_has_no_speculation() -> None:
    steps = EngineSample(kind="tgi", drafts=100.0, accepted_tokens=0.0)
    view = view_of(EngineSample(kind="tgi", drafts=0.0, accepted_tokens=0.0), steps, 5.0)
    assert view is not None and view.spec is None


def test_a_view_has_the_window_and_the_time_since_the_start() -> None:
    before, after = page("vllm_0.32_before"), page("vllm_0.32_after")
    view = view_of(before, after, 5.0)
    assert view is not None and after.ttft is not None
    assert view.latency_ms["ttft"].count == 66
    assert view.since_start["ttft"].count == after.ttft.count > 66
    assert (view.requests_per_s, view.finished, view.errors) == (13.2, {"length": 66}, {})
    quiet = view_of(after, after, 5.0)
    assert quiet is not None and (quiet.requests_per_s, quiet.latency_ms) == (0, {})
    assert quiet.since_start == view.since_start


def test_what_the_gpus_computed_and_moved() -> None:
    before = EngineSample(kind="vllm", flops_per_gpu=0.0, read_bytes_per_gpu=0.0, write_bytes_per_gpu=0.0)
    after = EngineSample(kind="vllm", flops_per_gpu=5e12, read_bytes_per_gpu=8e12, write_bytes_per_gpu=2e12)
    view = view_of(before, after, 5.0)
    assert view is not None
    assert (view.tflops_per_gpu, view.hbm_bytes_per_s) == (1.0, 2e12)


def test_bytes_offloaded_and_hits_of_an_external_cache() -> None:
    before = EngineSample(kind="vllm", external_queries=0.0, external_hits=0.0)
    after = EngineSample(kind="vllm", external_queries=100.0, external_hits=25.0, offload_load_bytes=7.0)
    view = view_of(before, after, 5.0)
    assert view is not None
    assert (view.external_prefix_hit_rate, view.kv_offload_bytes) == (0.25, {"load": 7})


def test_counters_that_went_back() -> None:
    one = stage("vllm_0.32_after", "vllm_0.32_before")
    assert (one.doubts, one.requests) == ({"all": "its counters went back"}, None)
