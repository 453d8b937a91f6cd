"""The preflight of the box as a whole: which checks an engine gets, and that none can end the others."""

from pathlib import Path

import pytest

from loadgen.server.preflight.box_view import Box, platform_of_box
from loadgen.server.preflight.facts import Platform
from tests.server.gpu_trees import add_amd_gpu, add_process, write
from tests.server.preflight.boxes import check, healthy_box, ids, only, profile_of


@pytest.mark.parametrize("platform", ["rocm", "cpu"])
def test_a_healthy_box_has_nothing_against_a_run(tmp_path: Path, platform: Platform) -> None:
    add_amd_gpu(tmp_path / "sys", 0, 5, used=300 * 1024**2)
    assert check(healthy_box(tmp_path), profile_of(tmp_path), platform) == []


def sick_box(tmp_path: Path) -> Box:
    box = healthy_box(tmp_path, open_files=(10, 10), clock_synchronised=False)
    write(box.proc / "sys/kernel/numa_balancing", "1")
    write(box.sys / "kernel/mm/transparent_hugepage/enabled", "always madvise [never]")
    write(box.sys / "devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave")
    add_process(box.proc, 50, "VLLM::EngineCore")
    return box


CLIENT = ["open-files", "cpu-governor", "clock-unsynchronised"]


def test_a_server_that_is_only_attached_to_is_not_judged(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, engine="attach", url="http://127.0.0.1:1", model="m")
    assert ids(sick_box(tmp_path), profile, "rocm") == CLIENT


def test_the_simulator_needs_no_gpu_and_no_model(tmp_path: Path) -> None:
    assert ids(sick_box(tmp_path), profile_of(tmp_path, engine="simulator", model="m"), "rocm") == CLIENT


def test_vllm_gets_every_check(tmp_path: Path) -> None:
    expected = ["not-checked", "leftover-server", "numa-balancing", "huge-pages", *CLIENT]
    assert ids(sick_box(tmp_path), profile_of(tmp_path), "rocm") == expected


def test_what_cannot_be_read_is_said_and_the_other_checks_go_on(tmp_path: Path) -> None:
    box = sick_box(tmp_path)
    numa = box.proc / "sys/kernel/numa_balancing"
    numa.unlink()
    numa.mkdir()
    findings = check(box, profile_of(tmp_path))
    (unread,) = [finding for finding in findings if finding.id == "not-checked"]
    assert (unread.severity, unread.seen) == ("info", "NUMA balancing: could not be checked")
    assert unread.why == f"{numa}: Is a directory"
    assert {finding.id for finding in findings} > set(CLIENT)


def test_an_argument_that_is_no_number_is_no_traceback(tmp_path: Path) -> None:
    findings = check(healthy_box(tmp_path), profile_of(tmp_path, args={"tensor-parallel-size": "many"}))
    assert [finding.id for finding in findings] == ["not-checked"] * 2
    assert "server.args.tensor-parallel-size = 'many'" in findings[0].why


def test_a_box_without_gpu_counters_says_why(tmp_path: Path) -> None:
    finding = only(healthy_box(tmp_path), profile_of(tmp_path), "cuda")
    assert finding.id == "not-checked"
    assert finding.why == "the memory of no GPU can be read here: nvidia-smi is not on PATH"


@pytest.mark.parametrize(
    ("devices", "platform"),
    [
        (["kfd"], "rocm"),
        (["nvidia0", "nvidiactl"], "cuda"),
        (["kfd", "nvidia7"], "cuda"),
        (["dxg"], "cuda"),
        (["nvidiactl"], "cpu"),
        ([], "cpu"),
    ],
)
def test_the_platform_is_what_the_devices_say(tmp_path: Path, devices: list[str], platform: Platform) -> None:
    for name in devices:
        write(tmp_path / name, "")
    assert platform_of_box(Box(dev=tmp_path)) == platform


def test_this_very_box_can_be_checked(tmp_path: Path) -> None:
    box = Box()
    assert 0 < box.open_files[0] <= box.open_files[1]
    assert box.clock_synchronised in (True, False, None)
    profile = profile_of(tmp_path)
    for platform in ("cpu", platform_of_box(box)):
        assert all(finding.seen and finding.why for finding in check(box, profile, platform))
