"""Draws: reproducible, even, and independent of each other."""

import math

from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.draws import draw

number = st.integers(0, 2**63)


@given(number, number, number, st.sampled_from(["model", "cancel"]))
def test_the_same_request_draws_the_same_number(seed: int, stage: int, index: int, purpose: str) -> None:
    drawn = draw(seed, stage, index, purpose)
    assert drawn == draw(seed, stage, index, purpose)
    assert 0.0 <= drawn < 1.0


def test_draws_are_even_and_purposes_are_independent() -> None:
    one = [draw(7, 0, index, "model") for index in range(4000)]
    other = [draw(7, 0, index, "cancel") for index in range(4000)]
    for drawn in (one, other):
        assert abs(sum(drawn) / 4000 - 0.5) < 5 * math.sqrt(1 / 12 / 4000)
    both = sum(left < 0.5 and right < 0.5 for left, right in zip(one, other, strict=True))
    assert abs(both - 1000) < 5 * math.sqrt(4000 * 0.25 * 0.75)
