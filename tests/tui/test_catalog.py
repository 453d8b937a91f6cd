"""What the picker reads from disk, and that nothing there can make it fail."""

import fcntl
import os
from pathlib import Path

import msgspec
import pytest

from loadgen.metrics.result import SloCheck
from loadgen.store.journal import JOURNAL
from loadgen.store.runs import RESULT, read_result, run_folders, write_result
from tests.tui.past_runs import leave_run
from tui.catalog import (
    SHIPPED_FOLDERS,
    entries,
    entry_of,
    is_shipped,
    newest_by_profile,
    past_run,
    profile_of,
)

GOOD = '[server]\nengine = "simulator"\n[variants.long.load]\nosl = 64\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_own_profiles_come_first_and_other_toml_is_left_out(folder: Path) -> None:
    (folder / "mine.toml").write_text(GOOD)
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\n')
    (folder / "profiles").mkdir()
    (folder / "profiles" / "theirs.toml").write_text(GOOD)
    found = entries()
    assert [entry.name for entry in found[:2]] == ["mine", "theirs"]
    assert found[0].variants == ["long"]
    assert not found[1].shipped and found[2].shipped
    assert "simulator" in {entry.name for entry in found[2:]}
    assert all(entry.profile is not None for entry in found)


def test_what_would_never_end_is_not_read(folder: Path) -> None:
    (folder / "profiles").mkdir()
    for where in (folder, folder / "profiles"):
        os.mkfifo(where / "pipe.toml")
        (where / "loop.toml").symlink_to("loop.toml")
        (where / "endless.toml").symlink_to("/dev/zero")
    assert all(entry.shipped for entry in entries())


def test_each_file_is_there_once_where_the_own_folder_is_the_shipped_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    paths = [entry.path.resolve() for entry in entries()]
    assert len(paths) == len(set(paths)) > 10


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[server]\nengine = "vlm"\n', "server.engine"),
        ("[server\n", "not valid TOML"),
        ('[server]\nengine = "vllm"\n', "needs model"),
    ],
)
def test_a_file_that_is_no_profile_says_why(folder: Path, text: str, words: str) -> None:
    (folder / "faulty.toml").write_text(text)
    entry = next(entry for entry in entries() if entry.path.name == "faulty.toml")
    assert entry.profile is None and words in entry.problem
    assert entry.name == "faulty"


def test_a_shipped_file_is_known_by_whatever_path(folder: Path) -> None:
    shipped = next(path for place in SHIPPED_FOLDERS for path in place.glob("simulator.toml"))
    (folder / "link.toml").symlink_to(shipped)
    assert is_shipped(shipped) and is_shipped(folder / "link.toml")
    assert not is_shipped(folder / "new.toml")
    assert entry_of(shipped).shipped


def test_the_newest_run_of_a_profile_counts_whatever_its_variant() -> None:
    names = ["20260103T000000Z-a+fast", "20260102T000000Z-a", "20260101T000000Z-b-2", "odd"]
    newest = newest_by_profile(Path(name) for name in names)
    assert newest["a"].name == names[0]
    assert newest["b"].name == newest["b-2"].name == names[2]
    assert profile_of("odd") == "odd"


def test_a_run_with_its_result_tells_its_best_stage(folder: Path) -> None:
    run = past_run(leave_run(folder))
    assert (run.profile, run.state) == ("mine", "complete")
    assert run.started is not None and run.started.year == 2026
    assert run.best is not None and run.best.label == "conc 4"


def test_the_best_stage_is_one_that_met_its_limits(folder: Path) -> None:
    left = leave_run(folder)
    result = read_result(left / RESULT)
    slow = msgspec.structs.replace(result.stages[1], slo={"ttft_p99": SloCheck(limit_ms=1, measured_ms=9, met=False)})
    write_result(msgspec.structs.replace(result, stages=[result.stages[0], slow]), left / RESULT)
    best = past_run(left).best
    assert best is not None and best.label == "conc 1"


def test_a_run_without_its_result_was_killed_or_goes_on(folder: Path) -> None:
    left = leave_run(folder)
    (left / RESULT).unlink()
    assert past_run(left).state == "killed"
    with (left / JOURNAL).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert past_run(left).state == "goes on"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"state": 3}', b"\xff\xfe"])
def test_what_is_no_result_is_just_that(folder: Path, content: bytes) -> None:
    left = folder / "runs" / "20260101T000000Z-x"
    left.mkdir(parents=True)
    (left / RESULT).write_bytes(content)
    assert run_folders() == [Path("runs") / left.name]
    run = past_run(left)
    assert run.state == "unreadable" and run.best is None
