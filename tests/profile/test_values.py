"""Values with units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.profile import build_profile, parse_duration_s


@given(st.integers(1, 10_000), st.sampled_from([("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)]))
def test_durations(number: int, unit: tuple[str, float]) -> None:
    assert parse_duration_s(f"{number}{unit[0]}") == number * unit[1]
    assert parse_duration_s(number) == number


@pytest.mark.parametrize(
    ("given_url", "url"),
    [
        ("http://box:8000", "http://box:8000"),
        ("http://box:8000/v1", "http://box:8000"),
        ("https://box/some/v1/", "https://box/some"),
        ("https://box/v1/models", "https://box/v1/models"),
        ("http://v1", "http://v1"),
    ],
)
def test_a_server_as_its_clients_are_told_of_it(given_url: str, url: str) -> None:
    assert build_profile({"server": {"engine": "attach", "url": given_url}}, where="test").server.url == url
