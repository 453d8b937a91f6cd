"""The check of requirements.lock, which `make check` makes."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

_HASH = "--hash=sha256:" + "0" * 64


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    """The script, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("lock", Path(__file__).parents[1] / ".ci" / "lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lock"] = module
    spec.loader.exec_module(module)
    return module


def told(lock: ModuleType, folder: Path, text: str, *asked: str) -> list[str]:
    path = folder / "requirements.lock"
    path.write_text(text.replace("HASH", _HASH))
    return list(lock.problems(lock.read_lock(path), [Requirement(each) for each in asked]))


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
    found = told(lock, tmp_path, text, "brittle>=2")
    assert found == [] if problem is None else any(line.endswith(problem) for line in found)


def test_the_lock_covers_what_the_project_asks_for(lock: ModuleType) -> None:
    """Of the environment nothing is asked here: that is `make check`."""
    pins = {pin.name: pin for pin in lock.read_lock()}
    for requirement in lock.own_requirements():
        assert requirement.specifier.contains(pins[requirement.name.lower()].version), requirement
    assert all(pin.hashes for pin in pins.values())


@pytest.mark.parametrize(
    ("raised", "told", "failed"),
    [
        ("__import__('requests').exceptions.ConnectionError('no name')", "cannot be reached from here", False),
        ("ImportError('half installed')", "pip-audit failed: ImportError: half installed", True),
    ],
)
def test_an_audit_that_is_broken_is_no_missing_network(
    lock: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str, told: str, failed: bool
) -> None:
    (tmp_path / "pip_audit.py").write_text(f"raise {raised}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    line, is_failure = lock.audit()
    assert line.endswith(told)
    assert is_failure is failed
