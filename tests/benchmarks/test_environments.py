"""Programs of other projects: kept once installed, or a reason in one line."""

from pathlib import Path

import pytest

from benchmarks.environments import install, last_reason, on_path


def test_a_package_that_is_not_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    said = install("no-such-load-generator==1.0", "nothing")
    assert str(said).startswith("cannot be installed: cause: Because no-such-load-generator was not found in ")


def test_what_is_installed_is_not_installed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "vramp/peers/no-such-load-generator-1.0"
    folder.mkdir(parents=True)
    (folder / ".complete").touch()
    assert install("no-such-load-generator==1.0", "nothing") == folder / "bin/nothing"


def test_a_program_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert on_path("load", "it is not there") == "it is not there"
    (tmp_path / "load").write_text("#!/bin/sh\n")
    (tmp_path / "load").chmod(0o755)
    assert on_path("load", "it is not there") == tmp_path / "load"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("WARNING: retrying\nERROR: No matching distribution\n", "ERROR: No matching distribution"),
        ("ERROR: first\nERROR: last\nsee the log\n", "ERROR: last"),
        ("Traceback:\n  File\nValueError: bad port\n", "ValueError: bad port"),
        ("ERROR: 403 for https://user:key@registry.example/simple/x/ of me", "ERROR: 403 for *** of me"),
        ("Pool(host='registry.example', port=443): no route", "Pool(***, port=443): no route"),
        ("error: no space left in /home/me/.cache/vramp", "error: no space left in ***"),
        ("│ Error: the server is gone │", "Error: the server is gone"),
        ("it just stopped\n\n", "it just stopped"),
        ("", "it said nothing"),
    ],
)  # fmt: skip
def test_the_reason_is_one_line_without_addresses(said: str, reason: str) -> None:
    assert last_reason(said) == reason
