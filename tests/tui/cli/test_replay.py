"""`vramp replay`: what it refuses, and in which words."""

from pathlib import Path

import pytest

from loadgen.errors import ProfileError, ResultError
from loadgen.store.journal import JOURNAL
from tests.tui.cli.commands import verb
from tests.tui.past_runs import RUN, leave_run

replay = verb("replay")


def test_without_a_terminal_it_names_what_works_without_one(tmp_path: Path) -> None:
    leave_run(tmp_path)
    with pytest.raises(ProfileError, match="needs a terminal to show it on: there is no terminal; vramp report"):
        replay([RUN])


def test_a_run_that_is_not_there_is_named() -> None:
    with pytest.raises(ResultError, match="nowhere: no such file"):
        replay(["nowhere"])


def test_a_malformed_journal_is_refused(tmp_path: Path) -> None:
    (leave_run(tmp_path) / JOURNAL).write_text("{}\n")
    with pytest.raises(ResultError, match="journal"):
        replay(["last"])


@pytest.mark.parametrize("speed", ["0.5", "101", "nan", "inf"])
def test_a_speed_out_of_range_is_refused(speed: str) -> None:
    with pytest.raises(ProfileError, match="expected a number from 1 to 100"):
        replay(["last", "--speed", speed])
