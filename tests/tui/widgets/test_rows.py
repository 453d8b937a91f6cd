"""Rows keep to their cells, whatever characters they are made of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from loadgen import format as fmt
from tui.widgets.rows import cropped, in_cells, padded, spread, titled, width_of

TEXTS = st.text(alphabet=st.one_of(st.characters(), st.sampled_from("模型🚀e\u0301─⣿ a")), max_size=40).map(fmt.plain)
WIDTHS = st.integers(0, 60)


@given(TEXTS, WIDTHS)
def test_a_padded_text_has_exactly_its_cells(text: str, width: int) -> None:
    assert cell_len(padded(text, width)) == width


@given(st.lists(TEXTS, max_size=4), WIDTHS)
def test_a_cropped_row_keeps_to_its_width(texts: list[str], width: int) -> None:
    row = tuple((text, "text") for text in texts)
    assert width_of(cropped(row, width)) <= width
    if width_of(row) <= width:
        assert cropped(row, width) is row


@given(TEXTS, st.integers(20, 60))
def test_what_stands_at_the_right_end_ends_there(text: str, width: int) -> None:
    for row in (spread(((text, "text"),), (("end", "text"),), width), titled("x", ((text[:8], "text"),), width)):
        assert width_of(row) == width


@given(TEXTS, WIDTHS)
def test_cell_by_cell_a_text_is_as_wide_as_it_is_long(text: str, width: int) -> None:
    cells = in_cells(text, width)
    assert cell_len("".join(cells)) == len(cells)
    assert width - 1 <= len(cells) <= width or len(cells) == cell_len(text) < width


def test_wide_characters_take_two_cells() -> None:
    assert padded("模型", 6) == "模型  "
    assert padded("模型模型", 6) == "模型… "
    assert cropped((("模型🚀 a", "text"),), 6) == (("模型", "text"), ("…", "dim"))
