"""Text that is no answer: loops, what cannot be read, nothing; and text of all sorts that is left alone."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.metrics.degenerate import degeneracy, loop_of
from loadgen.simulator.tokens import answer_ids, text

PROSE = (
    "The harbour lay quiet when the first boats came in. Nobody had slept much, and the gulls were louder than the "
    "engines; still, by noon every crate had been weighed, every rope coiled, and the old ledger closed again."
)
CODE = "\n".join(f"    if value[{number}] > limit:\n        raise ValueError(f'{{value}}')" for number in range(9))
TABLE = "\n".join(f"| {number:>4} | {number * 37 % 101:>6.2f} | ------ | yes |" for number in range(40))


@pytest.mark.parametrize(
    "healthy",
    [PROSE, CODE, TABLE, "-" * 20, "ha ha ha ha", "0123456789" * 3, text(answer_ids(5, 256)), PROSE + "-" * 80 + PROSE],
)
def test_healthy_text_is_not_flagged(healthy: str) -> None:
    assert degeneracy(healthy) == (None, "")


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        ("!" * 256, ("repeating", "!")),
        (PROSE + " the" * 200, ("repeating", " the")),
        ("the " * 256, ("repeating", " the")),
        ("\N{REPLACEMENT CHARACTER}" * 40, ("unreadable", "")),
        (PROSE[:30] + "\N{REPLACEMENT CHARACTER}" * 30, ("unreadable", "")),
        ("", ("blank", "")),
        ("\n\n \t" * 50, ("blank", "")),
        ("\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 64, ("repeating", "\N{CJK UNIFIED IDEOGRAPH-4E2D}")),
    ],
)
def test_broken_text_is_flagged(broken: str, found: tuple[str, str]) -> None:
    assert degeneracy(broken) == found


@given(st.text(min_size=1, max_size=16), st.integers(24, 80), st.integers(0, 15))
@example("\ud800", 24, 0)
def test_any_short_loop_is_found_from_wherever_it_is_entered(unit: str, turns: int, begun: int) -> None:
    looped = unit * turns
    loop = loop_of(looped)
    assert loop
    assert loop_of(looped[begun % len(unit) :]) == loop
    # What repeats is the unit, or a part of it that already repeats.
    assert loop in unit * 2
    assert len(unit) % len(loop) == 0


@given(st.text(max_size=400))
def test_any_text_is_judged(any_text: str) -> None:
    kind, loop = degeneracy(any_text)
    assert (kind == "repeating") == bool(loop)
    assert loop in any_text + any_text
