"""The operator's settings: taken whole, or refused with words that name file, key and value."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError
from loadgen.run.operations import Pause
from tests.tui.cockpit import seated
from tests.tui.scripted import running
from tui.config import DEFAULTS, Config, config_path, read_config


def config(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return read_config(path)


def test_without_a_file_there_are_defaults(tmp_path: Path) -> None:
    assert read_config(tmp_path / "none.toml") == DEFAULTS


def test_the_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_path() == tmp_path / "vramp" / "config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert config_path() == Path.home() / ".config" / "vramp" / "config.toml"


def test_theme_and_keys_are_taken(tmp_path: Path) -> None:
    found = config(tmp_path, 'theme = "nord"\n[keys]\n"cockpit.more" = "ctrl+k, right"\n"picker.start" = "s"\n')
    assert found.theme == "nord"
    assert found.keys == {"cockpit.more": "ctrl+k, right", "picker.start": "s"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("theme = ", "cannot be read"),
        ("colour = 1", "colour: unknown key"),
        ('theme = "no such"', "unknown theme; known themes: vramp"),
        ("keys = 3", "expected a table"),
        ('[keys]\n"cockpit.mroe" = "a"', "did you mean cockpit.more?"),
        ('[keys]\n"cockpit.more" = 3', "not a key"),
        ('[keys]\n"cockpit.more" = "crtl+x"', "not a key"),
        ('[keys]\n"cockpit.more" = ""', "not a key"),
        ('[keys]\n"cockpit.more" = "m"', "m is already the key of cockpit.note; move that too"),
        ('[keys]\n"cockpit.window" = "f"', "f is already the key of log.follow; move that too"),
        ('[keys]\n"log.up" = "k"', "k is already the key of cockpit.search; move that too"),
        ('[keys]\n"cockpit.note" = "up"\n"cockpit.more_too" = "="', "up is already the key of log.up; move that too"),
        ('[keys]\n"cockpit.note" = "a, ctrl+c"', "ctrl+c is reserved for finish; choose another"),
        ('[keys]\n"picker.edit" = "ctrl+q"', "ctrl+q is reserved for quit"),
        ('[keys]\n"editor.save" = "ctrl+p"', "ctrl+p is reserved for palette"),
    ],
)
def test_a_mistake_is_reported_in_words(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ProfileError) as error:
        config(tmp_path, text)
    assert words in str(error.value) and str(tmp_path / "config.toml") in str(error.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"cockpit.note": "n", "cockpit.number": "m"},  # change places
        {"cockpit.more_too": "up", "log.down": "down, j"},  # the log shares the arrows by default
    ],
)
def test_keys_that_do_not_clash_are_accepted(tmp_path: Path, keys: dict[str, str]) -> None:
    rows = [f'"{name}" = "{key}"' for name, key in keys.items()]
    assert config(tmp_path, "\n".join(["[keys]", *rows])).keys == keys


@given(st.text())
def test_any_text_is_a_config_or_an_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        read_config(path)
    except ProfileError as error:
        assert str(path) in str(error)


async def test_the_app_takes_keys_and_theme() -> None:
    async with seated(config=Config("nord", {"cockpit.pause": "ctrl+k"})) as seat:
        await seat.show(running())
        await seat.press("space")
        assert seat.calls == []
        await seat.press("ctrl+k")
        assert seat.calls == [Pause()]
        assert seat.app.theme == "nord"
        assert "pause (ctrl+k)" in {command.title for command in seat.app.get_system_commands(seat.app.screen)}
