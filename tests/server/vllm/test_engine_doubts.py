"""What an engine cannot have measured, and that what it can have measured is believed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.server.vllm.engine_doubts import engine_doubts
from loadgen.server.vllm.engine_metrics import EngineHistogram, EngineSample, parse_engine_metrics

FOLDER = Path(__file__).parent
INF = float("inf")
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
