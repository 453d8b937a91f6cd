"""Finding a run by the folder, name or word that a user gives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loadgen.errors import ResultError
from loadgen.record.record import Record
from loadgen.schema.journal import RunFinished, RunStarted
from loadgen.schema.result import Result
from loadgen.store.journal import Journal
from loadgen.store.runs import (
    find_run,
    open_journal,
    open_result,
    require_writable,
    run_folders,
    was_killed,
    write_result,
)

ROOT = Path(__file__).parents[2]
STARTED = RunStarted(1.7e9, "the-run", "0", {}, {}, 1, 1, 1)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def leave_run(name: str, *, whole: bool = True) -> Path:
    """The folder of a run that came to its end, or was killed."""
    folder = Path("runs") / name
    folder.mkdir(parents=True)
    journal = Journal(folder / "journal.jsonl")
    journal.write(STARTED)
    journal.close()
    if whole:
        write_result(result_of(finished=True), folder / "result.json")
    return folder


def result_of(*, finished: bool) -> Result:
    record = Record()
    record.apply(STARTED)
    if finished:
        record.apply(RunFinished(1.0, 1.7e9 + 1, "complete", "the plan is done"))
    return record.result()


def test_the_same_run_by_every_word_for_it() -> None:
    leave_run("20250101T000000Z-old")
    folder = leave_run("20260101T000000Z-new")
    for text in ("20260101T000000Z-new", "2026", "last", "runs/20260101T000000Z-new", str(folder.absolute())):
        assert find_run(text).resolve() == folder.resolve()
        assert open_result(text).run_id == "the-run"
        assert open_journal(text).resolve() == (folder / "journal.jsonl").resolve()
    file = folder / "result.json"
    assert find_run(str(file)) == file
    assert open_result(str(file)).state == "complete"
    assert open_journal(str(file)) == folder / "journal.jsonl"


def test_the_result_of_a_run_that_still_runs_does_not_say_that_it_was_killed() -> None:
    folder = leave_run("20260101T000000Z-new", whole=False)
    write_result(result_of(finished=False), folder / "result.json")
    assert open_result("last").state == "failed"
    writer = Journal(folder / "journal.jsonl")
    result = open_result("last")
    writer.close()
    assert (result.state, result.reason) == ("stopped", "the run still runs; these are its figures so far")


def test_a_folder_that_was_renamed_is_not_the_last() -> None:
    newest = leave_run("20260101T000000Z-new")
    for name in ("good-one", "20250101T000000Z-old", "3000-streams"):
        leave_run(name)
    assert [folder.name for folder in run_folders()] == [
        "3000-streams",
        "good-one",
        "20250101T000000Z-old",
        "20260101T000000Z-new",
    ]
    assert find_run("last") == newest


def test_a_whole_name_is_itself_though_others_begin_like_it() -> None:
    folder = leave_run("20260101T000000Z-run")
    leave_run("20260101T000000Z-run-2")
    assert find_run("20260101T000000Z-run") == folder


def test_what_is_not_there_is_reported_with_what_is() -> None:
    with pytest.raises(ResultError, match=r"last: no such file, folder, baseline or run in .*/runs, which holds none"):
        find_run("last")
    leave_run("20250101T000000Z-old")
    leave_run("20250101T000009Z-new")
    with pytest.raises(ResultError, match=r"xyz: no such .*; the newest there: 20250101T000009Z-new, 2025\S*-old$"):
        find_run("xyz")
    with pytest.raises(ResultError, match="2025: more than one run begins like this: 20250101T000009Z-new, "):
        find_run("2025")


def test_folder_without_a_run_is_refused() -> None:
    Path("empty").mkdir()
    with pytest.raises(ResultError, match=r"empty: there is no run in this folder$"):
        find_run("empty")
    Path("sweep").mkdir()
    for name in ("sweep", "base", "eager"):
        Path(f"sweep/{name}.json").write_text("{}")
    with pytest.raises(ResultError, match=r"name one of its results: eager\.json, base\.json"):
        find_run("sweep")


def test_a_run_without_a_result_goes_on_or_was_killed() -> None:
    folder = leave_run("20260101T000000Z-killed", whole=False)
    with pytest.raises(ResultError, match=r"ended without .*`vramp recover runs/20260101T000000Z-killed`"):
        open_result("last")
    assert was_killed(folder)
    running = Journal(folder / "journal.jsonl")
    with pytest.raises(ResultError, match="this run is still running"):
        open_result("last")
    assert not was_killed(folder)
    running.close()


def test_a_result_from_before_the_end_is_not_that_of_the_whole_run() -> None:
    folder = leave_run("20260101T000000Z-held")
    assert not was_killed(folder)
    write_result(result_of(finished=False), folder / "result.json")
    assert was_killed(folder)
    assert open_result("last").finished_at is None


def test_a_result_that_lies_alone_has_no_journal() -> None:
    write_result(result_of(finished=True), Path("alone/result.json"))
    with pytest.raises(ResultError, match=r"alone/journal\.jsonl: there is no such file"):
        open_journal("alone")


def test_a_folder_that_cannot_be_looked_into_hides_no_other() -> None:
    folder = leave_run("20260101T000000Z-run")
    Path("runs/20260101T000009Z-far").symlink_to("x" * 300)  # like one that may not be entered, for root too
    assert run_folders() == [folder]
    assert find_run("last") == folder


LOOKED_UP = """
import os, sys
from loadgen.errors import ResultError
from loadgen.store.runs import find_run, run_folders
if os.geteuid() == 0:
    os.setuid(65534)
print([folder.name for folder in run_folders()])
try:
    find_run(sys.argv[1])
except ResultError as error:
    print(error)
"""


def test_a_folder_that_may_not_be_entered_is_reported_as_that(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    leave_run("20260101T000000Z-mine")
    denied = leave_run("20260101T000009Z-theirs")
    denied.chmod(0)
    command = [sys.executable, "-c", LOOKED_UP, str(denied)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    found, reported = done.stdout.splitlines()
    assert found == "['20260101T000000Z-mine']"
    assert reported == f"{denied}: cannot be looked up: Permission denied"
    denied.chmod(0o700)


@pytest.mark.parametrize("open_it", [find_run, open_journal, open_result])
def test_a_name_too_long_for_a_file_is_no_run(open_it: Callable[[str], object]) -> None:
    with pytest.raises(ResultError, match=r"x: (cannot be looked up: File name too long|no such file)"):
        open_it("x" * 300)


def test_a_pipe_takes_a_result_and_stays() -> None:
    pipe = Path("pipe")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    require_writable(pipe)
    write_result(result_of(finished=True), pipe, named=True)
    assert b"vramp.result" in os.read(reader, 1 << 16)
    os.close(reader)
    assert [path.name for path in Path().iterdir()] == ["pipe"] and pipe.is_fifo()


def test_a_name_that_is_too_long_is_refused_before_the_run() -> None:
    require_writable(Path("x" * 255))
    with pytest.raises(ResultError, match="File name too long; nothing was started"):
        require_writable(Path("x" * 256))
