import os
import re
import stat
from pathlib import Path

import pytest

from loadgen.places import (
    cache_folder,
    expanded,
    open_private,
    require_own_folder,
    state_folder,
    trust_all_users,
    write_named,
    write_whole,
)


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


def test_unusable_cache_is_ignored_unusable_state_reported(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_sticky_shared_folder_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_pipe_and_device_link_are_written_in_place(tmp_path: Path) -> None:
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


def test_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
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


OTHER_USER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")


@as_root
def test_files_of_another_user_are_refused_unless_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, OTHER_USER, OTHER_USER)
    with pytest.raises(PermissionError, match=f"another user, {OTHER_USER}; --trust"):
        require_own_folder(theirs / "runs")
    monkeypatch.setenv("SUDO_UID", str(OTHER_USER))
    require_own_folder(theirs / "runs")
    monkeypatch.delenv("SUDO_UID")
    monkeypatch.setattr("loadgen.places._trusts_all_users", False)
    trust_all_users()
    require_own_folder(theirs / "runs")


@as_root
def test_link_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    require_own_folder(tmp_path / "link")
    os.chown(tmp_path / "link", OTHER_USER, OTHER_USER, follow_symlinks=False)
    with pytest.raises(PermissionError, match="another user"):
        require_own_folder(tmp_path / "link")


def test_folder_open_to_renames_is_refused(tmp_path: Path) -> None:
    require_own_folder(tmp_path / "missing")
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="everybody can write to it; chmod o-w"):
        require_own_folder(tmp_path / "missing")
    tmp_path.chmod(0o1777)
    require_own_folder(tmp_path / "missing")


def written(path: Path) -> None:
    with open(path, "ab", opener=open_private) as file:
        file.write(b"more\n")


def test_private_file_is_readable_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    written(path)
    written(path)
    assert path.read_text() == "more\nmore\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with open(path, "wb", opener=open_private):
        pass
    assert path.read_bytes() == b""


@pytest.mark.parametrize("trap", ["link", "dangling link", "second name", "pipe", "folder"])
def test_a_private_file_is_not_what_somebody_put_there(tmp_path: Path, trap: str) -> None:
    path, victim = tmp_path / "server.log", tmp_path / "victim"
    if trap != "dangling link":
        victim.write_text("as it was\n")
    if "link" in trap:
        path.symlink_to(victim)
    elif trap == "second name":
        path.hardlink_to(victim)
    elif trap == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(OSError):
        written(path)
    with pytest.raises(OSError):
        open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    assert not victim.exists() if trap == "dangling link" else victim.read_text() == "as it was\n"


@as_root
def test_a_private_file_is_not_another_users(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    written(path)
    os.chown(path, OTHER_USER, OTHER_USER)
    with pytest.raises(OSError, match="another user"):
        written(path)
