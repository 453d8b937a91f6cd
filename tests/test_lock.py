"""The locks: complete, pinned by hashes, and audited by `make check`."""

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
_FETCHES = re.compile(r"(?:pip|pipx|uv tool) install (?!.*--no-index)(?:-\S+ )*['\"]?vramp\b(?!-)")


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    """The script, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("lock", ROOT / ".ci" / "lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lock"] = module
    spec.loader.exec_module(module)
    return module


def test_the_locks_cover_the_requirements_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    shipped = [line for name in ("web", "parquet", "cluster", "build") for line in extras[name]]
    for name, lines in {
        "requirements.lock": project["dependencies"] + shipped,
        "requirements-dev.lock": extras["dev"],
    }.items():
        text = (ROOT / name).read_text()
        pins = re.findall(r"(?m)^([\w.-]+)==(\S+)", text)
        for requirement in map(Requirement, lines):
            assert requirement.specifier.contains(dict(pins)[requirement.name.lower()]), requirement
        assert len(re.findall(r"(?m)^[\w.-]+==.*\\\n +--hash=sha256:", text)) == len(pins)


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


def test_no_message_names_an_unowned_package() -> None:
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
