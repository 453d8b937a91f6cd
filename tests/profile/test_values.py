"""Values with units."""

from hypothesis import given
from hypothesis import strategies as st

from loadgen.profile import parse_duration_s


@given(st.integers(1, 10_000), st.sampled_from([("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)]))
def test_durations(number: int, unit: tuple[str, float]) -> None:
    assert parse_duration_s(f"{number}{unit[0]}") == number * unit[1]
    assert parse_duration_s(number) == number
