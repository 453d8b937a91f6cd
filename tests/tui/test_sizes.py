"""Terminals of unusual sizes: each screen shows at all of them, in little memory, and ends at a signal."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.engines import Simulator
from tests.tui.past_runs import ROOT, TOML, leave_run
from tests.tui.pseudo_terminal import in_a_terminal
from tui.terminal import MAX_COLUMNS, MAX_ROWS, usable_size

SIZES = [(1, 1), (20_000, 20_000), (0, 40), (0, 0)]
MAX_MEMORY_BYTES = 400 << 20  # a drawn screen of 20,000 columns and rows takes gigabytes
COCKPIT_TOML = TOML.replace("requests = 20", "duration = '60s'")


@pytest.mark.parametrize(
    ("words", "opened", "key", "shown", "ends"),
    [
        ([], b"shipped with vramp", b"?", b"look again", (signal.SIGTERM, 0)),
        ([], b"shipped with vramp", b"e", b"ctrl+s", (signal.SIGHUP, 0)),
        ([], b"shipped with vramp", b"p", b"replay", (signal.SIGINT, 0)),
        (["mine.toml"], b"stage 1 of", b"q", b"A run is live", (signal.SIGTERM, 130)),
        (["monitor", "URL"], b"no load", b"9", b"erdicts", (signal.SIGHUP, 130)),
        (["replay", "last"], b"REPLAY", b"2", b"by streams held", (signal.SIGINT, 0)),
    ],
    ids=["picker-help", "editor", "past-runs", "cockpit-quit", "monitor-verdicts", "replay-curve"],
)
def test_a_screen_shows_at_every_size_and_ends_at_a_signal(
    tmp_path: Path,
    engine: Simulator,
    words: list[str],
    opened: bytes,
    key: bytes,
    shown: bytes,
    ends: tuple[signal.Signals, int],
) -> None:
    (tmp_path / "mine.toml").write_text(COCKPIT_TOML)
    leave_run(tmp_path)
    command = [sys.executable, "-m", "tui.cli", *(word.replace("URL", engine.url) for word in words)]
    env = {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(tmp_path), "COLUMNS": "", "LINES": ""}
    with in_a_terminal(command, tmp_path, env, columns=0, rows=0) as terminal:
        terminal.read_until(opened)
        terminal.press(key)
        terminal.read_until(shown)
        for size in SIZES:
            terminal.seen = b""
            terminal.resize(*size)
            terminal.read_until(b"\x1b")
        peak_bytes = peak_memory_bytes(terminal.pid)
        os.kill(terminal.pid, ends[0])
        assert terminal.read_to_its_end() == ends[1]
    assert b"Traceback" not in terminal.seen
    assert peak_bytes < MAX_MEMORY_BYTES


def peak_memory_bytes(pid: int) -> int:
    """The most that a process had resident; what the system counts for a child includes its parent at the fork."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@pytest.mark.parametrize(
    ("reported", "used"),
    [
        ((0, 0), (80, 24)),
        ((0, 40), (80, 40)),
        ((120, 0), (120, 24)),
        ((1, 1), (1, 1)),
        ((20_000, 20_000), (MAX_COLUMNS, MAX_ROWS)),
    ],
)
def test_an_unknown_size_is_the_usual_one_and_a_huge_one_is_cut(
    reported: tuple[int, int], used: tuple[int, int]
) -> None:
    assert usable_size(*reported) == used
