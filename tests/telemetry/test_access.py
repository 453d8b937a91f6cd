"""What the box and the installation bring, read from trees that stand for a box."""

import os
import stat
from pathlib import Path

from loadgen.build import version_words
from loadgen.telemetry.access import device_files, groups, user_words, versions


def test_versions_of_a_box_with_both_drivers(tmp_path: Path) -> None:
    for name, text in {
        "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
        "sys/module/amdgpu/version": "6.14.14\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release\n",
        "opt/rocm/.info/version": "7.0.2-56\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    found = versions(tmp_path, {})
    assert found["vramp"] == version_words()
    assert found["system"] == "Ubuntu 24.04.1 LTS"
    assert (found["amdgpu driver"], found["nvidia driver"], found["rocm"]) == ("6.14.14", "570.133.20", "7.0.2")
    assert found["amdsmi"] is not None


def test_what_is_not_here_is_null(tmp_path: Path) -> None:
    found = versions(tmp_path, {})
    absent = [name for name, version in found.items() if version is None]
    assert absent == ["system", "amdgpu driver", "nvidia driver", "rocm"]


def test_a_rocm_that_is_named_is_the_one(tmp_path: Path) -> None:
    (tmp_path / "mine/.info").mkdir(parents=True)
    (tmp_path / "mine/.info/version").write_text("6.4.1-83")
    assert versions(tmp_path, {"ROCM_PATH": str(tmp_path / "mine")})["rocm"] == "6.4.1"


def test_who_runs_this() -> None:
    assert f"(uid {os.geteuid()})" in user_words()
    assert groups()


def test_a_box_without_gpus_has_no_files(tmp_path: Path) -> None:
    assert device_files(tmp_path) == ()


def test_each_file_is_usable_denied_or_absent(tmp_path: Path) -> None:
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/kfd").touch()
    (tmp_path / "dev/kfd").chmod(0o600)
    (tmp_path / "dev/dri/renderD128").symlink_to("nowhere")  # not even root may open what is not there
    usable, denied = device_files(tmp_path)
    assert (usable.path, usable.state, usable.fix) == ("/dev/kfd", "usable", "")
    assert usable.owner.startswith(stat.filemode(stat.S_IFREG | 0o600))
    assert (denied.path, denied.state) == ("/dev/dri/renderD128", "denied")
    assert "usermod -aG render,video" in denied.fix


def test_a_driver_that_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    (tmp_path / "dev/kfd").touch()
    assert [(each.path, each.state) for each in device_files(tmp_path)] == [
        ("/dev/kfd", "usable"),
        ("/dev/dri/renderD*", "absent"),
        ("/dev/nvidiactl", "usable"),
        ("/dev/nvidia[0-9]*", "absent"),
    ]


def test_windows_has_one_file_for_all(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert [(each.path, each.state) for each in device_files(tmp_path)] == [("/dev/dxg", "usable")]
