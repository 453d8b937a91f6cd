"""When a transient is over, on series whose transient is known."""

import math
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.deltas import StageDelta
from loadgen.metrics.histogram import Histogram
from loadgen.run.settling import FEWEST_BEATS, Transient, at_rest, cut_errors, ttft_of


def noise(count: int, mean: float, seed: int = 1) -> list[float]:
    random = Random(seed)
    return [random.gauss(mean, mean / 20) for _ in range(count)]


def delta(warmup: int, *ttft_ms: float) -> StageDelta:
    histogram = Histogram()
    histogram.record_ns([int(value * 1e6) for value in ttft_ms])
    return StageDelta(warmup=warmup, latency={"warmup_ttft": histogram.encode()} if ttft_ms else {})


def test_noise_around_a_mean_is_at_rest() -> None:
    rested = sum(at_rest(noise(40, 100, seed)) for seed in range(50))
    assert rested >= 40


def test_what_rises_or_falls_is_not() -> None:
    for seed in range(50):
        flat = noise(40, 10, seed)
        assert not at_rest([value + 10 * index for index, value in enumerate(flat)])
        # Still on its way when it is looked at.
        assert not at_rest([value + 500 * math.exp(-index / 15) for index, value in enumerate(flat)])


def test_it_comes_to_rest_once_the_transient_is_a_small_part() -> None:
    series = [1000 - 90 * index for index in range(10)] + noise(60, 100)
    assert not at_rest([float(value) for value in series[:16]])
    assert at_rest([float(value) for value in series])


def test_too_few_points_say_nothing() -> None:
    assert not at_rest([1.0] * (FEWEST_BEATS // 2 - 1))
    assert at_rest([1.0] * FEWEST_BEATS)


def by_definition(series: list[float]) -> list[float]:
    """MSER as White wrote it: the variance of all that follows a cut, over their number."""
    values = np.array(series)
    return [float(values[cut:].var() / (len(values) - cut)) for cut in range(len(values) - 4)]


COUNTS = st.integers(0, 100_000).map(float)
TIMES = st.floats(0.01, 100_000)


@given(st.lists(COUNTS, min_size=6, max_size=200) | st.lists(TIMES, min_size=6, max_size=200))
def test_the_sums_from_the_end_are_the_definition(series: list[float]) -> None:
    exact = by_definition(series)
    assert np.allclose(cut_errors(series), exact, rtol=1e-6, atol=1e-9 * max(map(abs, series)) ** 2)
    # Of two cuts that are equally good, rounding may choose the other.
    best = min(exact)
    near = {cut <= len(series) // 2 for cut, error in enumerate(exact) if error <= best * (1 + 1e-6) + 1e-9}
    assert at_rest(series) in near


def test_every_slot_must_have_turned_over() -> None:
    transient = Transient(concurrency=8)
    for beat in range(3 * FEWEST_BEATS):
        transient.beat(held=8, delta=delta(8 if beat == 0 else 0, 50.0), output_tokens=100)
    assert not transient.over
    transient.beat(held=8, delta=delta(8, 50.0), output_tokens=100)
    assert transient.over


def test_streams_of_the_stage_before_must_have_gone() -> None:
    transient = Transient(concurrency=8)
    for _ in range(3 * FEWEST_BEATS):
        transient.beat(held=32, delta=delta(4, 50.0), output_tokens=100)
    assert not transient.over


def test_open_loop_waits_until_as_many_have_gone_as_are_open() -> None:
    transient = Transient(concurrency=None)
    for _ in range(2 * FEWEST_BEATS):
        transient.beat(held=20, delta=delta(1, 50.0), output_tokens=100)
    assert not transient.over
    for _ in range(20):
        transient.beat(held=20, delta=delta(1, 50.0), output_tokens=100)
    assert transient.over


def test_the_ttft_of_a_tick() -> None:
    assert ttft_of(delta(1, 10.0, 20.0)) == 15
    assert ttft_of(delta(1)) is None
    assert ttft_of(None) is None
