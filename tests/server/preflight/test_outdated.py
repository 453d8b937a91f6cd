"""What `vramp doctor` calls old: by version, never by asking anybody."""

from datetime import date
from pathlib import Path

import pytest

from loadgen.build import Build
from loadgen.server.preflight.outdated import _components, _newer_vllm, _vramp, outdated
from loadgen.server.vllm.installation import recorded_versions


@pytest.mark.parametrize(
    ("component", "version", "found"),
    [
        ("kernel", "4.18.0-553.el8_10.x86_64", "old-kernel"),
        ("kernel", "6.8.0-45-generic", None),
        ("rocm", "6.4.1", "old-rocm"),
        ("rocm", "7.0.2", None),
        ("rocm", "10.1", None),
        ("nvidia driver", "470.256.02", "old-nvidia-driver"),
        ("nvidia driver", "580.65.06", None),
        ("vllm", "0.9.2rc2.dev116+gf8ebdd", "old-vllm"),
        ("vllm", "0.10.0+rocm", None),
        ("rocm", "unknown", None),
        ("rocm", None, None),
    ],
)
def test_versions_below_what_is_known_to_work(component: str, version: str | None, found: str | None) -> None:
    findings = list(_components({component: version}))
    assert [finding.id for finding in findings] == ([found] if found else [])
    assert all(finding.fix and finding.why and str(version) in finding.seen for finding in findings)


def test_of_two_limits_of_a_driver_the_graver_is_reported() -> None:
    assert [finding.severity for finding in _components({"nvidia driver": "470.1"})] == ["warns"]
    assert [finding.severity for finding in _components({"nvidia driver": "550.54"})] == ["info"]


def test_a_vllm_that_is_newer_than_the_records() -> None:
    newest = recorded_versions()[-1]
    assert not list(_newer_vllm(newest)) and not list(_newer_vllm(f"{newest}+rocm")) and not list(_newer_vllm(None))
    (finding,) = _newer_vllm("99.1.0")
    assert (finding.id, finding.severity) == ("newer-vllm", "info")


def test_a_vramp_of_last_year() -> None:
    old = Build("98fe7ef", "2026-01-05", modified=False)
    assert not list(_vramp(old, date(2026, 8, 1))) and not list(_vramp(None, date(2036, 1, 1)))
    (finding,) = _vramp(old, date(2026, 11, 5))
    assert "2026-01-05" in finding.seen and finding.fix


def test_the_vllm_that_would_be_started_is_requested_its_version(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    (tmp_path / "bin" / "python3").symlink_to("/bin/sh")
    program.write_text(f"#!{tmp_path}/bin/python3\n")
    program.chmod(0o755)
    (tmp_path / "lib" / "python3.12" / "site-packages" / "vllm-0.6.3+cpu.dist-info").mkdir(parents=True)
    found = outdated({}, vllm_command=str(program))
    assert "vllm 0.6.3+cpu is older than 0.10" in [finding.seen for finding in found]
