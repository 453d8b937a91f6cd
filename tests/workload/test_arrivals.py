"""Arrivals: one schedule, whoever drives it."""

from itertools import islice
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.arrivals import arrival_offsets_s, share_of, slice_for


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
