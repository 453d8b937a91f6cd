import os
import re
import stat
from pathlib import Path

import pytest

from loadgen.places import cache_folder, expanded, state_folder, write_named, write_whole


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


@pytest.mark.parametrize("part", ["", "vramp", "vramp/servers", "vramp/servers/here"])
def test_a_folder_that_others_can_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    state_folder("servers/here")
    folder = tmp_path / "s" / part
    folder.chmod(0o777)
    mends = f"chmod {'go-w' if part else 'o-w'} {folder}"
    with pytest.raises(PermissionError, match=re.escape(mends)):
        state_folder("servers/here")
    os.system(mends)
    assert state_folder("servers/here").is_dir()


def test_a_folder_of_everybody_where_nobody_moves_what_is_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert stat.S_IMODE(state_folder("servers").parent.stat().st_mode) == 0o700


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state_folder("servers")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)  # only root could give a folder to somebody else
    with pytest.raises(PermissionError, match=f"belongs to another user, {owner}"):
        state_folder("servers")


def test_home_folders_are_known_by_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/who")
    assert expanded("~/model") == "/home/who/model"
    assert expanded("a~/model") == "a~/model"
    assert expanded("~nobody here/model") == "~nobody here/model"


def test_a_pipe_and_a_link_to_a_device_take_what_is_written_and_stay(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to(os.devnull)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for name in ("pipe", "null"):
        write_named(tmp_path / name, b"figures")
    assert os.read(reader, 100) == b"figures"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "null").is_char_device()


def test_a_name_of_an_open_file_adds_to_it(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        log.write(b"before ")
        log.flush()
        write_named(Path(f"/proc/self/fd/{log.fileno()}"), b"figures")
    assert (tmp_path / "log").read_bytes() == b"before figures"


def test_a_file_is_replaced_with_its_mode_and_a_link_to_one_too(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", b"old")
    (tmp_path / "link").symlink_to("file")
    write_named(tmp_path / "link", b"new")
    assert not (tmp_path / "link").is_symlink()
    assert stat.S_IMODE((tmp_path / "link").stat().st_mode) == 0o600
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_name_may_be_as_long_as_the_disk_takes(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write_whole(path, b"figures")
    assert path.read_bytes() == b"figures"
