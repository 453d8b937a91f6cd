"""The check of requirements.lock, which `make check` makes."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
_FETCHES = re.compile(r"(?:pip|pipx|uv tool) install (?!.*--no-index)(?:-\S+ )*['\"]?vramp\b(?!-)")
_HASH = "--hash=sha256:" + "0" * 64


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    """The script, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("lock", ROOT / ".ci" / "lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lock"] = module
    spec.loader.exec_module(module)
    return module


def reported(lock: ModuleType, folder: Path, text: str, *requested: str) -> list[str]:
    path = folder / "requirements.lock"
    path.write_text(text.replace("HASH", _HASH))
    return list(lock.problems(path, [Requirement(each) for each in requested]))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package `brittle` 2.0 that needs `firm`, which is there too."""
    for name, needs in {"brittle-2.0": "Requires-Dist: firm>=1.5\n", "firm-1.5": ""}.items():
        folder = tmp_path / "site" / f"{name}.dist-info"
        folder.mkdir(parents=True)
        package, _, version = name.partition("-")
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n{needs}")
    monkeypatch.syspath_prepend(tmp_path / "site")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# a comment\nbrittle==2.0 \\\n    HASH \\\n    HASH\n    # via vramp\nfirm==1.5 HASH\n", None),
        ("brittle==2.0 HASH\nfirm==1.5\n", "firm has no hash"),
        ("brittle==2.0 HASH\n", "firm is missing, which brittle 2.0 needs"),
        ("brittle==1.9 HASH\nfirm==1.5 HASH\n", "brittle 1.9, but pyproject.toml needs >=2"),
        ("brittle==2.0 HASH\nfirm==1.4 HASH\n", "firm 1.4, but brittle 2.0 needs >=1.5"),
        ("brittle==2.1 HASH\nfirm==1.5 HASH\n", "brittle 2.0, but requirements.lock has 2.1"),
        ("brittle==2.0 HASH\nfirm==1.5 HASH\nabsent==1 HASH\n", "absent not at all, but requirements.lock has 1"),
        ("brittle==2.0 HASH\nfirm==1.5 HASH\nold==1 ; python_version < '3' HASH\n", None),
    ],
)
def test_what_does_not_agree_is_a_line(lock: ModuleType, tmp_path: Path, text: str, problem: str | None) -> None:
    found = reported(lock, tmp_path, text, "brittle>=2")
    assert found == [] if problem is None else any(line.endswith(problem) for line in found)


def test_the_lock_covers_what_the_project_asks_for(lock: ModuleType) -> None:
    """Of the environment nothing is asked here: that is `make check`."""
    for path, extras in ((lock.LOCK, lock.EXTRAS), (lock.DEV_LOCK, ("dev",))):
        pins = {pin.name: pin for pin in lock.read_lock(path)}
        for requirement in lock.own_requirements(*extras):
            assert requirement.specifier.contains(pins[requirement.name.lower()].version), requirement
        assert all(pin.hashes for pin in pins.values())


@pytest.mark.parametrize(
    "name", ["Makefile", "Containerfile", "README.md", "docs/index.md", "docs/install.md", "docs/cluster.md"]
)
def test_whatever_is_installed_is_pinned_by_a_hash(name: str) -> None:
    commands = re.findall(r"(?m)^[^#\n]*(?:pip install|PIP_INSTALL\)) ((?:[^#&\n]|\\\n)*)", (ROOT / name).read_text())
    assert commands
    assert [
        words
        for words in commands
        if not re.search("--require-hashes|--no-deps|--no-index|lowest|^--quiet --disable-pip-version-check$", words)
    ] == []


def test_nobody_is_told_to_fetch_a_name_that_nobody_owns() -> None:
    """Nobody owns `vramp` on a package index: whoever takes it would be installed."""
    files = [
        path
        for folder in ("loadgen", "tui", "docs")
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".md", ".1")
    ]
    texts = {path: path.read_text() for path in (*files, ROOT / "README.md", ROOT / "CHANGELOG.md")}
    found = [path for path, text in texts.items() for line in text.splitlines() if _FETCHES.search(line)]
    assert found == []


def test_the_base_image_is_pinned_by_its_digest() -> None:
    (base,) = re.findall(r"(?m)^ARG BASE=(.*)$", (ROOT / "Containerfile").read_text())
    assert re.fullmatch(r"docker\.io/library/python:[\w.-]+@sha256:[0-9a-f]{64}", base)


@pytest.mark.parametrize(
    ("raised", "reported", "failed"),
    [
        ("__import__('requests').exceptions.ConnectionError('no name')", "cannot be reached from here", False),
        ("ImportError('half installed')", "pip-audit failed: ImportError: half installed", True),
    ],
)
def test_an_audit_that_is_broken_is_no_missing_network(
    lock: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str, reported: str, failed: bool
) -> None:
    (tmp_path / "pip_audit.py").write_text(f"raise {raised}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    line, is_failure = lock.audit()
    assert line.endswith(reported)
    assert is_failure is failed
