"""Arrivals: one schedule, whoever drives it."""

import math
from itertools import islice
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.arrivals import RatePoints, arrival_offsets_s, share_of, slice_for, times_of_counts


def test_constant_arrivals_keep_their_distance() -> None:
    assert list(islice(arrival_offsets_s(4.0, "constant", 0), 5)) == [0.0, 0.25, 0.5, 0.75, 1.0]


@given(st.integers(1, 7), st.integers(0, 2**40), st.sampled_from(["poisson", "constant"]))
def test_the_schedule_does_not_depend_on_the_number_of_workers(
    workers: int, seed: int, arrival: Literal["poisson", "constant"]
) -> None:
    whole = list(islice(enumerate(arrival_offsets_s(50.0, arrival, seed)), 60 * workers))
    parts = [
        entry
        for worker in range(workers)
        for entry in islice(slice_for(arrival_offsets_s(50.0, arrival, seed), worker, workers), 60)
    ]
    assert sorted(parts) == whole


def test_poisson_gaps_are_exponential() -> None:
    offsets = np.array(list(islice(arrival_offsets_s(500.0, "poisson", 11), 10_000)))
    gaps = np.diff(offsets, prepend=0.0)
    assert (gaps > 0).all()
    # Kolmogorov-Smirnov against the exponential with the same rate; 1.63/sqrt(n) is the 1% critical value.
    ordered = np.sort(gaps)
    expected = 1 - np.exp(-500.0 * ordered)
    steps = np.arange(1, len(ordered) + 1) / len(ordered)
    assert np.abs(expected - steps).max() < 1.63 / np.sqrt(len(ordered))
    counts = np.bincount((offsets // 0.5).astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.6)


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_shares_are_fair_and_add_up(total: int, workers: int) -> None:
    shares = [share_of(total, worker, workers) for worker in range(workers)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(
    ("points", "counts", "times_s"),
    [
        # A ramp is linear in time: half of the rate at half of the time, a quarter of the requests.
        ([(0, 0), (10, 1)], [0, 1.25, 5, 6], [0, 5, 10, 11]),
        ([(0, 10), (10, 0)], [37.5, 50, 51], [5, 10, math.inf]),
        ([(0, 2), (5, 2)], [1, 10, 20], [0.5, 5, 10]),
        ([(2, 1), (4, 3)], [1, 2, 6], [1, 2, 4]),
    ],
)
def test_a_rate_in_straight_lines(points: RatePoints, counts: list[float], times_s: list[float]) -> None:
    assert times_of_counts(np.array(counts, dtype=float), points).tolist() == pytest.approx(times_s)


def test_a_rate_that_ends_ends_the_schedule() -> None:
    assert len(list(arrival_offsets_s(1.0, "constant", 0, [(0, 10), (10, 0)]))) == 51


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_burstiness_is_the_spread_of_the_gaps(burstiness: float) -> None:
    gaps = np.diff(list(islice(arrival_offsets_s(100.0, f"gamma:{burstiness}", 3), 40_000)), prepend=0.0)
    assert gaps.mean() == pytest.approx(0.01, rel=0.05)
    assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(1 / burstiness, rel=0.1)
