"""Which wrapper is tried with which library, in which order."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from loadgen.telemetry.amd.amdsmi_library import amdsmi_options
from loadgen.telemetry.backends import package_version


def add_rocm(folder: Path, version: str, *, wrapper: bool = True) -> Path:
    (folder / "lib").mkdir(parents=True)
    (folder / "lib/libamd_smi.so").touch()
    (folder / ".info").mkdir()
    (folder / ".info/version").write_text(f"{version}-12\n")
    if wrapper:
        (folder / "share/amd_smi/amdsmi").mkdir(parents=True)
    return folder


def names(root: Path, environ: Mapping[str, str] | None = None, packages: tuple[str, ...] = ()) -> list[str]:
    candidates = amdsmi_options(environ or {}, root, installed="7.0.2", packages=packages)
    return [candidate.name.replace(str(root), "") for candidate in candidates]


def test_without_rocm_only_the_installed_one_is_tried(tmp_path: Path) -> None:
    (candidate,) = amdsmi_options({}, tmp_path, installed="7.0.2", packages=())
    assert (candidate.name, candidate.env) == ("amdsmi 7.0.2", {})
    assert candidate.why == "the installed package, no ROCm was found"


def test_the_installed_one_goes_first_next_to_a_library_of_its_release(tmp_path: Path) -> None:
    add_rocm(tmp_path / "opt/rocm", "7.0.1")
    assert names(tmp_path) == ["amdsmi 7.0.2", "amdsmi of /opt/rocm"]


@pytest.mark.parametrize("version", ["6.4.1", "7.1.0", "10.0.0", ""])
def test_rocms_own_goes_first_if_its_version_differs_or_is_unknown(tmp_path: Path, version: str) -> None:
    add_rocm(tmp_path / "opt/rocm", version)
    assert names(tmp_path) == ["amdsmi of /opt/rocm", "amdsmi 7.0.2"]


def test_every_place_is_looked_at_the_newest_first_and_none_twice(tmp_path: Path) -> None:
    new = add_rocm(tmp_path / "opt/rocm-6.10.0", "6.10.0")
    add_rocm(tmp_path / "opt/rocm-6.4.1", "6.4.1")
    (tmp_path / "opt/rocm").symlink_to(new)
    add_rocm(tmp_path / "packages/_rocm_sdk_core", "7.13.0")
    named = add_rocm(tmp_path / "elsewhere", "6.3.0")
    assert names(tmp_path, {"ROCM_PATH": str(named)}, (str(tmp_path / "packages"),)) == [
        "amdsmi of /elsewhere",
        "amdsmi of /opt/rocm",
        "amdsmi of /opt/rocm-6.4.1",
        "amdsmi of /packages/_rocm_sdk_core",
        "amdsmi 7.0.2",
    ]


def test_the_core_sdk_lies_inside_opt_rocm(tmp_path: Path) -> None:
    add_rocm(tmp_path / "opt/rocm/core-7.13", "7.13.0")
    add_rocm(tmp_path / "opt/rocm/core-7.14", "7.14.0")
    assert names(tmp_path) == ["amdsmi of /opt/rocm/core-7.14", "amdsmi of /opt/rocm/core-7.13", "amdsmi 7.0.2"]


def test_the_environment_leads_to_the_wrapper_and_to_its_library(tmp_path: Path) -> None:
    rocm = add_rocm(tmp_path / "opt/rocm", "6.4.1")
    own, installed = amdsmi_options({"PYTHONPATH": "/mine"}, tmp_path, installed="7.0.2", packages=())
    assert own.env == {"PYTHONPATH": f"{rocm}/share/amd_smi:/mine", "ROCM_PATH": str(rocm)}
    assert own.why == "the wrapper that ROCm 6.4.1 ships next to its library"
    assert installed.env == {"ROCM_PATH": str(rocm)}
    assert installed.why == "the installed package, with the library of ROCm 6.4.1"


def test_a_variable_that_goes_before_is_set_too(tmp_path: Path) -> None:
    add_rocm(tmp_path / "opt/rocm", "6.4.1")
    home = add_rocm(tmp_path / "home", "7.1.0")
    candidates = amdsmi_options({"ROCM_HOME": str(home)}, tmp_path, installed="7.0.2", packages=())
    second = next(candidate for candidate in candidates if candidate.name.endswith("/opt/rocm"))
    assert second.env["ROCM_HOME"] == second.env["ROCM_PATH"] == str(tmp_path / "opt/rocm")
    assert candidates[-1].env == {}


def test_without_the_package_rocms_own_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # This Python has the package; one without it cannot be started from the tests.
    monkeypatch.setattr("loadgen.telemetry.amd.amdsmi_library.package_version", lambda _: None)
    add_rocm(tmp_path / "opt/rocm", "7.0.2")
    assert [candidate.env["ROCM_PATH"] for candidate in amdsmi_options({}, tmp_path, packages=())] == [
        f"{tmp_path}/opt/rocm"
    ]


def test_package_version_without_importing_it() -> None:
    program = (
        "import sys; from loadgen.telemetry.backends import package_version; "
        "print(package_version('amdsmi'), 'amdsmi' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{package_version('amdsmi')} False\n"


def test_a_candidates_environment_makes_a_child_import_rocms_own_wrapper(tmp_path: Path) -> None:
    rocm = add_rocm(tmp_path / "opt/rocm", "6.4.1")
    (rocm / "share/amd_smi/amdsmi/__init__.py").write_text("WHERE = __file__\n")
    own = amdsmi_options({}, tmp_path, installed="7.0.2", packages=())[0]
    argv = [sys.executable, "-c", "import amdsmi; print(amdsmi.WHERE)"]
    done = subprocess.run(argv, env={**os.environ, **own.env}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{rocm}/share/amd_smi/amdsmi/__init__.py\n"
