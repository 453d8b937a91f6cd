"""Where the cockpit cannot be shown; and a reader of a real pipe that reads nothing, little or never again."""

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tui.terminal import MAX_WAITING, NonBlockingWriter, plain_reason

PATIENCE_S = 30.0


class Reader:
    """The read end of a pipe, and what the writer reported."""

    def __init__(self, fd: int, other: TextIO) -> None:
        self.fd = fd
        self.other = other
        self.caught_up = threading.Event()
        self.gone = threading.Semaphore(0)

    def read_rest(self) -> bytes:
        self.other.close()
        return b"".join(iter(lambda: os.read(self.fd, 65536), b""))

    def read_until(self, words: bytes) -> bytes:
        seen = b""
        while words not in seen:
            seen += os.read(self.fd, 65536)
        return seen


@contextmanager
def writer_into_a_pipe(encoding: str = "utf-8") -> Iterator[tuple[NonBlockingWriter, Reader]]:
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "rb", buffering=0) as guard_process, os.fdopen(write_fd, "w", encoding=encoding) as stream:
        reader = Reader(read_fd, stream)
        writer = NonBlockingWriter(stream, caught_up=reader.caught_up.set, gone=reader.gone.release)
        try:
            yield writer, reader
        finally:
            guard_process.close()
            writer.close()


@settings(deadline=None)
@given(st.lists(st.text(max_size=50), max_size=30))
def test_what_fits_arrives_in_order(texts: list[str]) -> None:
    with writer_into_a_pipe() as (writer, reader):
        for text in texts:
            writer.write(text)
        writer.close()
        assert reader.read_rest().decode("utf-8") == "".join(texts).encode("utf-8", "backslashreplace").decode()


def test_a_writer_never_waits_and_drops_whole_writes() -> None:
    line = "0123456789" * 100 + "\n"
    with writer_into_a_pipe() as (writer, reader):
        for _ in range(20 * MAX_WAITING // len(line)):
            writer.write(line)
        writer.write("the last\n")
        seen = reader.read_until(b"the last\n")
        assert reader.caught_up.wait(PATIENCE_S)
        # All that waited at any time: what the pipe held, one write in the thread's hand, and what was within bounds.
        assert len(seen) < 2 * MAX_WAITING
        assert set(seen.decode().splitlines(keepends=True)) == {line, "the last\n"}


def test_a_reader_in_time_loses_nothing() -> None:
    with writer_into_a_pipe() as (writer, reader):
        for number in range(200):
            writer.write(f"{number} {'x' * 4096}\n")
            reader.read_until(f"{number} ".encode())
        writer.close()
        assert not reader.caught_up.is_set()


def test_a_reader_that_is_gone_is_reported_once() -> None:
    with writer_into_a_pipe() as (writer, reader):
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, reader.fd)
        os.close(null)
        writer.write("hello\n")
        assert reader.gone.acquire(timeout=PATIENCE_S)
        for _ in range(100):
            writer.write("x" * MAX_WAITING)
        writer.close()
        assert not reader.gone.acquire(blocking=False)


def test_a_close_does_not_wait_forever() -> None:
    with writer_into_a_pipe() as (writer, reader):
        writer.write("x" * 10 * MAX_WAITING)
        writer.close()
    # The reader went after the close: whoever closed does not want to hear of it.
    assert not reader.gone.acquire(blocking=False)


def test_characters_outside_the_encoding_are_escaped() -> None:
    with writer_into_a_pipe(encoding="ascii") as (writer, reader):
        writer.write("5 µs\n")
        assert reader.read_until(b"\n") == b"5 \\xb5s\n"


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("term", "size", "reason"),
    [
        ("xterm-256color", (80, 24), None),
        ("xterm-256color", (60, 16), None),
        ("xterm-256color", (59, 24), "the terminal has 59x24 cells, and the cockpit needs 60x16"),
        ("xterm-256color", (80, 15), "the terminal has 80x15 cells, and the cockpit needs 60x16"),
        ("xterm-256color", (0, 0), None),
        ("dumb", (80, 24), "TERM=dumb: this terminal cannot position text"),
    ],
)
def test_an_unsuitable_terminal_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, term: str, size: tuple[int, int], reason: str | None
) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, FakeTerminal())
    monkeypatch.setenv("COLUMNS", str(size[0]))
    monkeypatch.setenv("LINES", str(size[1]))
    monkeypatch.setenv("TERM", term)
    assert plain_reason() == reason


@pytest.mark.parametrize(
    ("piped", "reason"),
    [("stdout", "there is no terminal"), ("stderr", "stderr is not the terminal, and the cockpit is drawn there")],
)
def test_a_pipe_is_no_terminal(monkeypatch: pytest.MonkeyPatch, piped: str, reason: str) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.StringIO() if name == piped else FakeTerminal())
    assert plain_reason() == reason
