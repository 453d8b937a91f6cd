"""What an engine cannot have measured, and that what it can have measured is believed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadgen.server.engines.names import EngineHistogram, EngineSample
from loadgen.server.engines.sample import parse_engine_metrics
from loadgen.server.engines.window import delta, engine_doubts, intervals_s
from tests.server.engines.pages import page

INF = float("inf")


def histogram(*counts: float) -> EngineHistogram:
    """Cumulative counts up to 0.1 s, 0.2 s and infinity; every observation lasted 0.05 s."""
    return EngineHistogram(counts[-1] * 0.05, counts[-1], tuple(zip((0.1, 0.2, INF), counts, strict=True)))


def test_what_each_gpu_computed_is_the_mean_of_the_engines() -> None:
    page = 'vllm:estimated_flops_per_gpu_total{{engine="0"}} {}\nvllm:estimated_flops_per_gpu_total{{engine="1"}} {}\n'
    before, after = (parse_engine_metrics(page.format(*flops)) for flops in ((1e12, 3e12), (5e12, 9e12)))
    change = delta(before, after)
    assert change is not None and change.flops_per_gpu == 5e12
    assert [engine.flops_per_gpu for engine in after.engines.values()] == [5e12, 9e12]


def test_a_real_server() -> None:
    """vLLM 0.32.0 before and after 64 requests of 256 and 32 tokens: 32 prompts, each sent twice."""
    before, after = (page(f"vllm_0.32_{when}") for when in ("before", "after"))
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
    assert intervals_s(change.ttft) == {"p50": (0.01, 0.02), "p90": (0.02, 0.04), "p99": (0.08, 0.1)}
    assert intervals_s(change.queue)["p99"] == (0.0, 0.3)
    assert after.engines == {}


def test_a_window_has_mean_and_percentiles() -> None:
    before = EngineSample(prefix_queries=10, prefix_hits=5, ttft=histogram(10, 10, 10))
    after = EngineSample(prefix_queries=30, prefix_hits=20, ttft=histogram(60, 110, 110))
    change = delta(before, after)
    assert change is not None
    assert change.prefix_hit_rate == 0.75
    assert change.ttft is not None
    assert change.ttft.count == 100
    assert change.ttft.mean_s == pytest.approx(0.05)
    assert intervals_s(change.ttft) == {"p50": (0.0, 0.1), "p90": (0.1, 0.2), "p99": (0.1, 0.2)}


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


def test_beyond_the_last_bound_a_percentile_has_no_upper_one() -> None:
    change = delta(EngineSample(ttft=histogram(0, 0, 0)), EngineSample(ttft=histogram(0, 0, 5)))
    assert change is not None and change.ttft is not None
    assert intervals_s(change.ttft) == dict.fromkeys(("p50", "p90", "p99"), (0.2, None))


def test_what_one_side_misses_is_none() -> None:
    for before in (EngineSample(), EngineSample(ttft=histogram(2, 2, 2))):
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
def test_the_percentile_is_in_its_interval(first: list[int], second: list[int]) -> None:
    a = [sum(first[: i + 1]) for i in range(3)]
    b = [x + sum(second[: i + 1]) for i, x in enumerate(a)]
    change = delta(EngineSample(e2e=histogram(*a)), EngineSample(e2e=histogram(*b)))
    assert change is not None
    if sum(second) == 0:
        assert change.e2e is None
    else:
        assert change.e2e is not None
        bounds = (0.1, 0.2, INF)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            low, high = intervals_s(change.e2e)[name]
            below = sum(count for bound, count in zip(bounds, second, strict=True) if bound <= low)
            upto = sum(count for bound, count in zip(bounds, second, strict=True) if bound <= (high or INF))
            assert below < share * sum(second) <= upto


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
    before, after = (page(f"vllm_0.32_{when}") for when in ("before", "after"))
    assert engine_doubts(before, after, span_s=60.0, oldest_s=60.0) == {}


@pytest.mark.parametrize("sum_s", [-5.0, 31.0, 1e9])
def test_a_sum_that_its_buckets_leave_no_room_for(sum_s: float) -> None:
    # One within a second, one within ten.
    after = replace(IDLE, ttft=replace(observed(0.5, 9.0), sum_s=sum_s))
    doubts = engine_doubts(IDLE, after, span_s=3600.0)
    assert list(doubts) == ["ttft"]
    assert "is outside the buckets' range (0.5 to 5.5 s)" in doubts["ttft"]


def test_nothing_takes_longer_than_there_was_time() -> None:
    after = replace(IDLE, ttft=observed(2000.0, 3000.0), e2e=observed(4.0, 5.0))
    assert engine_doubts(IDLE, after, span_s=5.0, oldest_s=5.0) == {
        "ttft": "a mean of 2.5e+03 s, where at most 6 s can have passed"
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


def test_a_page_with_speculation() -> None:
    change = delta(page("vllm_0.32_ngram_before"), page("vllm_0.32_ngram_after"))
    assert change is not None
    assert engine_doubts(page("vllm_0.32_ngram_before"), page("vllm_0.32_ngram_after"), span_s=10.0) == {}
