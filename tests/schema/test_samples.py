"""What a counter gained, and how fast."""

import pytest

from loadgen.schema.samples import Reading, gained, rate


@pytest.mark.parametrize(("before", "after", "expected"), [(10, 12, 2), (10, 10, 0), (10, 3, None)])
def test_a_counter_gains_or_was_reset(before: float, after: float, expected: float | None) -> None:
    assert gained(before, after) == expected


def test_a_rate_needs_time_and_no_reset() -> None:
    assert rate(Reading(1, 10), Reading(3, 20)) == 5
    assert rate(Reading(1, 10), Reading(1, 20)) is None
    assert rate(Reading(1, 10), Reading(3, 5)) is None
