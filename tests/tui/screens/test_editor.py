"""The editor: problems as one types, names that are refused or asked about, and files that are whole."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.widgets import Input, TextArea

from tests.tui.past_runs import TOML
from tests.tui.screens.test_picker import Desk, desk
from tui.catalog import find_profile
from tui.screens.editor import EditorScreen, check_text, line_of, proposed_path
from tui.screens.picker import PickerScreen


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(TOML)
    return tmp_path


async def editing(seat: Desk) -> TextArea:
    await seat.press("e")
    await seat.on(EditorScreen)
    await seat.sees("valid, with each of its variants")
    return seat.app.screen.query_one(TextArea)


async def save_as(seat: Desk, name: str) -> None:
    await seat.press("ctrl+s")
    await seat.sees("Save as")
    seat.app.screen.query_one(Input).value = name
    await seat.press("enter")


async def test_a_text_with_a_problem_is_not_started(folder: Path) -> None:
    async with desk() as seat:
        area = await editing(seat)
        area.text = TOML.replace("isl", "islx")
        await seat.sees("line 6: load.islx: unknown key; did you mean load.isl?")
        await seat.press("ctrl+r")
        assert isinstance(seat.app.screen, EditorScreen)
        area.text = TOML.replace("isl = 16", "isl = 17")
        await seat.sees("valid, with each of its variants")
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
        await seat.sees("shipped")
        await save_as(seat, "other.toml")
        await seat.sees("already exists")
        await seat.press("enter")
        assert (folder / "other.toml").read_text() == "keep me"
        await save_as(seat, "new")
        await seat.sees("Saved: new.toml")
        assert (folder / "new.toml").read_text() == area.text
        # One that holds a key is its owner's alone, and stays so.
        (folder / "new.toml").chmod(0o600)
        first = (folder / "new.toml").stat().st_ino
        await save_as(seat, "new")
        await seat.until(lambda: (folder / "new.toml").stat().st_ino != first)
        assert (folder / "new.toml").stat().st_mode & 0o777 == 0o600
        await seat.press("escape")
        await seat.on(PickerScreen)
        await seat.sees(" new ")


async def test_an_impossible_name_loses_nothing(folder: Path) -> None:
    (folder / "far").symlink_to("x" * 300)  # like a folder that may not be entered, for root too
    async with desk() as seat:
        area = await editing(seat)
        area.text = TOML + "# changed\n"
        for name, words in (
            ("~nosuch/x", "~nosuch/x: a folder, or"),
            (".", ".: a folder, or"),
            ("/", " /: a folder, or"),
            ("far/x", "far/x.toml: cannot be written: File "),
        ):
            await save_as(seat, name)
            await seat.sees(words)
            assert area.is_attached and area.text == TOML + "# changed\n"


async def test_a_file_whose_name_has_a_blank_is_a_profile_here_too(folder: Path) -> None:
    (folder / "a profile.toml").write_text(TOML)
    async with desk() as seat:
        await seat.press("e")
        await seat.on(EditorScreen)
        await seat.sees("valid, with each of its variants")
        await seat.press("ctrl+r")
        await seat.until(lambda: bool(seat.chosen))
        assert seat.chosen[0].document["name"] == "a-profile"


async def test_changes_are_discarded_only_after_a_question() -> None:
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


# What is wrong with a text, and on which line.

TEXT = """\
# a profile
[server]
engine = "simulator"
args = { preset = "fast" }

[load]
isl = 16
  "osl" = 8

[[stages]]
concurrency = 1
[[stages]] # the second
concurrency = 2

[variants.slow]
load.isl = 32
[variants.slow.server.args]
seed = 3
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("server", 2),
        ("server.engine", 3),
        ("server.args.preset", 4),
        ("server.model", 2),
        ("load.isl", 7),
        ("load.osl", 8),
        ("stages.0.concurrency", 11),
        ("stages.1.concurrency", 13),
        ("stages.1.rate", 12),
        ("variants.slow.load.isl", 16),
        ("variants.slow.server.args.seed", 18),
        ("plan", None),
    ],
)
def test_a_key_is_found_on_its_line(key: str, line: int | None) -> None:
    assert line_of(TEXT, key.split(".")) == line


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("isl = 16", "islx = 16"), 7, "load.islx: unknown key; did you mean load.isl?"),
        (("isl = 16", "isl = -1"), 7, "load.isl"),
        (('"simulator"', '"simulatr"'), 3, "server.engine = 'simulatr'"),
        (('"simulator"', "simulator"), 3, "Invalid value"),
        (("concurrency = 2", "rate = 1\nconcurrency = 2"), 12, "not both"),
        (("load.isl = 32", "load.isl = -32"), 16, "variant slow: load.isl"),
        (('engine = "simulator"\n', ""), 2, "server.engine: is missing"),
        (("[load]\n", "[load]\npasses = 2\n[plan]\nsearch = 'knee'\n[load2]\n"), None, "load2"),
    ],
)
def test_a_problem_has_words_and_a_line(change: tuple[str, str], line: int | None, words: str) -> None:
    assert change[0] in TEXT
    _, problems = check_text(TEXT.replace(*change), "x")
    (problem,) = problems  # and not again for each variant
    assert words in problem[0] and problem[1] == (line or problem[1])
    document, problems = check_text(TEXT, "good")
    assert document["name"] == "good" and problems == []


@given(st.text(alphabet=st.sampled_from("[]{}=.\"'#\n abcserver12"), max_size=200) | st.text(max_size=50))
def test_any_text_is_a_profile_or_has_problems(text: str) -> None:
    document, problems = check_text(text, "x")
    assert document or problems
    lines = max(1, len(text.splitlines()))
    assert all(line is None or 1 <= line <= lines + 1 for _, line in problems)


SECRETS = st.from_regex(r"[a-zA-Z0-9]{12,20}", fullmatch=True)
QUOTING = (
    '[server]\nurl = "ftp://me:{}@host"',
    '[server]\nengine = "attach"\nurl = "http://host:x/v1?api_key={}"',
    '[server]\nengine = "attach"\nurls = ["http://a:1", "ftp://b?token={}"]',
    '[server.env]\nMY_TOKEN = ["{}"]',
    '[server]\nargs = 3\n[variants.slow.server.env]\nHF_TOKEN = {{ a = "{}" }}',
    '[load.headers.static]\nAuthorization = ["Bearer {}"]',
    '[[server.api_key]]\nkey = "{}"',
    'api_key = "{}"\napi_key = "{}',
)


@given(SECRETS, st.sampled_from(QUOTING))
def test_no_problem_quotes_a_secret(secret: str, text: str) -> None:
    _, problems = check_text(text.format(secret, secret), "x")
    assert problems
    assert not any(secret in words for words, _ in problems)


KEYS = st.from_regex(r"[a-z][a-z0-9_-]{0,5}", fullmatch=True)


@given(st.dictionaries(KEYS, st.dictionaries(KEYS, st.integers(), min_size=1, max_size=4), min_size=1, max_size=4))
def test_every_key_of_every_table_is_found(tables: dict[str, dict[str, int]]) -> None:
    lines = []
    for table, values in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {value}" for key, value in values.items()]
    text = "\n".join(lines)
    assert tomllib.loads(text) == tables
    for table, values in tables.items():
        for key, value in values.items():
            line = line_of(text, [table, key])
            assert line is not None and lines[line - 1] == f"{key} = {value}"
