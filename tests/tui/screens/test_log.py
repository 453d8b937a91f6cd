"""The log's lines: none twice, none lost without a message, and the window on them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from loadgen.schema.snapshot import ServerView
from tests.tui.cockpit import seated
from tests.tui.painted import texts
from tests.tui.scripted import running
from tui.screens.log import MAX_LINES, LogBook

WIDTH = 24


def server(total: int, kept: int = 200) -> ServerView:
    tail = tuple(f"line {n}" for n in range(max(0, total - kept), total))
    return ServerView(engine="vLLM", url="", state="ready", log_tail=tail, log_total=total)


def book_of(total: int) -> LogBook:
    return book_with(server(total, total).log_tail)


def book_with(lines: Sequence[str]) -> LogBook:
    book = LogBook()
    book.add(msgspec.structs.replace(server(len(lines)), log_tail=tuple(lines)))
    return book


@given(st.lists(st.integers(0, 90), max_size=20))
def test_each_line_is_kept_once_as_long_as_tails_overlap(steps: list[int]) -> None:
    book, total = LogBook(), 0
    for step in steps:
        total += step
        book.add(server(total, 100))
    assert book.window(10_000) == [f"line {n}" for n in range(total)]


def test_lost_lines_and_another_log_are_marked() -> None:
    book = LogBook()
    for total in (5, 500, 3):
        book.add(server(total))
    lines = book.window(1_000)
    assert lines[5] == "… 295 lines came too fast to be kept here" and lines[6] == "line 300"
    assert lines[-4:] == ["… the log of another server", "line 0", "line 1", "line 2"]


def test_the_book_is_bounded_and_a_window_that_was_scrolled_does_not_move() -> None:
    book = book_of(MAX_LINES)
    book.scroll(-50, 10, WIDTH)
    before = book.window(10)
    book.add(server(MAX_LINES + 150))
    assert len(book) == MAX_LINES and book.window(10) == before


@given(st.lists(st.integers(-40, 40), max_size=30), st.integers(1, 20), st.integers(0, 60))
def test_scrolling_stays_inside_and_follows_at_the_end(steps: list[int], height: int, total: int) -> None:
    book = book_of(total)
    for step in steps:
        book.scroll(step, height, WIDTH)
        assert len(book.window(height)) == min(height, total)
    book.scroll(1_000, height, WIDTH)
    assert book.end is None


@given(st.lists(st.integers(3, 60), min_size=1, max_size=30), st.integers(3, 12))
def test_each_line_can_be_scrolled_to_whatever_rows_it_takes(lengths: list[int], height: int) -> None:
    book = book_with([f"{number:03}".ljust(length, "x") for number, length in enumerate(lengths)])
    most = min(height, len(book.rows(1_000, WIDTH)))
    book.scroll(-1_000_000, height, WIDTH)
    assert texts(book.rows(height, WIDTH))[0].startswith(" 000")
    seen = set(texts(book.rows(height, WIDTH)))
    while book.end is not None:
        book.scroll(1, height, WIDTH)
        assert len(book.rows(height, WIDTH)) == most
        seen.update(texts(book.rows(height, WIDTH)))
    assert all(any(text.startswith(f" {number:03}") for text in seen) for number in range(len(lengths)))


def test_a_filter_applies_to_past_and_future_lines() -> None:
    book = book_of(500)
    book.filter("LINE 4")
    assert len(book) == 111 and book.window(2) == ["line 498", "line 499"]
    book.add(server(4_321, 4_321))
    assert book.window(1) == ["line 4320"] and len(book) == 111 + 321


def test_each_match_is_found_in_turn_up_to_both_ends() -> None:
    book = book_with([f"needle {n}" if n in (1, 5, 97, 99) else f"straw {n}" for n in range(100)])
    for step, found in ((-1, (99, 97, 5, 1)), (1, (5, 97, 99)), (-1, (97,))):
        for n in found:
            assert book.find("NEEDLE", step, 20, WIDTH) and f"needle {n}" in book.window(20)
        assert book.find("NEEDLE", step, 20, WIDTH) == (found == (97,))


def test_a_search_begins_at_the_edge_of_the_window() -> None:
    book = book_with([f"needle {n}" if n in (1, 50, 98) else f"straw {n}" for n in range(100)])
    assert not book.find("needle", 1, 20, WIDTH), "nothing is below a window that follows"
    book.scroll(-1_000_000, 20, WIDTH)
    for n in (1, 50, 98):
        assert book.find("needle", 1, 20, WIDTH) and f"needle {n}" in book.window(20)
    book.scroll(-40, 20, WIDTH)
    assert book.find("needle", -1, 20, WIDTH) and "needle 50" in book.window(20)
    book.follow()
    assert book.find("needle", -1, 20, WIDTH) and "needle 98" in book.window(20)


def test_a_match_is_in_sight_whatever_rows_its_neighbours_take() -> None:
    book = book_with([f"{'needle' if n in (0, 20) else 'straw'} {n:03}".ljust(60, "x") for n in range(40)])
    for n in (20, 0):
        assert book.find("needle", -1, 10, WIDTH)
        assert any(text.startswith(f" needle {n:03}") for text in texts(book.rows(10, WIDTH)))


def test_a_search_goes_on_from_its_line_though_lines_are_dropped_above() -> None:
    book = book_of(MAX_LINES)
    for n in (10009, 10008):
        assert book.find("line 1000", -1, 5, WIDTH) and f"line {n}" in book.window(5)
    book.add(server(MAX_LINES + 150))
    assert book.find("line 1000", -1, 1, WIDTH) and book.window(1) == ["line 10007"]


async def test_log_keys_reach_its_first_line() -> None:
    lines = tuple(f"{n:03} ".ljust(150, "x") for n in range(40))
    long = msgspec.structs.replace(running().server, log_tail=lines, log_total=len(lines))
    async with seated((80, 24)) as seat:
        await seat.show(running(server=long))
        await seat.press("6", "home")
        assert " 000 x" in seat.text
        await seat.press("ctrl+f", *"005", "enter")
        assert " 005 x" in seat.text
        await seat.press(">")
        assert [note.message for note in seat.app._notifications] == ["Not found below: 005"]
