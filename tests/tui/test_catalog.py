"""What the picker reads from disk, and that nothing there can make it fail."""

import fcntl
import os
from pathlib import Path

import pytest

from loadgen.errors import ProfileError
from loadgen.profile.document import load_document
from loadgen.schema.result import RESULT
from loadgen.store.journal import JOURNAL
from loadgen.store.runs import profile_of, run_folders
from tests.tui.past_runs import leave_run
from tui.catalog import (
    PROFILE_FOLDERS,
    SHIPPED_FOLDERS,
    entries,
    entry_of,
    find_profile,
    newest_by_profile,
    origin_of,
    past_run,
)

GOOD = '[server]\nengine = "simulator"\n[variants.long.load]\nosl = 64\n'


def test_own_profiles_come_first_and_other_toml_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GOOD)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "theirs.toml").write_text(GOOD)
    found = entries()
    assert [entry.name for entry in found[:2]] == ["mine", "theirs"]
    assert found[0].variants == ["long"]
    assert [entry.origin for entry in found[:3]] == ["yours", "yours", "shipped"]
    assert "simulator" in {entry.name for entry in found[2:]}
    assert all(entry.profile is not None for entry in found)


def test_each_file_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_file_that_is_no_profile_says_why(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "faulty.toml").write_text(text)
    entry = next(entry for entry in entries() if entry.path.name == "faulty.toml")
    assert entry.profile is None and words in entry.problem
    assert entry.name == "faulty"


def test_a_shipped_file_is_known_by_whatever_path(tmp_path: Path) -> None:
    shipped = next(path for place in SHIPPED_FOLDERS for path in place.glob("simulator.toml"))
    (tmp_path / "link.toml").symlink_to(shipped)
    assert origin_of(shipped) == origin_of(tmp_path / "link.toml") == "shipped"
    assert origin_of(tmp_path / "new.toml") == "yours"
    assert entry_of(shipped).origin == "shipped"


@pytest.fixture(autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /etc/vramp/profiles.d, which only root may fill, and which may have profiles here."""
    there = tmp_path_factory.mktemp("profiles.d")
    folders = [(there if origin == "site" else place, origin) for place, origin in PROFILE_FOLDERS]
    monkeypatch.setattr("tui.catalog.PROFILE_FOLDERS", tuple(folders))
    return there


def test_the_profiles_of_the_machine_come_between_the_own_and_the_shipped(tmp_path: Path, site: Path) -> None:
    for name in ("simulator", "of-the-box"):
        (site / f"{name}.toml").write_text(GOOD)
    (tmp_path / "mine.toml").write_text(GOOD)
    origins = [entry.origin for entry in entries()]
    assert origins[:4] == ["yours", "site", "site", "shipped"]
    assert find_profile("simulator") == site / "simulator.toml"
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "simulator.toml").write_text(GOOD)
    assert find_profile("simulator") == Path("profiles/simulator.toml")
    assert find_profile("of-the-box") == site / "of-the-box.toml"


def test_nothing_in_the_folder_of_the_machine_can_break_the_list(site: Path) -> None:
    os.mkfifo(site / "pipe.toml")
    (site / "endless.toml").symlink_to("/dev/zero")
    (site / "folder.toml").mkdir()
    (site / "loop.toml").symlink_to("loop.toml")
    (site / "bytes.toml").write_bytes(b"\xff\xfe")
    (site / "deep.toml").write_text("server = " + "[" * 50_000)
    (site / "tables.toml").write_text("[" + ".".join("a" * 5000) + "]\nb = 1\n")
    (site / "\x1b[31mred.toml").write_text("[server")
    with (site / "huge.toml").open("wb") as huge:
        huge.truncate(5 << 20)
    found = {entry.path.name: entry for entry in entries() if entry.origin == "site"}
    assert found.keys() == {"bytes.toml", "deep.toml", "tables.toml", "\x1b[31mred.toml", "huge.toml"}
    assert all(entry.profile is None and entry.problem for entry in found.values())
    for no_file in ("pipe", "endless", "folder", "loop"):
        assert find_profile(no_file) == Path(no_file)


def test_a_problem_is_shown_without_the_secret_in_the_value(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f'{GOOD}[server.env]\nMY_TOKEN = ["of-nobody-else"]\n')
    problem = entry_of(tmp_path / "mine.toml").problem
    assert "server.env.MY_TOKEN" in problem and "of-nobody-else" not in problem


@pytest.mark.parametrize("name", ["x" * 300, "far/x"])
def test_an_impossible_name_is_an_error_when_the_profile_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "far").symlink_to("x" * 300)  # like a folder that may not be entered, for root too
    with pytest.raises(ProfileError, match=f"{name}: cannot be read: File name too long"):
        load_document(find_profile(name))


def test_the_newest_run_of_a_profile_counts_whatever_its_variant() -> None:
    names = ["20260103T000000Z-a+fast", "20260102T000000Z-a", "20260101T000000Z-b-2", "odd"]
    newest = newest_by_profile(Path(name) for name in names)
    assert newest["a"].name == names[0]
    assert newest["b"].name == newest["b-2"].name == names[2]
    assert profile_of("odd") == "odd"


def test_a_run_has_its_best_stage(tmp_path: Path) -> None:
    run = past_run(leave_run(tmp_path))
    assert (run.profile, run.state) == ("mine", "complete")
    assert run.started is not None and run.started.year == 2026
    assert run.load == "conc 4" and run.output_tokens_per_s


def test_a_run_without_its_result_was_killed_or_goes_on(tmp_path: Path) -> None:
    left = leave_run(tmp_path)
    (left / RESULT).unlink()
    assert past_run(left).state == "killed"
    with (left / JOURNAL).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert past_run(left).state == "goes on"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"state": 3}', b"\xff\xfe"])
def test_a_damaged_result_is_unreadable(tmp_path: Path, content: bytes) -> None:
    left = tmp_path / "runs" / "20260101T000000Z-x"
    left.mkdir(parents=True)
    (left / RESULT).write_bytes(content)
    assert run_folders() == [Path("runs") / left.name]
    run = past_run(left)
    assert run.state == "unreadable" and not run.load
