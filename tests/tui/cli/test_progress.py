"""Where the cockpit cannot be shown, and why; and progress lines that nobody reads."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.fakes import wait_until
from tests.tui.cli.test_main import ENVIRONMENT
from tests.tui.cli.test_terminal import TOML
from tui.terminal import plain_reason


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


@contextmanager
def run_into(stderr: int, folder: Path, length: str) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "p.toml").write_text(TOML.replace("duration = '60s'", length))
    command = [sys.executable, "-m", "tui.cli", "run", "p.toml", "--json", "o.json"]
    process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=stderr)
    os.close(stderr)
    with process:
        yield process


def state(folder: Path) -> object:
    return json.loads((folder / "o.json").read_text())["state"]


def test_a_stderr_that_nobody_reads_does_not_hold_up_the_run(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(write_fd, b"." * 4096)
    os.set_blocking(write_fd, True)
    with os.fdopen(read_fd, "rb") as reader, run_into(write_fd, tmp_path, "requests = 20"):
        wait_until((tmp_path / "o.json").exists)
        reader.read()
    assert state(tmp_path) == "complete"


def test_a_stderr_whose_reader_is_gone_ends_the_run_and_keeps_its_result(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with run_into(write_fd, tmp_path, "duration = '60s'") as process:
        assert process.wait() == 130
    assert state(tmp_path) == "stopped"
