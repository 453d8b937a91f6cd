"""Values with units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.profile.document import build_profile
from loadgen.profile.values import parse_duration_s, parse_share


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
def test_a_server_as_its_clients_see_it(given_url: str, url: str) -> None:
    assert build_profile({"server": {"engine": "attach", "url": given_url}}, where="test").server.url == url


@given(st.floats(0, 100))
def test_shares(percent: float) -> None:
    assert parse_share(f"{percent:.6f}%") == pytest.approx(percent / 100, abs=1e-6)
    assert parse_share(min(percent / 100, 0.999)) == min(percent / 100, 0.999)


@pytest.mark.parametrize(
    "given_share", ["120%", "-1%", -1, -0.01, 1, "1", 1.5, "many", "%", "", "nan", True, None, "1%%"]
)
def test_what_is_no_share(given_share: object) -> None:
    with pytest.raises(ValueError, match='a share such as "1%"'):
        parse_share(given_share)


def test_a_limit_on_failures_is_none_of_the_latencies() -> None:
    document = {"server": {"engine": "simulator"}, "slo": {"failed": "1%", "ttft_p99": "2s"}}
    slo = build_profile(document, where="test").slo
    assert (slo.failed, slo.limits_ms) == (0.01, {"ttft_p99": 2000.0})
    assert slo.model_dump(mode="json") == {"failed": 0.01, "ttft_p99": 2000.0}
    none = build_profile({"server": {"engine": "simulator"}}, where="test").slo
    assert (none.has_limits, none.model_dump(mode="json")) == (False, {})
