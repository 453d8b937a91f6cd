"""The picker: choosing, attaching, starting, going back, and replaying past runs."""

import argparse
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from textual.events import Key, Resize
from textual.geometry import Size
from textual.widgets import Input, Static

from loadgen.errors import ProfileError
from loadgen.format import harmless
from loadgen.profile.schema import Profile
from loadgen.report.history import Run as ListedRun
from loadgen.report.history import runs_listed
from loadgen.run.operations import Stop
from loadgen.run.run import Run
from loadgen.schema.finding import Finding
from loadgen.schema.result import RESULT
from loadgen.store.index import Read
from tests.engines import simulator
from tests.tui.cockpit import Seat
from tests.tui.past_runs import TOML, leave_run
from tui.app import Cockpit
from tui.catalog import StartChoice
from tui.cli.headless import make_run
from tui.cli.options import add_run_options
from tui.config import DEFAULTS, Config
from tui.screens.cockpit import CockpitScreen
from tui.screens.dialogs import AskText
from tui.screens.editor import EditorScreen
from tui.screens.past_runs import PastScreen
from tui.screens.picker import PickerScreen
from tui.widgets.rows_widgets import RowList

FINDINGS = [
    Finding("port-taken", "blocks", "port 8000 is taken", "the server could not listen", "vramp stop 8000"),
    Finding("slow-disk", "warns", "the disk is slow", "the start takes long"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.toml").write_text(TOML + "[variants.long]\ndescription = 'more tokens'\nload = { osl = 32 }\n")

    async def found(profile: object, plan: object) -> list[Finding]:
        return FINDINGS

    monkeypatch.setattr("tui.screens.picker.check_profile", found)
    return tmp_path


def made(choice: StartChoice) -> Run:
    parser = argparse.ArgumentParser()
    add_run_options(parser)
    options = argparse.Namespace(**vars(parser.parse_args([])) | {"variant": choice.variant, "url": choice.url})
    return make_run(choice.document, choice.where, options, hold_open=True)


@dataclass
class Desk(Seat):
    """The app on its picker, and what was chosen there."""

    chosen: list[StartChoice] = field(default_factory=list)


@asynccontextmanager
async def desk(
    make: Callable[[StartChoice], Run] | None = None, size: tuple[int, int] = (160, 45), *, config: Config = DEFAULTS
) -> AsyncIterator[Desk]:
    chosen: list[StartChoice] = []

    def refuse(choice: StartChoice) -> Run:
        chosen.append(choice)
        raise ProfileError("runs: cannot be written: nothing was started")

    app = Cockpit(make_run=make or refuse, config=config)
    async with app.run_test(size=size, notifications=True) as pilot:
        seat = Desk(app, pilot, chosen=chosen)
        await seat.sees(" mine ")
        yield seat
        app.exit()
    await app.close_runs()


async def test_a_size_that_is_outdated_is_not_drawn() -> None:
    async with desk(size=(80, 24)) as seat:
        for rows in (25, 24):
            seat.app.screen.post_message(Resize(Size(80, rows), Size(80, rows)))
            seat.app.screen.post_message(Key("x", None))  # Textual merges sizes that follow each other
        await seat.pilot.pause()  # raises if the screen goes on drawing one after the other
        assert seat.app.screen.size == Size(80, 24)


async def test_no_text_of_a_message_or_a_question_reaches_the_terminal_raw() -> None:
    evil = "\x1b]0;t\x07\x1b[31mred\x9b2J\u202e<evil>"
    async with desk() as seat:
        seat.app.notify(evil, timeout=60, markup=False)
        await seat.sees("<evil>")
        await seat.app.push_screen(AskText(evil, str))
        await seat.pilot.pause()
        assert seat.text.count("<evil>") == 2 and harmless(seat.text) == seat.text


async def test_the_cursor_begins_on_the_profile_that_was_used_last() -> None:
    leave_run(Path())
    leave_run(Path(), "20990101T000000Z-simulator+fast")
    async with desk() as seat:
        assert str(seat.app.screen.query_one(RowList).highlighted_id).endswith("simulator.toml")
        await seat.press("home", "r")
        assert str(seat.app.screen.query_one(RowList).highlighted_id).endswith("mine.toml")


async def test_profiles_and_details_of_the_one_under_the_cursor_are_shown() -> None:
    leave_run(Path())
    async with desk() as seat:
        for size in ((160, 45), (120, 40), (80, 24)):
            await seat.pilot.resize_terminal(*size)
            await seat.until(lambda size=size: (len(seat.rows[0]), len(seat.rows)) == size)  # type: ignore[misc]
            await seat.sees(" tok/s  ")
            assert "yours" in seat.text and "shipped with vramp" in seat.text
            await seat.sees("2 stages: conc 1, 4")
            head, row = (next(line for line in seat.rows if word in line) for word in ("last run", " mine  "))
            assert row[head.index("last run") :].split()[1] == "tok/s"
            assert "as it is   or 1 other" in seat.text
            if size[1] > 30:
                await seat.sees("! 1 blocks, 1 warning")
                assert "→ vramp stop 8000" in seat.text


async def test_the_filter_narrows_as_one_types_and_goes_with_escape() -> None:
    async with desk() as seat:
        await seat.press("slash", *"llama2-7b")
        assert "mi210-llama2-7b" in seat.text and "mine " not in seat.text
        await seat.press("enter")
        await seat.sees("meta-llama/Llama-2-7b-hf")
        await seat.press("escape")
        await seat.sees(" mine ")
        await seat.press("slash", *"zzz")
        assert "nothing matches" in seat.text
        assert "preflight" not in seat.text  # no profile is shown there
        await seat.press("enter", "enter")
        assert seat.chosen == []


async def test_a_click_moves_and_a_double_click_starts_and_a_failed_start_is_reported() -> None:
    async with desk() as seat:
        row = next(y for y, line in enumerate(seat.rows) if " b200-gpt-oss-120b " in line)
        await seat.pilot.click(offset=(4, row))
        await seat.sees("b200-gpt-oss-120b.toml")
        assert seat.chosen == []
        await seat.pilot.click(offset=(4, row), times=2)
        await seat.until(lambda: bool(seat.chosen))
        assert [Path(choice.where).stem for choice in seat.chosen] == ["b200-gpt-oss-120b"]
        await seat.sees("nothing was started")
        assert isinstance(seat.app.screen, PickerScreen) and not seat.app.runs


async def test_a_profile_that_cannot_be_read_is_not_started(folder: Path) -> None:
    (folder / "a.toml").write_text('[server]\nengine = "vlm"\n')
    async with desk() as seat:
        await seat.sees("! not a profile")
        await seat.press("down")
        await seat.sees("server.engine")
        await seat.press("enter", "v", "u")
        assert seat.chosen == [] and isinstance(seat.app.screen, PickerScreen)


async def test_a_profile_that_was_changed_meanwhile_is_checked_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(profile: Profile, plan: object) -> list[Finding]:
        return [Finding("seen", "warns", f"prompts of {profile.load.isl}", "they are long", "shorten them")]

    monkeypatch.setattr("tui.screens.picker.check_profile", found)
    (folder / "mine.toml").write_text(TOML.replace("isl", "islx"))
    async with desk() as seat:
        await seat.press("home")
        await seat.sees("load.islx")
        (folder / "mine.toml").write_text(TOML.replace("isl = 16", "isl = 17"))
        await seat.press("r")
        await seat.sees("prompts of 17")
        await seat.press("e")
        await seat.on(EditorScreen)
        (folder / "mine.toml").write_text(TOML.replace("isl = 16", "isl = 18"))
        await seat.press("escape")
        await seat.sees("prompts of 18")


async def test_a_variant_is_chosen_and_started() -> None:
    async with desk() as seat:
        await seat.press("v")
        await seat.sees("more tokens")
        await seat.press("down", "enter")
        await seat.sees("variant    long")
        await seat.press("enter")
        assert seat.chosen[0].variant == "long"


async def test_attaching_asks_the_server_for_its_model() -> None:
    with simulator() as running:
        async with desk() as seat:
            await seat.press("u")
            field = seat.app.screen.query_one(Input)
            for url, words in (
                ("ftp://x", "url must look like http://host:port"),
                ("http://127.0.0.1:9", "nothing listens"),
                ("http://xn--:80", "http://xn--:80: no such host ("),
            ):
                field.value = url
                await seat.press("enter")
                await seat.sees(words)
            field.value = running.url.removeprefix("http://")
            await seat.press("enter")
            await seat.until(lambda: bool(seat.chosen))
            assert seat.chosen[0].url == running.url


@pytest.mark.parametrize("url", ["ftp://me:{}@x", "http://x:y/?api_key={}", "http://me:{}@ x", "x y?token={}"])
async def test_a_complaint_about_a_url_quotes_no_secret(url: str) -> None:
    async with desk() as seat:
        await seat.press("u")
        seat.app.screen.query_one(Input).value = url.format("hunter2-hunter2")
        await seat.press("enter")
        await seat.sees("! ")
        complaint = str(seat.app.screen.query_one("#complaint", Static).content)
        assert complaint.startswith("! ") and "hunter2" not in complaint


async def test_runs_one_after_another_and_back_to_the_list() -> None:
    async with desk(made) as seat:
        for count in (1, 2):
            await run_to_its_end(seat)
            await seat.press("b")
            await seat.on(PickerScreen)
            await seat.sees("just now")
            assert len(seat.app.runs) == count and len(seat.app.screen_stack) == 1
    assert all(run.result is not None and run.result.state == "complete" for run in seat.app.runs)


def cockpit_of(seat: Desk) -> CockpitScreen:
    assert isinstance(seat.app.screen, CockpitScreen)
    return seat.app.screen


async def run_to_its_end(seat: Desk) -> None:
    await seat.press("enter")
    await seat.on(CockpitScreen)
    screen = cockpit_of(seat)
    await seat.press("b")
    assert seat.app.screen is screen, "a live run is not left"
    await seat.until(lambda: screen.snapshot is not None and screen.snapshot.phase == "holding")
    seat.app.runs[-1].apply(Stop())
    await seat.until(lambda: screen.over)
    await seat.sees("vramp report runs/")


async def test_past_runs_have_a_trend_and_a_filter_and_are_seen_again(folder: Path) -> None:
    for day in (1, 2):
        leave_run(folder, f"2026010{day}T000000Z-mine")
    leave_run(folder, "broken").joinpath("journal.jsonl").unlink()
    (folder / "runs/broken" / RESULT).write_text("{")
    async with desk() as seat:
        await seat.press("p")
        await seat.sees("3 runs")
        await seat.sees("output tok/s ───")
        await seat.press("t")
        await seat.sees("TTFT p50, ms ───")
        await seat.sees("vramp compare OTHER runs/20260102T000000Z-mine")
        assert "conc 4" in seat.text and "complete" in seat.text
        await seat.press("enter")
        await seat.on(CockpitScreen)
        await seat.sees("REPLAY")
        await seat.press("b")
        await seat.on(PastScreen)
        await seat.press("slash", *"unread", "enter")
        await seat.sees("broken")
        await seat.until(lambda: len(seat.app.screen.query_one(RowList).options) == 1)
        await seat.press("escape")
        await seat.until(lambda: len(seat.app.screen.query_one(RowList).options) == 3)
        await seat.press("escape")
        await seat.on(PickerScreen)
        assert seat.app.runs == []


async def test_the_cursor_begins_on_the_newest_past_run_whichever_was_read_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = (leave_run(folder, f"2026010{day}T000000Z-mine") for day in (1, 2))
    is_shown = threading.Event()

    def listed(root: Path, *, details: bool, read: Read) -> list[ListedRun]:
        read(older.resolve())
        is_shown.wait(20)
        return runs_listed(root, details=details, read=read)

    monkeypatch.setattr("tui.screens.past_runs.runs_listed", listed)
    async with desk() as seat:
        await seat.press("p")
        await seat.sees(f"vramp compare OTHER runs/{older.name}")
        is_shown.set()
        await seat.sees(f"vramp compare OTHER runs/{newer.name}")


async def test_a_killed_run_is_recovered_first() -> None:
    left = leave_run(Path())
    (left / RESULT).unlink()
    async with desk() as seat:
        await seat.press("p")
        await seat.sees("killed")
        await seat.press("enter")
        await seat.sees("This run was killed")
        await seat.press("enter")
        await seat.on(CockpitScreen)
        assert (left / RESULT).is_file()


async def test_the_past_runs_name_the_keys_as_they_are_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.screens.past_runs._MAX_ROWS", 1)
    for day in (1, 2):
        leave_run(folder, f"2026010{day}T000000Z-mine")
    async with desk(config=Config(keys={"past.trend": "f6", "past.filter": "f7"})) as seat:
        await seat.press("p")
        await seat.sees("1 older ones: f7 filters them")
        await seat.sees("f6: another figure")


async def test_a_killed_run_names_the_key_that_recovers_it_as_it_is_bound(folder: Path) -> None:
    (leave_run(folder) / RESULT).unlink()
    async with desk(config=Config(keys={"past.open": "f5"})) as seat:
        await seat.press("p")
        await seat.sees("no result yet: f5 offers to recover it")
        await seat.press("f5")
        await seat.sees("This run was killed")


async def test_a_dialog_names_the_key_that_cancels_it() -> None:
    async with desk(config=Config(keys={"dialog.back": "f8"})) as seat:
        await seat.press("u")
        await seat.sees("Enter asks for its model, f8 cancels")
        await seat.press("f8")
        await seat.on(PickerScreen)


async def test_the_palette_has_the_actions_of_the_screen_and_q_leaves(folder: Path) -> None:
    async with desk() as seat:
        commands = {command.title: command for command in seat.app.get_system_commands(seat.app.screen)}
        assert {"attach (u)", "past runs (p)", "theme", "screenshot"} <= commands.keys()
        commands["screenshot"].callback()
        await seat.until(lambda: bool(list(folder.glob("*.svg"))))
        await seat.press("question_mark")
        await seat.sees("Choose the variant to start")
        await seat.press("escape", "q")
        assert seat.has_left()
