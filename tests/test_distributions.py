"""Lengths: the grammar, its bounds, and what it refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.distributions import check_lengths_text, parse_lengths

TEXTS = [
    "256",
    "uniform:64:512",
    "normal:512:128",
    "normal:512:128:64:600",
    "lognormal:512:0.5",
    "lognormal:512:0.5:16:4096",
    "0.7*256+0.3*normal:2048:256",
]


@pytest.mark.parametrize(
    ("text", "nominal", "shortest", "longest"),
    [
        ("256", 256, 256, 256),
        ("uniform:64:512", 288, 64, 512),
        ("normal:512:128", 512, 1, 1024),
        ("lognormal:512:0.5:16:4096", 580, 16, 4096),
        ("0.75*100+0.25*500", 200, 100, 500),
    ],
)
def test_mean_and_bounds(text: str, nominal: int, shortest: int, longest: int) -> None:
    lengths = parse_lengths(text)
    assert (lengths.nominal, lengths.shortest, lengths.longest) == (nominal, shortest, longest)


@given(st.sampled_from(TEXTS), st.floats(0, 1))
def test_every_draw_is_within_the_bounds(text: str, share: float) -> None:
    lengths = parse_lengths(text)
    assert lengths.shortest <= lengths.at(share) <= lengths.longest


@pytest.mark.parametrize("kind", ["normal", "lognormal"])
def test_draw_beyond_floats_is_the_maximum(kind: str) -> None:
    lengths = parse_lengths(f"{kind}:{'9' * 400}:1:1:9")
    assert lengths.at(0.5) == 9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "many",
        "0",
        "-1",
        "uniform:64",
        "uniform:9:3",
        "normal:0",
        "normal:5:0",
        "2*3+4",
        "0*5",
        "lognormal:9:1:5",
        1.5,
        True,
    ],
)
def test_what_is_no_length(text: object) -> None:
    with pytest.raises(ValueError, match=r"expected|tokens|above 0|weight"):
        check_lengths_text(text)


@given(st.text(alphabet="0123456789.:*+normaluif", max_size=20))
def test_any_text_is_a_distribution_or_a_value_error(text: str) -> None:
    try:
        lengths = parse_lengths(text)
    except ValueError:
        return
    assert 1 <= lengths.shortest <= lengths.at(0.5) <= lengths.longest
