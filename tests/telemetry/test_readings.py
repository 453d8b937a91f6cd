"""One sanitiser: what is not a number never becomes one, and units are exact."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.telemetry.readings import (
    Measured,
    Missing,
    amount,
    divided,
    first,
    mean,
    number,
    percent,
    split,
    text,
    total,
    value_of,
    watts,
)

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.integers()),
    st.sampled_from(["N/A", 0xFFFF, 0xFFFFFFFF, 2**64 - 1, -1, Missing("said so")]),
)


def thousandths(raw: object) -> Measured:
    return divided(raw, 1000)


CONVERSIONS: list[Callable[[object], Measured]] = [number, percent, amount, watts, thousandths]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("N/A", "not available"),
        (None, "not available"),
        ("", "not available"),
        (0xFFFF, "not available"),
        (0xFFFFFFFF, "not available"),
        (2**64 - 1, "not available"),
        (-1, "negative: -1"),
        (math.nan, "not a finite number"),
        (math.inf, "not a finite number"),
        (True, "not a number: 'True'"),
        (["N/A"], "not a number: \"['N/A']\""),
        ("612 W", "not a number: '612 W'"),
        (Missing("NOT_SUPPORTED"), "NOT_SUPPORTED"),
    ],
)
def test_every_way_of_saying_not_available_has_its_reason(raw: object, reason: str) -> None:
    assert number(raw) == Missing(reason)


@given(ANYTHING)
def test_a_reading_is_finite_and_not_negative_whatever_is_said(raw: object) -> None:
    for convert in CONVERSIONS:
        reading = convert(raw)
        if not isinstance(reading, Missing):
            assert not isinstance(reading, bool)
            assert math.isfinite(reading)
            assert reading >= 0


@given(st.integers(0, 2**32))
def test_a_number_that_is_no_sentinel_stays_itself(raw: int) -> None:
    assert number(raw) == (Missing("not available") if raw in (0xFFFF, 0xFFFFFFFF) else raw)


def test_what_can_truly_be_65535_stays() -> None:
    assert amount(65535, 1024**2) == 65535 * 1024**2
    assert number(65535, wide=True) == 65535
    assert amount(0xFFFFFFFF) == Missing("not available")


@given(st.integers(0, 10_000))
def test_watts_are_reported_from_microwatts_by_their_size(power_w: int) -> None:
    assert watts(power_w) == power_w
    if power_w:
        assert watts(power_w * 1_000_000) == power_w


@given(st.integers(0, 2**63))
def test_energy_is_in_units_of_two_to_the_minus_16_joules(counter: int) -> None:
    expected = Missing("not available") if counter == 0xFFFFFFFF else counter / 65536
    assert divided(counter, 2**16) == expected


def test_conversions_are_exact() -> None:
    assert divided(320, 10, wide=False) == 32.0
    assert divided(25, 10, wide=False) == 2.5
    assert divided(65535, 10, wide=False) == Missing("not available")
    assert divided(65535, 1000) == 65.535
    assert divided(612_000_000, 1e6) == 612.0
    assert amount(3, 1024) == 3072
    assert percent(100) == 100
    assert percent(101) == Missing("not a percentage: 101")


@given(st.lists(st.one_of(st.integers(0, 1000), st.just(Missing("gone"))), min_size=1))
def test_sums_and_means_are_over_what_is_there(readings: list[int | Missing]) -> None:
    there = [reading for reading in readings if not isinstance(reading, Missing)]
    assert total(readings) == (sum(there) if there else Missing("gone"))
    assert mean(readings) == (sum(there) / len(there) if there else Missing("gone"))


def test_a_sum_of_nothing_is_missing() -> None:
    assert total([]) == Missing("not available")


def test_the_first_that_is_there_and_else_the_first_reason() -> None:
    assert first(Missing("a"), 0, 1) == 0
    assert first(Missing("a"), Missing("b")) == Missing("a")
    assert value_of(Missing("a")) is None
    assert value_of(7) == 7


def test_values_and_reasons_are_separated() -> None:
    assert split({"power_w": 612, "energy_j": Missing("BUSY")}) == ({"power_w": 612}, {"energy_j": "BUSY"})


@pytest.mark.parametrize(
    ("raw", "known"), [("SPX", "SPX"), ("N/A", None), (" ", None), (7, None), (Missing("x"), None)]
)
def test_text_that_says_nothing_is_none(raw: object, known: str | None) -> None:
    assert text(raw) == known
