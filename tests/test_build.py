"""The version with its commit: from the note of a wheel, or from git; git is a script here, so that none is needed."""

import json
from pathlib import Path

import pytest

import loadgen
from loadgen import build
from loadgen.build import Build, from_git, this_build, version_words


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "loadgen"
    folder.mkdir()
    return folder


def install_git(folder: Path, monkeypatch: pytest.MonkeyPatch, *, status: str = "", code: int = 0) -> None:
    script = folder / "git"
    said = f'case "$*" in *show*) echo 98fe7ef 2026-11-23;; *) printf "{status}";; esac'
    script.write_text(f"#!/bin/sh\n{said}\nexit {code}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.parametrize(("status", "modified"), [("", False), (" M loadgen/x.py\\n", True)])
def test_a_checkout_is_asked_of_git(
    package: Path, monkeypatch: pytest.MonkeyPatch, status: str, modified: bool
) -> None:
    (package.parent / ".git").mkdir()
    install_git(package.parent, monkeypatch, status=status)
    assert this_build(package) == Build("98fe7ef", "2026-11-23", modified)


def test_a_wheel_has_its_note_and_asks_nobody(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package.parent / ".git").mkdir()
    install_git(package.parent, monkeypatch, status=" M x")
    noted = Build("0123456", "2026-01-02", modified=False)
    (package / build.NOTE).write_text(json.dumps(noted._asdict()))
    assert this_build(package) == noted


@pytest.mark.parametrize("note", ["", "{", "[]", '{"commit": "a"}', '{"commit": "a", "date": "b", "more": 1}'])
def test_a_note_that_says_nothing_and_no_git(package: Path, monkeypatch: pytest.MonkeyPatch, note: str) -> None:
    (package / build.NOTE).write_text(note)
    monkeypatch.setenv("PATH", "/nowhere")
    assert this_build(package) is None


def test_a_repository_that_git_refuses(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package.parent / ".git").mkdir()
    install_git(package.parent, monkeypatch, code=128)
    assert from_git(package.parent) is None


def test_build_ignores_a_surrounding_repository(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_git(package.parent, monkeypatch)
    assert this_build(package) is None


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (None, ""),
        (Build("98fe7ef", "2026-11-23", modified=False), " (98fe7ef)"),
        (Build("98fe7ef", "2026-11-23", modified=True), " (98fe7ef, modified)"),
    ],
)
def test_the_words_of_a_version(monkeypatch: pytest.MonkeyPatch, known: Build | None, words: str) -> None:
    monkeypatch.setattr(build, "this_build", lambda: known)
    assert version_words() == loadgen.__version__ + words
