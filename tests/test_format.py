"""Numbers and texts as tables; text from outside cannot do anything to a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from loadgen import format as fmt
from loadgen.format import fixed, grouped, harmless

FORMS: dict[Callable[[Any], str], dict[Any, str]] = {
    fmt.number: {
        None: "-",
        math.nan: "-",
        math.inf: "-",
        0: "0",
        0.01234: "0.012",
        0.834: "0.834",
        0.99949: "0.999",
        0.9996: "1.00",
        1: "1.00",
        9.996: "10.0",
        15.94: "15.9",
        99.96: "100",
        834: "834",
        999.6: "1.00k",
        2092: "2.09k",
        12345: "12.3k",
        999_600: "1.00M",
        3.2e9: "3.20G",
        1e18: "huge",
        -15.94: "-15.9",
    },
    fmt.count: {None: "-", 0: "0", 64: "64", 9999: "9999", 10_000: "10.0k", math.nan: "-"},
    fmt.setting: {None: "-", 64.0: "64", 2.5: "2.50", 12_000: "12.0k"},
    fmt.percent: {None: "-", 0: "0%", 0.003: "0.3%", 0.0996: "10%", 0.41: "41%", 1: "100%"},
    fmt.clock: {None: "-", 0: "0:00", 761.9: "12:41", 3723: "1:02:03", -1: "0:00"},
    fmt.duration: {None: "-", 58.4: "58 s", 119.6: "1:59", -1: "0 s"},
    fmt.signal_name: {9: "SIGKILL", 37: "signal 37", 0: "signal 0"},
    fmt.exact: {None: "-", 0: "0", 6.2: "6.2", 6.203: "6.203", 1234567.0: "1,234,567", 0.0002: "0.0002"},
    fmt.exact_percent: {0.9994: "99.94%", 0.9995: "99.95%", 1.0: "100%", None: "-"},
    fmt.interval: {
        None: "-",
        (80.0, 100.0): "80-100",
        (0.0, 10.0): "<10",
        (640.0, None): ">640",
        (0.0, None): ">0",
        (2.5, 7.5): "2.5-7.5",
        (80_000.0, 160_000.0): "80.0k-160k",
    },
}


@pytest.mark.parametrize(("form", "value"), [(form, value) for form, values in FORMS.items() for value in values])
def test_a_value_as_text(form: Callable[[Any], str], value: Any) -> None:
    assert form(value) == FORMS[form][value]


@given(st.floats(min_value=0))
def test_a_number_never_leaves_its_five_cells(value: float | None) -> None:
    assert len(fmt.number(value)) <= 5


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as it is", "as it is"),
        ("[bold red]kept[/]", "[bold red]kept[/]"),
        ("\x1b[2Jgone", "gone"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]8;;http://x\x1b\\b", "ab"),
        ("\x1bcreset", "reset"),
        ("a\r\nb", "a··b"),
        ("a\tb", "a    b"),
        ("\u202eright to left", "·right to left"),
        ("\x9b31m", "·31m"),
        ("Größe 木", "Größe 木"),
        ("\u2028", "·"),
        ("\u2764\ufe0f", "\u2764"),
    ],
)
def test_plain(text: str, shown: str) -> None:
    assert fmt.plain(text) == shown


@pytest.mark.parametrize(
    ("most", "unit", "scale"),
    [(0, "J", (1, "J")), (999, "J", (1, "J")), (123e6, "J", (1e6, "MJ")), (8e6, "B", (1024**2, "MiB"))],
)
def test_scale(most: float, unit: str, scale: tuple[float, str]) -> None:
    assert fmt.scale(most, unit) == scale


@given(st.floats(0, 1e17), st.sampled_from(["B", "J", "W"]))
def test_scaled_value_has_at_most_four_digits(most: float, unit: str) -> None:
    divisor, _ = fmt.scale(most, unit)
    assert most / divisor < 1024


@given(st.text())
def test_plain_leaves_nothing_that_acts(text: str) -> None:
    shown = fmt.plain(text)
    assert shown.isprintable()
    assert cell_len(shown) == sum(map(cell_len, shown))


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


def test_nothing_is_less_than_zero_by_rounding() -> None:
    assert (fixed(-0.001, 1), grouped(-0.001, 1), fixed(-0.06, 1)) == ("0.0", "0.0", "-0.1")
