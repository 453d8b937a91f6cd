"""Text from outside cannot do anything to a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.text import harmless


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    left = harmless(text)
    assert all(character == "\n" or character.isprintable() or ord(character) > 0x9F for character in left)
    assert harmless(left) == left


@pytest.mark.parametrize(
    "text",
    ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "a\rb", "\u202eevil", "\x08\x08\x08"],
)
def test_control_sequences_become_marks(text: str) -> None:
    assert "\N{SYMBOL FOR SUBSTITUTE FORM TWO}" in harmless(text)


def test_words_and_lines_stay() -> None:
    assert harmless("Grüße\nan die 世界 🙂") == "Grüße\nan die 世界 🙂"
