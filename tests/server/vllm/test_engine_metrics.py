"""What an engine cannot have measured, and that what it can have measured is believed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ServerError
from loadgen.server.vllm.engine_metrics import EngineHistogram, EngineSample, delta, engine_doubts, parse_engine_metrics

FOLDER = Path(__file__).parent
TEXT = FOLDER.joinpath("vllm_metrics.txt").read_text()
WHEN = ("before", "after")
INF = float("inf")


def histogram(*counts: float) -> EngineHistogram:
    """Cumulative counts up to 0.1 s, 0.2 s and infinity; every observation lasted 0.05 s."""
    return EngineHistogram(counts[-1] * 0.05, counts[-1], tuple(zip((0.1, 0.2, INF), counts, strict=True)))


def test_several_engines_are_one_sample() -> None:
    sample = parse_engine_metrics(TEXT)
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
    assert (sample.waiting_by_reason, sample.admission_rejections, sample.engines) == ({}, None, {})


def test_engines_apart() -> None:
    sample = parse_engine_metrics(TEXT)
    assert list(sample.engines) == ["0", "1"]
    first, second = sample.engines.values()
    assert (first.running, second.running, first.kv_usage, second.kv_usage) == (5, 3, 0.25, 0.5)
    assert (first.prompt_tokens, second.prompt_tokens, second.generation_tokens) == (1000, 500, None)
    assert second.ttft == EngineHistogram(0.3, 2, ((0.1, 0), (0.2, 2), (INF, 2)))
    assert first.waiting_by_reason == sample.waiting_by_reason == {"capacity": 99}
    one = "\n".join(line for line in TEXT.splitlines() if 'engine="1"' not in line)
    assert parse_engine_metrics(one) == first


def test_what_each_gpu_computed_is_the_mean_of_the_engines() -> None:
    page = 'vllm:estimated_flops_per_gpu_total{{engine="0"}} {}\nvllm:estimated_flops_per_gpu_total{{engine="1"}} {}\n'
    before, after = (parse_engine_metrics(page.format(*flops)) for flops in ((1e12, 3e12), (5e12, 9e12)))
    change = delta(before, after)
    assert change is not None and change.flops_per_gpu == 5e12
    assert [engine.flops_per_gpu for engine in after.engines.values()] == [5e12, 9e12]


def test_labels_are_made_harmless() -> None:
    sample = parse_engine_metrics('vllm:num_requests_waiting_by_reason{reason="a\x1b[2J"} 1\n')
    [reason] = sample.waiting_by_reason
    assert "\x1b" not in reason


def test_rejections_of_all_reasons_add_up() -> None:
    sample = parse_engine_metrics(
        'vllm:admission_rejections_total{model_name="m",reason="num_queued_reqs"} 2\n'
        'vllm:admission_rejections_total{model_name="m",reason="num_queued_tokens"} 3\n'
    )
    assert sample.admission_rejections == 5


def test_a_real_server() -> None:
    """vLLM 0.32.0 before and after 64 requests of 256 and 32 tokens: 32 prompts, each sent twice."""
    before, after = (parse_engine_metrics(FOLDER.joinpath(f"vllm_0.32_{when}.txt").read_text()) for when in WHEN)
    change = delta(before, after)
    assert change is not None
    # Before each run vramp sends one request of its own.
    assert (change.prompt_tokens, change.generation_tokens) == (64 * 256 + 2 * 16, 64 * 32 + 2)
    assert (change.preemptions, change.admission_rejections) == (0, 0)
    assert after.waiting_by_reason == {"capacity": 0, "deferred": 0}
    assert change.prefix_hit_rate == pytest.approx(0.25, abs=0.001)
    for name in ("ttft", "tpot", "e2e", "queue", "prefill", "decode"):
        assert getattr(change, name).count == 66, name
    assert change.itl is not None and change.itl.count == 64 * 31
    assert change.ttft is not None and change.queue is not None
    assert change.ttft.p50_s == pytest.approx(0.0136)
    assert change.queue.p50_s is None, "its first bucket ends at 0.3 s"
    assert after.engines == {}


def test_nothing_known_is_none_and_never_zero() -> None:
    assert parse_engine_metrics("") == EngineSample()
    assert parse_engine_metrics("other_metric 1\n# a comment\n") == EngineSample()
    assert parse_engine_metrics("vllm:kv_cache_usage_perc NaN\n") == EngineSample()


@pytest.mark.parametrize(
    "text", ["vllm:prompt_tokens_total{model= 1", "vllm:prompt_tokens_total x", "vllm:num_requests_waiting_by_reason 1"]
)
def test_what_is_not_prometheus(text: str) -> None:
    with pytest.raises(ServerError, match="Prometheus"):
        parse_engine_metrics(text)


def test_a_window_has_mean_and_percentiles() -> None:
    before = EngineSample(prefix_queries=10, prefix_hits=5, ttft=histogram(10, 10, 10))
    after = EngineSample(prefix_queries=30, prefix_hits=20, ttft=histogram(60, 110, 110))
    change = delta(before, after)
    assert change is not None
    assert change.prefix_hit_rate == 0.75
    assert change.ttft is not None
    assert change.ttft.count == 100
    assert change.ttft.mean_s == pytest.approx(0.05)
    assert change.ttft.p50_s is None, "somewhere below 0.1 s"
    assert change.ttft.p90_s == pytest.approx(0.18)


def test_hits_are_prompt_tokens_by_source_where_the_engine_tells_them() -> None:
    text = "".join(
        f'vllm:prompt_tokens_by_source_total{{engine="{engine}",source="{source}"}} {tokens}\n'
        for engine, source, tokens in (
            ("0", "local_compute", 60),
            ("1", "local_compute", 15),
            ("0", "local_cache_hit", 25),
        )
    )
    after = replace(parse_engine_metrics(text), prefix_queries=100.0, prefix_hits=90.0)
    nothing = {"local_compute": 0.0, "local_cache_hit": 0.0}
    before = EngineSample(prompt_tokens_by_source=nothing, prefix_queries=0.0, prefix_hits=0.0)
    change = delta(before, after)
    assert change is not None and change.prefix_hit_rate == 0.25
    older = delta(replace(before, prompt_tokens_by_source=None), replace(after, prompt_tokens_by_source=None))
    assert older is not None and older.prefix_hit_rate == 0.9
    too_many = delta(EngineSample(prefix_queries=0, prefix_hits=0), EngineSample(prefix_queries=5, prefix_hits=6))
    assert too_many is not None and too_many.prefix_hit_rate is None
    idle = delta(after, after)
    assert idle is not None and idle.prefix_hit_rate is None
    assert delta(after, before) is None


@pytest.mark.parametrize("counts", [(0, 0, 5), (5, 5, 5)])
def test_a_bucket_without_a_bound_on_either_side_has_no_percentile(counts: tuple[int, ...]) -> None:
    change = delta(EngineSample(ttft=histogram(0, 0, 0)), EngineSample(ttft=histogram(*counts)))
    assert change is not None and change.ttft is not None
    assert (change.ttft.count, change.ttft.mean_s) == (5, 0.05)
    assert (change.ttft.p50_s, change.ttft.p90_s, change.ttft.p99_s) == (None, None, None)


def test_what_one_side_lacks_is_none() -> None:
    other = replace(histogram(1, 1, 1), buckets=((5.0, 1.0),))
    for before in (EngineSample(), EngineSample(ttft=other), EngineSample(ttft=histogram(2, 2, 2))):
        change = delta(before, EngineSample(prompt_tokens=5, ttft=histogram(2, 2, 2)))
        assert change is not None
        assert (change.prompt_tokens, change.ttft, change.prefix_hit_rate) == (None, None, None)


def test_a_restarted_server_has_no_delta() -> None:
    full = EngineSample(prompt_tokens=5, ttft=histogram(1, 2, 3))
    assert delta(full, replace(full, prompt_tokens=4)) is None
    assert delta(full, replace(full, ttft=histogram(1, 1, 3))) is None
    assert delta(full, replace(full, ttft=histogram(0, 0, 0))) is None


counts = st.integers(0, 10**9)


@given(before=counts, grown=counts, running=counts)
def test_counters_differ_by_what_was_counted(before: int, grown: int, running: int) -> None:
    earlier = EngineSample(running=running, prompt_tokens=before, generation_tokens=before)
    change = delta(earlier, EngineSample(running=0, prompt_tokens=before + grown, generation_tokens=before))
    assert change is not None
    assert (change.prompt_tokens, change.generation_tokens) == (grown, 0)


@given(st.lists(st.integers(0, 1000), min_size=3, max_size=3), st.lists(st.integers(0, 1000), min_size=3, max_size=3))
def test_percentiles_are_ordered_and_within_the_bounds(first: list[int], second: list[int]) -> None:
    a = [sum(first[: i + 1]) for i in range(3)]
    b = [x + sum(second[: i + 1]) for i, x in enumerate(a)]
    change = delta(EngineSample(e2e=histogram(*a)), EngineSample(e2e=histogram(*b)))
    assert change is not None
    if sum(second) == 0:
        assert change.e2e is None
    else:
        assert change.e2e is not None
        known = [p for p in (change.e2e.p50_s, change.e2e.p90_s, change.e2e.p99_s) if p is not None]
        assert known == sorted(known)
        assert all(0.1 < p <= 0.2 for p in known)


NOTHING = EngineHistogram(0.0, 0.0, ((1.0, 0.0), (10.0, 0.0), (INF, 0.0)))
IDLE = EngineSample(running=0, waiting=0, ttft=NOTHING, e2e=NOTHING, prefix_queries=0, prefix_hits=0, prompt_tokens=0)


def observed(*seconds: float) -> EngineHistogram:
    """What an honest engine would say."""
    buckets = tuple((bound, float(sum(each <= bound for each in seconds))) for bound in (1.0, 10.0, INF))
    return EngineHistogram(sum(seconds), float(len(seconds)), buckets)


@given(st.lists(st.floats(0, 5), max_size=20), st.lists(st.floats(0, 5), max_size=20))
def test_an_honest_engine_is_believed(first: list[float], more: list[float]) -> None:
    before = replace(IDLE, ttft=observed(*first))
    after = replace(IDLE, ttft=observed(*first, *more))
    assert engine_doubts(before, after, span_s=5.0, oldest_s=5.0) == {}


def test_a_real_engine_is_believed() -> None:
    before, after = (
        parse_engine_metrics(FOLDER.joinpath(f"vllm_0.32_{when}.txt").read_text()) for when in ("before", "after")
    )
    assert engine_doubts(before, after, span_s=60.0, oldest_s=60.0) == {}


@pytest.mark.parametrize("sum_s", [-5.0, 31.0, 1e9])
def test_a_sum_that_its_buckets_leave_no_room_for(sum_s: float) -> None:
    # One within a second, one within ten.
    after = replace(IDLE, ttft=replace(observed(0.5, 9.0), sum_s=sum_s))
    doubts = engine_doubts(IDLE, after, span_s=3600.0)
    assert list(doubts) == ["ttft"]
    assert "is not of these buckets (0.5 to 5.5 s)" in doubts["ttft"]


def test_nothing_takes_longer_than_there_was_time() -> None:
    after = replace(IDLE, ttft=observed(2000.0, 3000.0), e2e=observed(4.0, 5.0))
    assert engine_doubts(IDLE, after, span_s=5.0, oldest_s=5.0) == {
        "ttft": "a mean of 2.5e+03 s, where no more than 6 s can have passed"
    }
    assert engine_doubts(IDLE, after, span_s=5.0) == {}, "who knows what was open before"


def test_what_was_open_before_may_have_waited_for_long() -> None:
    one_open = replace(IDLE, running=1)
    after = replace(IDLE, ttft=observed(90.0, 2.0))
    assert engine_doubts(one_open, after, span_s=5.0, oldest_s=100.0) == {}
    assert engine_doubts(IDLE, after, span_s=5.0, oldest_s=100.0).keys() == {"ttft"}
    unknown = replace(IDLE, running=None)
    assert engine_doubts(unknown, after, span_s=5.0, oldest_s=100.0) == {}


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ({"prefix_queries": 100, "prefix_hits": 101, "prompt_tokens": 200}, "101 hits in 100 look-ups"),
        (
            {"prefix_queries": 300, "prefix_hits": 30, "prompt_tokens": 200},
            "300 tokens were looked up, and the prompts had 200",
        ),
        ({"prefix_queries": 200, "prefix_hits": 200, "prompt_tokens": 200}, None),
        # Some have no first token yet.
        ({"prefix_queries": 300, "prefix_hits": 30, "prompt_tokens": 200, "running": 1}, None),
        ({"prefix_queries": 100, "prefix_hits": 101, "prompt_tokens_by_source": {"local_compute": 5.0}}, None),
        ({"prefix_queries": None, "prefix_hits": 101}, None),
    ],
)
def test_hits(numbers: dict[str, Any], why: str | None) -> None:
    doubts = engine_doubts(IDLE, replace(IDLE, **numbers), span_s=5.0)
    assert doubts.get("prefix_hit_rate") == why
