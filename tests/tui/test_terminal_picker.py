"""`vramp` without a profile and `vramp replay` in a real pseudo-terminal: both leave it clean."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from loadgen.schema.result import RESULT
from tests.engines import NOBODY
from tests.tui.cli.test_terminal import FLOWING
from tests.tui.past_runs import ROOT, TOML, leave_run
from tests.tui.pseudo_terminal import Terminal, in_a_terminal


@contextmanager
def vramp(folder: Path, *words: str, **environment: str) -> Iterator[Terminal]:
    env = {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(folder)} | environment
    with in_a_terminal([sys.executable, "-m", "tui.cli", *words], folder, env) as terminal:
        yield terminal


def assert_clean(terminal: Terminal) -> None:
    after = terminal.seen[terminal.seen.rindex(b"\x1b[?1049l") :]
    assert b"\x1b[?25h" in after
    assert b"Traceback" not in terminal.seen


def test_a_run_from_the_picker_prints_its_table_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TOML)
    with vramp(tmp_path) as terminal:
        terminal.read_until(b"mine.toml")
        terminal.press(b"\r")
        terminal.read_until(b"the plan is done")
        terminal.press(b"qf")
        assert terminal.read_to_its_end() == 0
    assert_clean(terminal)
    assert b"\nconc 4 " in terminal.seen
    assert b"result: runs/" in terminal.seen


def test_a_replay_is_watched_and_left(tmp_path: Path) -> None:
    leave_run(tmp_path)
    with vramp(tmp_path, "replay", "last", "--speed", "100", NO_COLOR="1", COLORTERM="truecolor") as terminal:
        terminal.read_until(b"REPLAY")
        terminal.press(b"q")
        assert terminal.read_to_its_end() == 0
    assert_clean(terminal)
    # Textual's answer to NO_COLOR: every colour is a grey.
    colours = re.findall(rb"[34]8;2;(\d+);(\d+);(\d+)", terminal.seen)
    assert colours and all(red == green == blue for red, green, blue in colours)


def test_a_config_with_a_mistake_is_reported_before_anything_opens(tmp_path: Path) -> None:
    (tmp_path / "vramp").mkdir()
    (tmp_path / "vramp" / "config.toml").write_text('theme = "none"\n')
    with vramp(tmp_path) as terminal:
        assert terminal.read_to_its_end() == 2
    assert b"unknown theme" in terminal.seen
    assert b"\x1b[?1049h" not in terminal.seen


def test_a_profile_without_a_word_for_its_name_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f'name = ""\n{TOML}')
    with vramp(tmp_path, "mine.toml") as terminal:
        assert terminal.read_to_its_end() == 2
    assert b"vramp: mine.toml: name = ''" in terminal.seen and b"Traceback" not in terminal.seen


def test_a_closed_terminal_ends_the_run_that_the_picker_started(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TOML.replace("requests = 20", "duration = '60s'"))
    with vramp(tmp_path) as terminal:
        terminal.read_until(b"mine.toml")
        terminal.press(b"\r")
        terminal.read_until(FLOWING)
        tree = psutil.Process(terminal.pid).children(recursive=True)
        assert len(tree) >= 3
    terminal.wait()
    assert psutil.wait_procs(tree, timeout=15)[1] == []
    result = next((tmp_path / "runs").iterdir()) / RESULT
    assert json.loads(result.read_text())["state"] == "stopped"


def test_a_dumb_terminal_gets_progress_lines_and_the_reason(tmp_path: Path) -> None:
    with vramp(tmp_path, "--url", NOBODY, TERM="dumb") as terminal:
        assert terminal.read_to_its_end() == 3
    assert b"no cockpit, progress lines instead: TERM=dumb" in terminal.seen
    assert b"nothing listens" in terminal.seen and b"\x1b" not in terminal.seen
