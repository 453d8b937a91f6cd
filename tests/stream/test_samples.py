"""What a tick makes of the samples of a stage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage import StageMetrics
from loadgen.stream.samples import ClientSamples, StageSamples

MS = 1_000_000
gaps = st.integers(0, 10**9)


@given(st.lists(gaps, max_size=5), st.lists(gaps, min_size=1, max_size=5), st.integers(1, 2))
def test_chunk_gaps_are_told_apart_only_where_they_differ(plain: list[int], odd: list[int], tokens: int) -> None:
    samples, by_hand = StageSamples(), StageSamples()
    samples.gaps_ns.extend(plain)
    samples.odd_gaps.extend((gap, gap, tokens) for gap in odd)
    by_hand.gaps_ns.extend([*plain, *(gap // tokens for gap in odd for _ in range(tokens))])
    delta = samples.drain()
    assert ("chunk_gap" in delta.latency) == (tokens > 1)
    metrics = StageMetrics.of(delta)
    assert metrics.latency["itl"] == Histogram.decode(by_hand.drain().latency["itl"])
    assert metrics.latency["chunk_gap"].count == len(plain) + len(odd)


@given(st.integers(0, 10**10))
def test_lags_are_rounded_by_a_32nd_at_most(lag_ns: int) -> None:
    client = ClientSamples()
    client.read_lag_ns.append(lag_ns)
    client.send_lag_ns.append(lag_ns)
    delta = client.drain(0)
    assert delta.read_lag is not None and delta.read_lag == delta.send_lag
    assert delta.read_lag.sum_us == pytest.approx(lag_ns / 1000, rel=1 / 32, abs=1)
