"""The log's lines: none twice, none lost without a word, and the window on them."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.snapshot import ServerView
from tui.screens.log import MOST, LogBook


def server(total: int, kept: int = 200) -> ServerView:
    tail = tuple(f"line {n}" for n in range(max(0, total - kept), total))
    return ServerView(engine="vLLM", url="", state="ready", log_tail=tail, log_total=total)


def book_of(total: int) -> LogBook:
    book = LogBook()
    book.see(server(total, total))
    return book


@given(st.lists(st.integers(0, 90), max_size=20))
def test_each_line_is_kept_once_as_long_as_tails_overlap(steps: list[int]) -> None:
    book, total = LogBook(), 0
    for step in steps:
        total += step
        book.see(server(total, 100))
    assert book.window(10_000) == [f"line {n}" for n in range(total)]


def test_what_came_too_fast_is_said_and_another_log_too() -> None:
    book = LogBook()
    for total in (5, 500, 3):
        book.see(server(total))
    lines = book.window(1_000)
    assert lines[5] == "… 295 lines came too fast to be kept here" and lines[6] == "line 300"
    assert lines[-4:] == ["… the log of another server", "line 0", "line 1", "line 2"]


def test_a_tail_that_nobody_counts_is_taken_as_it_is() -> None:
    book = LogBook()
    for tail in (("a", "b"), ("c",)):
        book.see(ServerView(engine="", url="", state="ready", log_tail=tail))
    assert book.window(9) == ["c"]


def test_it_is_bounded_and_a_window_that_stands_does_not_move() -> None:
    book = book_of(MOST)
    book.scroll(-50, 10)
    before = book.window(10)
    book.see(server(MOST + 150))
    assert len(book) == MOST and book.window(10) == before


@given(st.lists(st.integers(-40, 40), max_size=30), st.integers(1, 20), st.integers(0, 60))
def test_scrolling_stays_inside_and_follows_at_the_end(steps: list[int], height: int, total: int) -> None:
    book = book_of(total)
    for step in steps:
        book.scroll(step, height)
        assert len(book.window(height)) == min(height, total)
    book.scroll(1_000, height)
    assert book.end is None


def test_filter_and_search() -> None:
    book = book_of(500)
    book.filter("LINE 4")
    assert len(book) == 111 and book.window(2) == ["line 498", "line 499"]
    book.see(server(4_321, 4_321))
    assert book.window(1) == ["line 4320"] and len(book) == 111 + 321
    book.filter("")
    assert book.find("line 44", -1, 5) and "line 4299" not in book.window(5)
    assert any("line 44" in line for line in book.window(5))
    assert not book.find("no such line", 1, 5)
    first = book.window(5)
    assert book.find("line 44", -1, 5) and book.window(5) != first


def test_control_sequences_do_not_come_in() -> None:
    book = LogBook()
    book.see(msgspec.structs.replace(server(1), log_tail=("\x1b[2Jx",)))
    assert book.window(1) == ["x"]
