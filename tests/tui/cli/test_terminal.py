"""The cockpit in a real pseudo-terminal: it leaves it clean; one that is closed or reads nothing costs no result."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadgen.store.journal import JOURNAL
from tests.server.fakes import wait_until
from tests.tui.past_runs import leave_run
from tests.tui.pseudo_terminal import PATIENCE_S, Terminal, in_a_terminal

ROOT = Path(__file__).parents[3]
GOLDENS = ROOT / "tests" / "tui" / "goldens"
TOML = (
    '[server]\nengine = "simulator"\nargs = {preset = "fast", base-ms = 5, spawn-children = 1}\n'
    "[load]\nisl = 16\nosl = 8\nworkers = 1\nconcurrency = 2\nduration = '60s'\n"
)
LEFT = b"\x1b[?1049l"
"""Out of the alternate screen."""
FLOWING = b"stage 1 of"
"""The load has begun: in the header, whatever else a small screen leaves out."""


COCKPIT = [sys.executable, "-m", "tui.cli", "p.toml", "--json", "o.json"]


@contextmanager
def cockpit(
    folder: Path, columns: int = 120, rows: int = 40, *, command: list[str] = COCKPIT, **environment: str
) -> Iterator[Terminal]:
    (folder / "p.toml").write_text(TOML)
    with in_a_terminal(command, folder, {"PYTHONPATH": str(ROOT)} | environment, columns, rows) as terminal:
        yield terminal


def test_a_session_leaves_the_terminal_clean_and_the_table_on_it(tmp_path: Path) -> None:
    with cockpit(tmp_path) as terminal:
        terminal.read_until(FLOWING)
        wait_until(partial(journal_has, tmp_path, '"latency":{'))
        terminal.press(b"]")
        terminal.read_until(b"by hand")
        terminal.resize(80, 24)
        assert terminal.leave() == 0
    after = terminal.seen[terminal.seen.rindex(LEFT) :]
    # Out of the alternate screen, the cursor back, the mouse off; then text and nothing but text.
    assert b"\x1b[?25h" in after
    assert b"\x1b[?1000l" in terminal.seen
    table = after[after.index(b"Throughput ---") :]
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


def test_a_sigint_that_is_no_key_ends_the_run_in_order(tmp_path: Path) -> None:
    with cockpit(tmp_path) as terminal:
        terminal.read_until(FLOWING)
        os.kill(terminal.pid, signal.SIGINT)
        assert terminal.read_to_its_end() == 130
    assert LEFT in terminal.seen
    assert b"Traceback" not in terminal.seen
    assert json.loads((tmp_path / "o.json").read_text())["state"] == "stopped"


def test_ctrl_c_twice_in_the_cockpit(tmp_path: Path) -> None:
    with cockpit(tmp_path) as terminal:
        terminal.read_until(FLOWING)
        terminal.press(b"\x03\x03")
        terminal.read_until(b"stopped: ")
        terminal.read_until(b"run done")
        terminal.read_until(b" o.json")
        terminal.press(b"q")
        terminal.read_rest()
        terminal.wait()
    assert json.loads((tmp_path / "o.json").read_text())["state"] == "stopped"


def fill(terminal: Terminal, folder: Path) -> None:
    """Whole screens, more than the kernel and Textual's own queue would hold; the run answers every time."""
    for number in range(30):
        terminal.press(b"1234"[number % 4 : number % 4 + 1] + b"]["[number % 2 : number % 2 + 1])
        wait_until(partial(journal_has, folder, '"Happened"', number + 1))


def test_terminal_that_reads_nothing_delays_no_key_or_sigterm(tmp_path: Path) -> None:
    with cockpit(tmp_path, 240, 60) as terminal:
        terminal.read_until(FLOWING)
        fill(terminal, tmp_path)
        tree = psutil.Process(terminal.pid).children(recursive=True)
        os.kill(terminal.pid, signal.SIGTERM)
        assert psutil.wait_procs(tree, timeout=PATIENCE_S)[1] == []
        wait_until((tmp_path / "o.json").exists)
        assert terminal.wait() == 130
    assert json.loads((tmp_path / "o.json").read_text())["state"] == "stopped"


def test_a_terminal_that_closes_without_notice_ends_the_run_too(tmp_path: Path) -> None:
    # The kernel tells the leader of the session alone, and this one keeps it to itself.
    leader = "trap '' HUP; \"$@\"; echo $? > status"
    with cockpit(tmp_path, command=["/bin/sh", "-c", leader, "sh", *COCKPIT]) as terminal:
        terminal.read_until(FLOWING)
        tree = psutil.Process(terminal.pid).children(recursive=True)
    terminal.wait()
    assert psutil.wait_procs(tree, timeout=PATIENCE_S)[1] == []
    assert json.loads((tmp_path / "o.json").read_text())["state"] == "stopped"


