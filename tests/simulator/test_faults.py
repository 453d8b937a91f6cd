import pytest

from loadgen.errors import ProfileError
from loadgen.simulator.faults import KINDS, Fault, chosen, parse_fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("reset", Fault(kind="reset")),
        ("reset:share=0.1,after=3", Fault(kind="reset", share=0.1, after=3)),
        ("stall:nth=7,seconds=0.5", Fault(kind="stall", nth=7, seconds=0.5)),
        ("multi:every=5,tokens=3", Fault(kind="multi", every=5, tokens=3)),
    ],
)
def test_parses(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text", ["rest", "reset:often=1", "reset:share=x", "reset:nth=1.5", "reset:every=0", "reset:nth"]
)
def test_a_wrong_fault_is_quoted(text: str) -> None:
    with pytest.raises(ProfileError, match=text.replace(".", r"\.")):
        parse_fault(text)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("reset", [1, 2, 3, 4, 5, 6]), ("reset:nth=3", [3]), ("reset:every=2", [2, 4, 6]), ("reset:share=0", [])],
)
def test_strikes(text: str, numbers: list[int]) -> None:
    fault = parse_fault(text)
    assert [number for number in range(1, 7) if fault.strikes(number, seed=0)] == numbers


def test_a_share_is_that_share_and_of_the_seed() -> None:
    fault = parse_fault("reset:share=0.2")
    struck = [number for number in range(5000) if fault.strikes(number, seed=1)]
    assert 900 < len(struck) < 1100
    assert struck == [number for number in range(5000) if fault.strikes(number, seed=1)]
    assert struck != [number for number in range(5000) if fault.strikes(number, seed=2)]


def test_equal_shares_of_two_kinds_strike_different_requests() -> None:
    faults = [parse_fault("reset:share=0.5"), parse_fault("stall:share=0.5")]
    assert {len(chosen(faults, number, seed=0)) for number in range(50)} == {0, 1, 2}


def test_every_kind_is_explained() -> None:
    import loadgen.simulator.faults as module

    assert module.__doc__ is not None
    assert [kind for kind in KINDS if f"`{kind}`" not in module.__doc__] == []
