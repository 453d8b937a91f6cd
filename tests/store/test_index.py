"""The index of runs: the folders are the truth, and no state of its file keeps a run from being listed."""

import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from loadgen.store.index import IndexEntry, index_path, runs_below


class Reader:
    """Reads a run's file as its summary, and counts."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.notes: list[str] = []

    def __call__(self, folder: Path) -> IndexEntry | None:
        self.read.append(folder.name)
        try:
            text = (folder / "result.json").read_bytes()
        except OSError:
            return None
        return IndexEntry(text, b"details of " + text, ended=text != b"goes on")

    def below(self, root: Path, *, details: bool = False) -> dict[str, IndexEntry]:
        return {
            os.path.relpath(folder, root): entry
            for folder, entry in runs_below(root, self, 7, details=details, note=self.notes.append).items()
        }


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(300):
        leave(tmp_path / "runs" / f"run{number}", f"result {number}")
    return tmp_path / "runs"


def leave(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(text)


def test_a_run_is_read_again_only_when_its_file_changes(root: Path) -> None:
    first = Reader()
    found = first.below(root)
    assert len(found) == len(first.read) == 300
    assert first.notes == ["reading 300 runs"]
    leave(root / "run7", "another result")
    shutil.rmtree(root / "run8")
    leave(root / "new", "a new one")
    second = Reader()
    again = second.below(root)
    assert sorted(second.read) == ["new", "run7"]
    assert again["run7"].summary == b"another result" and "run8" not in again and again["new"].summary == b"a new one"
    assert again["run9"].summary == found["run9"].summary and again["run9"].details == b""
    assert Reader().below(root, details=True)["run9"].details == b"details of result 9"


def test_a_folder_is_one_by_any_of_its_names(root: Path) -> None:
    Reader().below(root)
    (root.parent / "link").symlink_to(root)
    again = Reader()
    assert len(again.below(root / ".." / "runs")) == 300
    again.below(root.parent / "link")
    assert again.read == []


def test_a_run_that_goes_on_is_read_every_time(tmp_path: Path) -> None:
    leave(tmp_path / "runs/live", "goes on")
    for _ in range(2):
        reader = Reader()
        assert reader.below(tmp_path / "runs")["live"].summary == b"goes on"
        assert reader.read == ["live"]


def test_runs_at_any_depth_and_below_an_acceptance(tmp_path: Path) -> None:
    leave(tmp_path / "box1/2026/run", "deep")
    leave(tmp_path / "box1/2026/run/inside", "not a run: a run's folder is not searched")
    leave(tmp_path / "accept/start-1", "of an acceptance")
    (tmp_path / "accept/certificate.json").write_text("{}")
    (tmp_path / "box1/loop").symlink_to(tmp_path)
    (tmp_path / "linked").symlink_to(tmp_path / "box1/2026/run")
    reader = Reader()
    assert sorted(reader.below(tmp_path)) == ["accept/start-1", "box1/2026/run", "linked"]
    assert "accept" in reader.read


def test_two_folders_share_the_index(tmp_path: Path) -> None:
    leave(tmp_path / "runs/a", "a")
    leave(tmp_path / "runs2/b", "b")
    for folder, name in (("runs", "a"), ("runs2", "b"), ("runs", "a")):
        assert list(Reader().below(tmp_path / folder)) == [name]
    reader = Reader()
    assert sorted(reader.below(tmp_path)) == ["runs/a", "runs2/b"]
    assert reader.read == []


def test_a_folder_that_vanishes_while_it_is_read_is_left_out(root: Path) -> None:
    class Removing(Reader):
        def __call__(self, folder: Path) -> IndexEntry | None:
            shutil.rmtree(root / "run299", ignore_errors=True)
            return super().__call__(folder)

    assert len(Removing().below(root)) == 299
    assert len(Reader().below(root)) == 299


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00 and no more", b"not a database at all" * 100])
def test_a_damaged_index_is_made_anew(root: Path, content: bytes) -> None:
    Reader().below(root)
    index_path().write_bytes(content)
    reader = Reader()
    assert len(reader.below(root)) == 300
    reader = Reader()
    reader.below(root)
    assert reader.read == []


def test_an_index_of_another_version_is_made_anew(root: Path) -> None:
    Reader().below(root)
    with closing(sqlite3.connect(index_path())) as index:
        index.execute("PRAGMA user_version = 99")
    reader = Reader()
    assert len(reader.below(root)) == len(reader.read) == 300
    assert "rebuilt: it was written by another version of vramp" in reader.notes[0]


def test_an_index_that_another_process_locks_is_passed_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Reader().below(root)
    monkeypatch.setattr("loadgen.store.index._WAIT_S", 0.0)
    leave(root / "new", "new")
    with closing(sqlite3.connect(index_path())) as other:
        other.execute("BEGIN EXCLUSIVE")
        reader = Reader()
        assert len(reader.below(root)) == 301
    assert "the index cannot be used (database is locked)" in reader.notes[0]


def test_without_a_place_for_the_index_runs_are_listed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    reader = Reader()
    assert len(reader.below(root)) == 300
    assert "the index cannot be used" in reader.notes[0]


def test_a_name_that_is_no_unicode_is_indexed(tmp_path: Path) -> None:
    leave(tmp_path / os.fsdecode(b"\xff\xfe run"), "odd")
    for read in (1, 0):
        reader = Reader()
        assert len(reader.below(tmp_path)) == 1 and len(reader.read) == read


def test_only_its_owner_can_read_the_index(root: Path) -> None:
    Reader().below(root)
    assert stat.S_IMODE(index_path().parent.parent.stat().st_mode) == 0o700
