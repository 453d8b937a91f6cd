"""The frontier and the price of tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.frontier import Point, Price, cost_of, frontier, price_of
from loadgen.schema.result import CostResult, Throughput


def dominates(one: Point, other: Point) -> bool:
    return one[0] >= other[0] and one[1] >= other[1] and one != other


COORDINATE = st.floats(0, 1e6) | st.integers(0, 3).map(float)


@given(st.lists(st.tuples(COORDINATE, COORDINATE)))
def test_the_frontier_is_what_nothing_dominates(points: list[Point]) -> None:
    assert frontier(points) == {one for one in points if not any(dominates(other, one) for other in points)}


def test_a_slower_point_with_no_more_throughput_is_dominated() -> None:
    assert frontier([(60.0, 100.0), (40.0, 200.0), (30.0, 200.0), (20.0, 190.0)]) == {(60.0, 100.0), (40.0, 200.0)}


def throughput(output: float | None, total: float | None, gpus: int) -> Throughput:
    per_gpu = [None if rate is None else rate / gpus for rate in (output, total)]
    return Throughput(1.0, None, output, total, None, *per_gpu)


def test_tokens_cost_what_the_gpus_cost_in_the_time_they_take() -> None:
    """Eight GPUs at 2.10 dollars are 16.80 an hour, in which 3600 s make 10.8 million output tokens."""
    cost = cost_of(throughput(3000.0, 15_000.0, 8), Price(2.1))
    assert cost is not None and (cost.gpu_hour_usd, cost.why) == (2.1, "")
    assert cost.usd_per_million_output_tokens == pytest.approx(16.8 / 10.8)
    assert cost.usd_per_million_total_tokens == pytest.approx(16.8 / 54)


def test_without_a_price_there_is_no_cost_and_without_gpus_the_reason() -> None:
    assert cost_of(throughput(3000.0, 15_000.0, 8), Price()) is None
    unknown = cost_of(Throughput(1.0, None, 3000.0, 15_000.0, None), Price(2.1))
    assert unknown is not None and unknown.usd_per_million_output_tokens is None
    assert "set cost.gpus" in unknown.why
    for nothing in (throughput(0.0, 0.0, 8), throughput(None, None, 8)):
        assert cost_of(nothing, Price(2.1)) == CostResult(2.1, None, None)


def test_the_price_is_that_of_the_profile() -> None:
    assert price_of({"cost": {"gpu_hour": 2.1, "gpus": 4}}) == Price(2.1, 4)
    assert price_of({}) == price_of({"cost": None}) == Price()
