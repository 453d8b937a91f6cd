"""The cockpit in a real pseudo-terminal: it leaves the terminal clean, and a closed one does not cost the result."""

import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
TOML = (
    '[server]\nengine = "simulator"\nargs = {preset = "fast", spawn-children = 1}\n'
    "[load]\nisl = 16\nosl = 8\nworkers = 1\nconcurrency = 2\nduration = '60s'\n"
)
PATIENCE_S = 60.0
FLOWING = b"stage 1 of"
"""The load has begun: in the header, whatever else a small screen leaves out."""


class Terminal:
    """The other side of a terminal with vramp in it."""

    def __init__(self, pid: int, master: int) -> None:
        self.pid = pid
        self.master = master
        self.seen = b""

    def read_until(self, words: bytes) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while words not in self.seen:
            readable, _, _ = select.select([self.master], [], [], max(0.0, until_s - time.monotonic()))
            assert readable, f"never showed {words!r}: {self.seen[-2000:]!r}"
            self.seen += os.read(self.master, 65536)

    def read_rest(self) -> None:
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # the other side is closed
                return
            if not data:
                return
            self.seen += data

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def cockpit(folder: Path, columns: int = 120, rows: int = 40) -> Iterator[Terminal]:
    (folder / "p.toml").write_text(TOML)
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update(TERM="xterm-256color", PYTHONPATH=str(ROOT))
        os.execv(sys.executable, [sys.executable, "-m", "tui.cli", "p.toml", "--json", "o.json"])
    terminal = Terminal(pid, master)
    terminal.resize(columns, rows)
    try:
        yield terminal
    finally:
        os.close(master)


def test_a_session_leaves_the_terminal_clean_and_the_table_on_it(tmp_path: Path) -> None:
    with cockpit(tmp_path) as terminal:
        terminal.read_until(FLOWING)
        terminal.press(b"]")
        terminal.read_until(b"by hand")
        terminal.resize(80, 24)
        terminal.press(b"q")
        terminal.read_until(b"A run is live")
        terminal.press(b"f")
        terminal.read_rest()
        assert terminal.wait() == 0
    after = terminal.seen[terminal.seen.rindex(b"\x1b[?1049l") :]
    # Out of the alternate screen, the cursor back, the mouse off; then text and nothing but text.
    assert b"\x1b[?25h" in after
    assert b"\x1b[?1000l" in terminal.seen
    table = after[after.index(b"stage 1: conc 2") :]
    assert b"\x1b" not in table
    assert b"result: " in table
    document = json.loads((tmp_path / "o.json").read_text())
    assert [stage["target"]["concurrency"] for stage in document["stages"]] == [2, 4]


def test_a_closed_terminal_ends_the_run_in_order(tmp_path: Path) -> None:
    with cockpit(tmp_path) as terminal:
        terminal.read_until(FLOWING)
        tree = psutil.Process(terminal.pid).children(recursive=True)
        assert len(tree) >= 4
    # The master is closed: the kernel hangs up.
    terminal.wait()
    assert psutil.wait_procs(tree, timeout=15)[1] == []
    assert json.loads((tmp_path / "o.json").read_text())["state"] == "stopped"


def test_ctrl_c_twice_in_the_cockpit(tmp_path: Path) -> None:
    with cockpit(tmp_path) as terminal:
        terminal.read_until(FLOWING)
        terminal.press(b"\x03\x03")
        terminal.read_until(b"stopped: ")
        terminal.press(b"q")
        terminal.read_rest()
        terminal.wait()
    assert json.loads((tmp_path / "o.json").read_text())["state"] == "stopped"
