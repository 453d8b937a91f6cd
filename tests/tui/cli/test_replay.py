"""`vramp replay`: what it refuses, and in which words."""

from pathlib import Path

import pytest

from loadgen.errors import ProfileError, ResultError
from loadgen.store.journal import JOURNAL
from tests.tui.past_runs import RUN, leave_run
from tui.cli.watch import replay


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_terminal_it_names_what_works_without_one(folder: Path) -> None:
    leave_run(folder)
    with pytest.raises(ProfileError, match="needs a terminal to show it on: there is no terminal; vramp report"):
        replay([RUN])


def test_a_run_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(ResultError, match="nowhere: no such file"):
        replay(["nowhere"])


def test_a_malformed_journal_is_refused(folder: Path) -> None:
    (leave_run(folder) / JOURNAL).write_text("{}\n")
    with pytest.raises(ResultError, match="journal"):
        replay(["last"])


@pytest.mark.parametrize("speed", ["0.5", "101", "nan", "inf"])
def test_a_speed_out_of_range_is_refused(speed: str) -> None:
    with pytest.raises(ProfileError, match="expected a number from 1 to 100"):
        replay(["last", "--speed", speed])
