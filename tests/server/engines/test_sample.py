"""What is read off a page, whichever engine and version it is of."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ServerError
from loadgen.masking import masked
from loadgen.schema.engine import EngineKind, EngineStage, EngineView
from loadgen.server.engines.figures import stage_of, view_of
from loadgen.server.engines.names import ENGINES, LATENCIES, SHOWN, EngineHistogram, EngineSample
from loadgen.server.engines.sample import (
    continued,
    parse_engine_metrics,
    sum_histograms,
    sum_of,
)
from tests.server.engines.pages import page, text_of

INF = float("inf")


def test_several_engines_are_one_sample() -> None:
    sample = page("vllm_data_parallel")
    assert (sample.running, sample.waiting, sample.kv_usage) == (8, 2, 0.5)
    assert (sample.prompt_tokens, sample.generation_tokens, sample.preemptions) == (1500, 200, 1)
    assert (sample.prefix_queries, sample.prefix_hits) == (400, 100)
    assert sample.ttft == EngineHistogram(2.3, 12, ((0.1, 4), (0.2, 10), (INF, 12)))
    assert sample.itl == EngineHistogram(0.07, 7, ((INF, 7),))
    assert (sample.tpot, sample.e2e, sample.queue, sample.prefill, sample.decode) == (None,) * 5


def test_old_names() -> None:
    sample = parse_engine_metrics(
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.75\n'
        'vllm:gpu_prefix_cache_queries_total{model_name="m"} 8\n'
        'vllm:gpu_prefix_cache_hits_total{model_name="m"} 6\n'
        'vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 3\n'
        'vllm:time_per_output_token_seconds_count{model_name="m"} 3\n'
        'vllm:time_per_output_token_seconds_sum{model_name="m"} 0.06\n'
    )
    assert (sample.kv_usage, sample.prefix_queries, sample.prefix_hits) == (0.75, 8, 6)
    assert sample.itl == EngineHistogram(0.06, 3, ((INF, 3),))
    assert (sample.waiting_by_reason, sample.admission_rejections, sample.engines) == (None, None, {})


def test_next_to_nothing_is_counted_as_nothing() -> None:
    text = "vllm:time_to_first_token_seconds_count 5e-324\nvllm:time_to_first_token_seconds_sum 2\n"
    assert parse_engine_metrics(text).ttft == EngineHistogram(2.0, 0.0, ())


@pytest.mark.parametrize("bound", ["1e308", "-Inf", "NaN"])
def test_a_bucket_that_ends_at_no_time_is_refused(bound: str) -> None:
    lines = (f'_bucket{{le="{bound}"}} 3', "_count 3", "_sum 0.06")
    with pytest.raises(ServerError, match="no number of seconds"):
        parse_engine_metrics("".join(f"vllm:time_to_first_token_seconds{line}\n" for line in lines))


def test_a_version_with_both_names_is_counted_once() -> None:
    sample = parse_engine_metrics(
        "vllm:kv_cache_usage_perc 0.5\nvllm:gpu_cache_usage_perc 0.25\n"
        "vllm:kv_offload_load_bytes_total 7\n"
        'vllm:kv_offload_total_bytes_total{transfer_type="CPU_to_GPU"} 7\n'
        'vllm:kv_offload_total_bytes_total{transfer_type="GPU_to_CPU"} 3\n'
    )
    assert (sample.kv_usage, sample.offload_load_bytes, sample.offload_store_bytes) == (0.5, 7, 3)


def test_engines_apart() -> None:
    sample = page("vllm_data_parallel")
    assert list(sample.engines) == ["0", "1"]
    first, second = sample.engines.values()
    assert (first.running, second.running, first.kv_usage, second.kv_usage) == (5, 3, 0.25, 0.5)
    assert (first.prompt_tokens, second.prompt_tokens, second.generation_tokens) == (1000, 500, None)
    assert second.ttft == EngineHistogram(0.3, 2, ((0.1, 0), (0.2, 2), (INF, 2)))
    assert first.waiting_by_reason == sample.waiting_by_reason == {"capacity": 99}
    one = "\n".join(line for line in text_of("vllm_data_parallel").splitlines() if 'engine="1"' not in line)
    assert parse_engine_metrics(one) == first


def test_labels_are_made_harmless() -> None:
    sample = parse_engine_metrics('vllm:num_requests_waiting_by_reason{reason="a\x1b[2J"} 1\n')
    assert sample.waiting_by_reason is not None
    assert "\x1b" not in "".join(sample.waiting_by_reason)


def test_rejections_of_all_reasons_add_up() -> None:
    sample = parse_engine_metrics(
        'vllm:admission_rejections_total{model_name="m",reason="num_queued_reqs"} 2\n'
        'vllm:admission_rejections_total{model_name="m",reason="num_queued_tokens"} 3\n'
    )
    assert sample.admission_rejections == 5


def test_nothing_known_is_none_and_never_zero() -> None:
    assert parse_engine_metrics("") == EngineSample()
    assert parse_engine_metrics("other_metric 1\n# a comment\n") == EngineSample()
    nothing = parse_engine_metrics("vllm:kv_cache_usage_perc NaN\n")
    assert nothing == EngineSample(kind="vllm", unavailable=nothing.unavailable)


@pytest.mark.parametrize(
    "text", ["vllm:prompt_tokens_total{model= 1", "vllm:prompt_tokens_total x", "vllm:num_requests_waiting_by_reason 1"]
)
def test_what_is_not_prometheus(text: str) -> None:
    with pytest.raises(ServerError, match="Prometheus"):
        parse_engine_metrics(text)


def test_a_page_under_load_with_creation_times() -> None:
    sample = page("vllm_0.32_loaded")
    assert (sample.running, sample.waiting) == (7, 0)
    assert sample.generation_tokens is not None and sample.generation_tokens < 1e6, "not a creation time"


def test_a_page_of_two_data_parallel_engines() -> None:
    """Two API servers share it: it has no start time of a process and no creation times."""
    sample = page("vllm_0.32_data_parallel")
    assert sample.running == 1
    assert sample.generation_tokens == 4481 + 4097
    assert sample.engines.keys() == {"0", "1"}


def test_more_lines_than_an_engine_has() -> None:
    with pytest.raises(ServerError, match=r"has 60,000 lines of vLLM"):
        parse_engine_metrics('vllm:prompt_tokens_total{engine="0"} 1\n' * 60_000)


@pytest.mark.parametrize(
    "line", ['vllm:request_success_total{{finished_reason="{}"}} 1', 'vllm:num_requests_running{{engine="{}"}} 1']
)
def test_more_labels_than_an_engine_has(line: str) -> None:
    with pytest.raises(ServerError, match=r"more than 1024 engines, or parts of one figure"):
        parse_engine_metrics("\n".join(line.format(number) for number in range(2000)))


def test_an_old_version_of_vllm() -> None:
    sample = page("vllm_0.6")
    assert (sample.kind, sample.running, sample.waiting, sample.kv_usage) == ("vllm", 7, 1, 0.37)
    assert (sample.finished, sample.accepted_tokens) == ({"length": 40}, None)
    counts = [sample.ttft, sample.itl, sample.e2e, sample.queue, sample.prefill, sample.decode]
    assert [one and one.count for one in counts] == [40, 1240, 40, 40, 40, 40]
    assert sample.unavailable["tpot"] == "this version of vLLM does not tell"
    assert sample.unavailable["spec"] == "speculative decoding is off"


def test_errors_are_of_requests_that_ask_for_something() -> None:
    assert page("vllm_0.32_loaded").errors == {"2xx": 277, "4xx": 6}
    assert page("sglang_0.5.23_after").errors == {"200": 68, "503": 2}
    assert page("tgi_3.3_after").errors == {"overloaded": 4, "validation": 1}


def test_ranks_of_one_engine_of_sglang_are_copies() -> None:
    """Two data-parallel engines of two pipeline ranks, each of which publishes everything."""
    sample = page("sglang_0.5.23_after")
    assert (sample.kind, sample.running, sample.waiting, sample.kv_usage) == ("sglang", 8, 2, 0.41)
    assert {name: engine.running for name, engine in sample.engines.items()} == {"0": 5, "1": 3}
    assert sample.queue is not None and sample.queue.count == 64
    assert sample.prefill is not None and sample.prefill.count == 64, "one stage of a request of several"


def test_a_queue_of_sglang_split_by_priority_is_counted_once() -> None:
    rank = 'tp_rank="0",pp_rank="0"'
    sample = parse_engine_metrics(
        f'sglang:num_queue_reqs{{{rank},priority=""}} 5\n'
        f'sglang:num_queue_reqs{{{rank},priority="1"}} 3\n'
        f'sglang:num_queue_reqs{{{rank},priority="2"}} 2\n'
        'sglang:prompt_tokens_total{priority="1"} 30\n'
        'sglang:prompt_tokens_total{priority="2"} 20\n'
    )
    assert (sample.waiting, sample.prompt_tokens) == (5, 50)


@pytest.mark.parametrize("kind", ENGINES)
def test_every_figure_has_a_series_or_a_reason(kind: EngineKind) -> None:
    engine = ENGINES[kind]
    fields = set(EngineSample.__struct_fields__) - {"kind", "started_unix_s", "unavailable", "engines"}
    shown = {SHOWN.get(name, name) for name in fields}
    assert engine.figures.keys() <= fields
    assert {SHOWN.get(name, name) for name in engine.figures} | engine.unavailable.keys() == shown
    views = {*EngineView.__struct_fields__, *EngineStage.__struct_fields__, *LATENCIES}
    assert shown - {"throughput", "by_source"} <= views
    assert masked(dict.fromkeys(shown, "why")) == dict.fromkeys(shown, "why"), "no name looks like a secret's"


def test_bounds_that_versions_do_not_share_are_left_out_of_a_sum() -> None:
    one = EngineHistogram(4.0, 7, ((1.0, 5), (2.0, 6), (INF, 7)))
    other = EngineHistogram(2.0, 5, ((0.5, 3), (2.0, 4), (INF, 5)))
    assert sum_histograms([one, other]) == EngineHistogram(6.0, 12, ((2.0, 10), (INF, 12)))


def test_two_kinds_of_engines_have_no_kind_and_miss_what_one_misses() -> None:
    both = sum_of([page("vllm_0.32_after"), page("tgi_3.3_after")])
    assert both is not None
    assert (both.kind, both.running, both.kv_usage, both.ttft) == (None, 6, None, None)
    assert both.unavailable["kv_usage"] == "TGI does not say how full its KV cache is"


def test_two_versions_in_one_list_of_servers() -> None:
    older, newer = page("vllm_0.6"), page("vllm_0.32_after")
    both = sum_of([older, newer])
    assert both is not None and both.ttft is not None and older.ttft is not None and newer.ttft is not None
    assert (both.kind, both.running, both.tpot) == ("vllm", 7, None)
    assert both.ttft.count == older.ttft.count + newer.ttft.count
    shared = {bound for bound, _ in older.ttft.buckets}
    assert {bound for bound, _ in both.ttft.buckets} == shared < {bound for bound, _ in newer.ttft.buckets}
    assert both.unavailable["tpot"] == "this version of vLLM does not tell"


def test_a_server_that_has_nothing_to_count_yet_is_part_of_a_sum() -> None:
    both = sum_of([page("sglang_0.5.23_before"), page("sglang_0.5.23_after")])
    assert both is not None and both.ttft is not None
    assert (both.ttft.count, both.errors) == (64, {"200": 72, "503": 2})
    silent = EngineSample(kind="vllm", prompt_tokens=1.0, errors={"4xx": 2.0})
    others = sum_of([silent, EngineSample(kind="vllm")])
    assert others is not None and (others.prompt_tokens, others.errors) == (None, {"4xx": 2.0})


COUNTS = st.lists(st.integers(0, 100), min_size=3, max_size=3)


def counted(counts: list[int]) -> EngineSample:
    below = tuple((bound, float(sum(counts[: place + 1]))) for place, bound in enumerate((1.0, 2.0, INF)))
    ttft = EngineHistogram(float(sum(counts)), float(sum(counts)), below)
    return EngineSample(
        kind="vllm",
        running=float(counts[0]),
        prompt_tokens=float(counts[1]),
        flops_per_gpu=float(counts[1]),
        finished={"stop": float(counts[2])},
        ttft=ttft,
        engines={"0": EngineSample(kind="vllm", prompt_tokens=float(counts[1]))},
    )


@given(COUNTS, COUNTS)
def test_a_restarted_server_goes_on_counting(earlier: list[int], later: list[int]) -> None:
    sample = continued(counted(earlier), counted(later))
    together = counted([a + b for a, b in zip(earlier, later, strict=True)])
    assert sample == msgspec.structs.replace(together, running=float(later[0])), "gauges are those of now"


def test_what_one_life_reported_is_not_missing() -> None:
    reported = EngineSample(kind="vllm", errors={"4xx": 1.0}, unavailable={"spec": "off"})
    sample = continued(
        reported, EngineSample(kind="vllm", unavailable={"spec": "off", "errors": "no request has come yet"})
    )
    assert (sample.errors, sample.unavailable) == ({"4xx": 1.0}, {"spec": "off"})


LINES = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.builds(
            '{}{{{}="{}",le="{}"}} {}'.format,
            st.sampled_from(["vllm:num_requests_running", "vllm:time_to_first_token_seconds_bucket", "tgi_queue_size"]),
            st.sampled_from(["engine", "reason", "position", "tp_rank"]),
            st.text(max_size=5),
            st.sampled_from(["0.1", "+Inf", "x"]),
            st.sampled_from(["1", "NaN", "-1", "1e400", "", "x"]),
        ),
    ),
    max_size=8,
)


@given(LINES)
def test_any_page_is_read_or_refused(lines: list[str]) -> None:
    with contextlib.suppress(ServerError):
        sample = parse_engine_metrics("\n".join(lines))
        assert view_of(sample, sample, 5.0) is not None
        stage_of(sample, sample, between_s=(0.0, 5.0), oldest_s=None)
