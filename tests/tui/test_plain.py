"""Where the cockpit cannot be shown, and why."""

import io
import os
import sys

import pytest

from tui.plain import plain_reason


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("term", "size", "reason"),
    [
        ("xterm-256color", (80, 24), None),
        ("xterm-256color", (60, 16), None),
        ("xterm-256color", (59, 24), "the terminal has 59x24 cells, and the cockpit takes 60x16"),
        ("xterm-256color", (80, 15), "the terminal has 80x15 cells, and the cockpit takes 60x16"),
        ("xterm-256color", (0, 0), None),
        ("dumb", (80, 24), "TERM=dumb: this terminal cannot place text"),
    ],
)
def test_a_terminal_that_cannot_show_it_says_why(
    monkeypatch: pytest.MonkeyPatch, term: str, size: tuple[int, int], reason: str | None
) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(os, "get_terminal_size", lambda number: os.terminal_size(size))
    monkeypatch.setenv("TERM", term)
    assert plain_reason() == reason


def test_a_pipe_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert plain_reason() == "there is no terminal"
