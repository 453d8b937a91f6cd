"""The editor: problems as one types, names that are refused or asked about, and files that are whole."""

from pathlib import Path

import pytest
from textual.widgets import Input, TextArea

from tests.tui.past_runs import TOML
from tests.tui.screens.test_picker import Desk, desk
from tui.cli.options import find_profile
from tui.screens.editor import EditorScreen, proposed_path, write_whole
from tui.screens.picker import PickerScreen


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(TOML)
    return tmp_path


async def editing(seat: Desk) -> TextArea:
    await seat.press("e")
    await seat.on(EditorScreen)
    await seat.sees("a profile; every variant of it too")
    return seat.app.screen.query_one(TextArea)


async def save_as(seat: Desk, name: str) -> None:
    await seat.press("ctrl+s")
    await seat.sees("Save as")
    seat.app.screen.query_one(Input).value = name
    await seat.press("enter")


async def test_a_problem_shows_with_its_line_and_goes(folder: Path) -> None:
    async with desk() as seat:
        area = await editing(seat)
        area.text = TOML.replace("isl", "islx")
        await seat.sees("line 6: load.islx: unknown key; did you mean load.isl?")
        await seat.press("ctrl+r")
        assert isinstance(seat.app.screen, EditorScreen)
        area.text = TOML
        await seat.sees("a profile; every variant of it too")


async def test_it_starts_what_was_typed_without_saving(folder: Path) -> None:
    async with desk() as seat:
        area = await editing(seat)
        area.text = TOML.replace("isl = 16", "isl = 17")
        await seat.press("ctrl+r")
        await seat.until(lambda: bool(seat.chosen))
        assert seat.chosen[0].document["load"]["isl"] == 17
        assert (folder / "mine.toml").read_text() == TOML


async def test_saving_under_names(folder: Path) -> None:
    (folder / "other.toml").write_text("keep me")
    async with desk() as seat:
        area = await editing(seat)
        area.text = TOML + "# changed\n"
        await save_as(seat, str(find_profile("simulator")))
        await seat.sees("came with")
        await save_as(seat, "other.toml")
        await seat.sees("is there already")
        await seat.press("enter")
        assert (folder / "other.toml").read_text() == "keep me"
        await save_as(seat, "new")
        await seat.sees("Saved: new.toml")
        assert (folder / "new.toml").read_text() == area.text
        await seat.press("escape")
        await seat.on(PickerScreen)
        await seat.sees(" new ")


async def test_changes_are_not_thrown_away_unasked() -> None:
    async with desk() as seat:
        area = await editing(seat)
        area.text = "x"
        await seat.press("escape")
        await seat.sees("The changes are not saved")
        await seat.press("enter")
        assert isinstance(seat.app.screen, EditorScreen)
        await seat.press("escape", "down", "enter")
        await seat.on(PickerScreen)


def test_the_proposed_name_is_never_a_shipped_one(folder: Path) -> None:
    assert proposed_path(Path("mine.toml")) == Path("mine.toml")
    assert proposed_path(find_profile("simulator")) == Path("my-simulator.toml")
    (folder / "profiles").mkdir()
    assert proposed_path(find_profile("simulator")) == Path("profiles/my-simulator.toml")


def test_a_file_is_written_whole_or_not_at_all(folder: Path) -> None:
    path = folder / "mine.toml"
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "first half \ud800")
    assert path.read_text() == TOML
    assert [entry.name for entry in folder.iterdir()] == ["mine.toml"]
