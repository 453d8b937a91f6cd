"""Baselines: kept under a name, found wherever a run is named, gone when removed."""

from pathlib import Path

import pytest

from loadgen.errors import ProfileError, ResultError
from loadgen.record.stage import StageRecord
from loadgen.store.runs import (
    RUNS,
    baselines,
    find_run,
    open_result,
    remove_baseline,
    require_baseline,
    save_baseline,
    write_result,
)
from tests.metrics.served import run_of, served, started


@pytest.fixture(autouse=True)
def in_a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_a_baseline_is_the_whole_result_under_a_name() -> None:
    result = run_of(served(1))
    path = save_baseline("mi300x-v0.32", result)
    assert baselines() == {"mi300x-v0.32": path}
    assert find_run("mi300x-v0.32") == require_baseline("mi300x-v0.32") == path
    assert open_result("mi300x-v0.32") == result


def test_a_name_cannot_be_reused_without_replace() -> None:
    save_baseline("good", run_of(served(1)))
    with pytest.raises(ProfileError, match=r"good: there is a baseline of this name: .* --replace overwrites it"):
        save_baseline("good", run_of(served(2)))
    save_baseline("good", run_of(served(2), run_id="another"), replace=True)
    assert open_result("good").run_id == "another"


@pytest.mark.parametrize("name", ["", "last", "../x", ".hidden", "a/b", "a b", "x" * 65])
def test_a_name_is_a_word(name: str) -> None:
    with pytest.raises(ProfileError, match="not a valid name"):
        save_baseline(name, run_of(served(1)))
    assert name not in baselines()


def test_a_run_that_completed_nothing_is_refused() -> None:
    with pytest.raises(ResultError, match="no request was completed"):
        save_baseline("good", run_of(StageRecord(started())))
    assert not baselines()


def test_a_removed_one_is_gone() -> None:
    save_baseline("good", run_of(served(1)))
    save_baseline("other", run_of(served(1)))
    remove_baseline("good")
    with pytest.raises(ResultError, match="good: no baseline of this name; there are other"):
        remove_baseline("good")
    with pytest.raises(ResultError, match="good: no such file, folder, baseline or run"):
        find_run("good")


def test_run_name_matches_exactly_before_prefixes() -> None:
    result = run_of(served(1))
    path = save_baseline("2026", result)
    longer = RUNS / "20260101T000000Z-box"
    write_result(result, longer / "result.json")
    assert find_run("2026") == path
    write_result(result, RUNS / "2026" / "result.json")
    assert find_run("2026") == RUNS / "2026"


def test_without_a_state_folder_there_are_no_baselines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert baselines() == {}
    with pytest.raises(ResultError, match="no folder for baselines"):
        save_baseline("good", run_of(served(1)))
