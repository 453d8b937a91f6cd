import stat
from pathlib import Path

import pytest

from loadgen.places import cache_folder, state_folder


def test_the_folders_follow_the_xdg_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    assert cache_folder("vllm") == tmp_path / "c/vramp/vllm"
    assert state_folder("servers") == tmp_path / "s/vramp/servers"


@pytest.mark.parametrize("value", [None, "", "relative"])
def test_without_a_usable_variable_they_are_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert cache_folder("x") == tmp_path / ".cache/vramp/x"
    assert state_folder("y") == tmp_path / ".local/state/vramp/y"


def test_a_cache_that_cannot_be_costs_nothing_but_state_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/c")
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/s")
    assert not cache_folder("vllm").exists()
    with pytest.raises(OSError, match="/dev/null"):
        state_folder("servers")


def test_they_are_for_the_owner_only_and_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = state_folder("servers")
    (folder / "kept").touch()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (state_folder("servers") / "kept").exists()