def test_a_stop_and_more_than_one_go_on_leave_one_reader_of_the_keys_and_clicks(tmp_path: Path) -> None:
    drawn = (GOLDENS / "overview-120x40.txt").read_text(encoding="utf-8").splitlines()
    row, column = next((y, line.index("i details")) for y, line in enumerate(drawn, 1) if "i details" in line)
    # Whoever runs the tests may have a size in the environment, which would be taken for the terminal's.
    with cockpit(tmp_path, COLUMNS="120", LINES="40") as terminal:
        terminal.read_until(FLOWING)
        wait_until(partial(journal_has, tmp_path, '"StageStarted"'))
        process = psutil.Process(terminal.pid)
        os.kill(terminal.pid, signal.SIGTSTP)
        terminal.read_until(LEFT)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        for _ in range(3):
            terminal.seen = b""
            os.kill(terminal.pid, signal.SIGCONT)
            terminal.read_until(FLOWING)
        terminal.press(f"\x1b[<0;{column + 3};{row}M\x1b[<0;{column + 3};{row}m".encode())
        terminal.read_until(b"tab")  # the key for the next one, in the title
        assert terminal.leave() == 0


@pytest.mark.parametrize(("term", "environment"), [("linux", {}), ("xterm-16color", {"NO_COLOR": "1"})])
def test_a_terminal_with_few_colours_and_the_consoles_font(
    tmp_path: Path, term: str, environment: dict[str, Any]
) -> None:
    leave_run(tmp_path)
    replay = [sys.executable, "-m", "tui.cli", "replay", "last"]
    with cockpit(tmp_path, command=replay, TERM=term, COLORTERM="", **environment) as terminal:
        terminal.read_until(b"run done")
        terminal.press(b"2")
        terminal.read_until(b"by streams held")
        terminal.press(b"q")
        assert terminal.read_to_its_end() == 0
    shown = terminal.seen.decode()
    assert not re.search(r"[34]8;[25];", shown), "more than sixteen colours"
    # Every glyph of the console's own font is one of the IBM PC's.
    assert (term != "linux") or shown.encode("cp437")


FLOOD = """
import pathlib
from tui.app import Cockpit, open_cockpit

def flood(cockpit):
    for _ in range(40):
        cockpit._driver.write(chr(27) + "[0m" + "~" * 65536)
    pathlib.Path("flooded").touch()

Cockpit.key_f = flood  # a subclass here would look for the styles next to this text
open_cockpit(Cockpit())
"""


def test_a_terminal_that_reads_again_gets_the_whole_screen(tmp_path: Path) -> None:
    with cockpit(tmp_path, command=[sys.executable, "-c", FLOOD]) as terminal:
        terminal.read_until(b"shipped with vramp")
        terminal.press(b"f")
        wait_until((tmp_path / "flooded").exists)
        terminal.seen = b""
        terminal.read_until(b"shipped with vramp")
        terminal.press(b"q")
        assert terminal.read_to_its_end() == 0
    assert terminal.seen.count(b"\x1b[0m~") < 40


BREAKS = """
from tui.app import Cockpit
from tui.cli.__main__ import main

def fail(cockpit):
    api_key = "-".join(("sk", "nobody", "sees"))
    raise LookupError("no such panel")

Cockpit.key_f = fail
main(["p.toml"])
"""


def test_what_breaks_the_screen_is_reported_without_the_values_of_locals_and_fails_the_run(tmp_path: Path) -> None:
    with cockpit(tmp_path, command=[sys.executable, "-c", BREAKS]) as terminal:
        terminal.read_until(FLOWING)
        terminal.press(b"f")
        assert terminal.read_to_its_end() == 1
    assert b"LookupError: no such panel" in terminal.seen[terminal.seen.rindex(LEFT) :]
    assert b"sk-nobody-sees" not in terminal.seen
    (path,) = tmp_path.glob("runs/*/result.json")
    result = json.loads(path.read_text())
    assert (result["state"], result["reason"]) == ("failed", "the cockpit broke: LookupError")


def journal_has(folder: Path, words: str, times: int = 1) -> bool:
    journal = next((folder / "runs").iterdir()) / JOURNAL
    return journal.read_text().count(words) >= times
