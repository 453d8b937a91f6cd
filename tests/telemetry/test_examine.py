"""Every candidate tried in earnest: good children, real ones on the stub libraries, and those that go wrong."""

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.build import version_words
from loadgen.schema.samples import GpuProcess, GpuSample, GpuStatic
from loadgen.telemetry.backends import BackendOption
from loadgen.telemetry.capture import CapturedPart, Header, read_capture, write_capture
from loadgen.telemetry.examine import (
    NOTHING,
    Pace,
    capture_header,
    device_files,
    examine,
    groups,
    tried,
    try_all,
    unit_checks,
    user_words,
    versions,
)
from loadgen.vendors import VendorName
from tests.server.gpu_trees import write
from tests.telemetry.amdsmi_stub.scenarios import BUSY_MI300X, CPX, GUEST
from tests.telemetry.children import simulated_gpus, stand_in

_PACE = Pace(watch_s=0.1, interval_s=0.05, open_s=20)
_WAITS = "while True:\n    sampled()\n    time.sleep(0.02)\n"


async def _trial(folder: Path, attempt: BackendOption, pace: Pace = _PACE, vendor: VendorName = "amd") -> CapturedPart:
    (trial,) = await try_all({vendor: [attempt]}, folder=folder, pace=pace)
    return trial


async def _on_stub(folder: Path, rocm: Path, scenario: str) -> CapturedPart:
    path = folder / "scenario"
    path.write_text(scenario)
    env = {"ROCM_PATH": str(rocm), "AMDSMI_STUB_SCENARIO": str(path)}
    return await _trial(folder, BackendOption("amdsmi 7.0.2", "amdsmi", env=env, why="the installed one"))


async def test_eight_busy_mi300x_are_reported_whole_and_plausible(rocm: Path, tmp_path: Path) -> None:
    found = tried(await _on_stub(tmp_path, rocm, BUSY_MI300X))
    assert (found.vendor, found.name, found.why) == ("amd", "amdsmi 7.0.2", "the installed one")
    assert found.works
    assert found.first_look_ms is not None
    assert found.meta["library"] == "26.0.2"
    assert [exam.gpu.index for exam in found.gpus] == list(range(8))
    exam = found.gpus[3]
    assert (exam.gpu.bdf, exam.sample.power_w, exam.sample.links_up) == ("0000:3c:00.0", 612, 7)
    assert exam.sample.processes == (GpuProcess(4242, "python3", 179000000000),)
    assert exam.missing.pop("throttle_percent") == "the counters have not moved"
    assert set(exam.missing.values()) == {"amdsmi does not report it"}  # what only NVIDIA has
    assert {"sm_percent", "xids", "rows_remapped"} <= set(exam.missing)
    assert [check.quantity for check in exam.checks if not check.plausible] == []
    assert len(exam.checks) == 17


async def test_partitions_have_what_is_theirs_and_say_where_the_rest_is(rocm: Path, tmp_path: Path) -> None:
    first, second, *_ = tried(await _on_stub(tmp_path, rocm, CPX)).gpus
    assert (first.sample.power_w, second.sample.power_w) == (612, None)
    assert "power_w" not in first.missing
    assert second.missing["power_w"] != "amdsmi does not report it"


async def test_a_guest_has_a_reason_for_every_null(rocm: Path, tmp_path: Path) -> None:
    (exam,) = tried(await _on_stub(tmp_path, rocm, GUEST)).gpus
    nulls = {name for name in exam.sample.__struct_fields__ if getattr(exam.sample, name) is None}
    nulls |= {name for name in exam.gpu.__struct_fields__ if getattr(exam.gpu, name) is None}
    assert nulls == exam.missing.keys()
    assert exam.missing["power_w"] == "NOT_SUPPORTED"
    assert exam.missing["uuid"] == "amdsmi does not report it"


async def test_broken_library_is_reported_with_its_output(tmp_path: Path) -> None:
    empty = {"ROCM_PATH": str(tmp_path), "ROCM_HOME": str(tmp_path)}
    trial = await _trial(tmp_path, BackendOption("amdsmi", "amdsmi", env=empty))
    found = tried(trial)
    assert not found.works
    assert found.failure is not None
    assert "libamd_smi.so" in found.failure
    assert any("libamd_smi.so" in line for line in found.printed)
    assert (found.gpus, found.meta) == ((), {})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            'say(\'{"type":"Refused","backend":"sim","reason":"no \\\\u001b driver"}\')\n',
            "no \N{SYMBOL FOR SUBSTITUTE FORM TWO} driver",
        ),
        ("os.abort()\n", "it was killed by SIGABRT"),
        ("sys.stderr.write('undefined symbol\\n')\nsys.exit(3)\n", "it ended with status 3: undefined symbol"),
        ("sampled()\nwait()\n", "a sample before its first line"),
        ("opened()\nopened()\nwait()\n", "it opened twice"),
        ('opened()\nsay(\'{"type":"Refused","backend":"sim","reason":"unloaded"}\')\nwait()\n', "unloaded"),
        ("say('hello')\nwait()\n", "an invalid line"),
        ("opened()\nsampled()\nos.abort()\n", "it was killed by SIGABRT"),
    ],
)
async def test_every_failure_is_reported(tmp_path: Path, body: str, words: str) -> None:
    trial = await _trial(tmp_path, stand_in(tmp_path, "bad", body))
    assert trial.candidate.failure is not None
    assert words in trial.candidate.failure


@pytest.mark.parametrize("body", ["time.sleep(999)\n", "opened()\ntime.sleep(999)\n", "opened()\nsampled()\nwait()\n"])
async def test_one_that_hangs_is_given_up(tmp_path: Path, body: str) -> None:
    hangs = stand_in(tmp_path, "hangs", body)
    trial = await _trial(tmp_path, hangs, replace(_PACE, open_s=0.5, grace_s=0.1))
    assert trial.candidate.failure == "it sent nothing for 0.5 s"


async def test_what_cannot_be_started_is_reported(tmp_path: Path) -> None:
    trial = await _trial(tmp_path, BackendOption("none", "sim", program=(str(tmp_path / "none"),)))
    assert trial.candidate.failure is not None
    assert "could not be started: No such file" in trial.candidate.failure


async def test_first_working_candidate_is_used(tmp_path: Path) -> None:
    bad = stand_in(tmp_path, "bad", "sys.exit(1)\n")
    good = stand_in(tmp_path, "good", "opened()\n" + _WAITS)
    other = stand_in(tmp_path, "other", "opened()\n" + _WAITS)
    trials = await try_all({"amd": [bad, good, other]}, folder=tmp_path, pace=_PACE)
    assert [(trial.candidate.name, trial.candidate.failure is None) for trial in trials] == [
        ("bad", False),
        ("good", True),
        ("other", True),
    ]
    assert trials[1].samples[-1].t_s - trials[1].samples[0].t_s >= 0.1
    assert len(trials[2].samples) == 1


async def test_one_that_breaks_while_watched_keeps_what_it_said(tmp_path: Path) -> None:
    found = tried(await _trial(tmp_path, stand_in(tmp_path, "breaks", "opened()\nsampled(612)\nsys.exit(1)\n")))
    assert not found.works
    assert found.gpus[0].sample.power_w == 612


async def test_a_device_that_is_never_looked_at_is_left_out(tmp_path: Path) -> None:
    found = tried(await _trial(tmp_path, stand_in(tmp_path, "half", "opened(gpus=2)\n" + _WAITS)))
    assert found.works
    assert [exam.gpu.index for exam in found.gpus] == [0]


async def test_a_capture_of_the_stub_is_the_box_again(rocm: Path, tmp_path: Path) -> None:
    trial = await _on_stub(tmp_path, rocm, BUSY_MI300X)
    path = tmp_path / "capture.jsonl"
    write_capture(path, Header(captured_at="", versions={}, environment={}), [trial])
    part = read_capture(path)[1]["amd"]
    assert part.opened == trial.opened
    assert part.samples == trial.samples


async def test_a_box_without_gpus_says_so(tmp_path: Path) -> None:
    found, trials = await examine("off", folder=tmp_path, pace=_PACE)
    assert (found.nothing, found.tried, trials, found.unmeasured) == (NOTHING, (), [], ())
    assert found.host.sample.memory_total_bytes > 0
    assert found.host.missing["server_rss_bytes"] == "no server is watched"


async def test_simulated_gpus(tmp_path: Path) -> None:
    trials = await try_all(simulated_gpus(2), folder=tmp_path, pace=_PACE)
    (found,) = map(tried, trials)
    assert found.works
    assert all(check.plausible for exam in found.gpus for check in exam.checks)
    assert len(found.gpus) == 2


async def test_the_header_has_what_steers_the_libraries_and_nothing_else(tmp_path: Path) -> None:
    found, _ = await examine("off", folder=tmp_path, pace=_PACE)
    environ = {"ROCM_PATH": "/opt/rocm", "LD_LIBRARY_PATH": "/lib", "HOME": "/root", "HF_TOKEN": "hf_1", "CUDA_X": "1"}
    header = capture_header(found, environ, "2026-01-02T03:04:05+00:00")
    assert header.environment == {"ROCM_PATH": "/opt/rocm", "LD_LIBRARY_PATH": "/lib", "CUDA_X": "1"}
    assert header.versions == found.versions


_GIB = 1024**3
_GPU = GpuStatic(index=0, vendor="amd", name="GPU", hbm_total_bytes=192 * _GIB)


def _sample(**values: Any) -> GpuSample:
    return GpuSample(index=0, t_s=0.0, **values)


@pytest.mark.parametrize(
    ("field", "value", "plausible"),
    [
        ("power_w", 612, True),
        ("power_w", 612e6, False),
        ("power_w", 0.612, False),
        ("power_cap_w", 750e6, False),
        ("temperature_hotspot_c", 78, True),
        ("temperature_hotspot_c", 78000, False),
        ("temperature_memory_c", 0.066, False),
        ("gfx_clock_mhz", 2100, True),
        ("gfx_clock_mhz", 2100e6, False),
        ("memory_clock_mhz", 14001, True),
        ("gfx_percent", 97, True),
        ("memory_percent", 4100, False),
        ("pcie_width", 16, True),
        ("pcie_speed_gts", 32000, False),
    ],
)
def test_a_wrong_unit_shows(field: str, value: float, plausible: bool) -> None:
    (check,) = (
        check for check in unit_checks(_GPU, _sample(**{field: value}), []) if check.quantity != "hbm_total_bytes"
    )
    assert (check.quantity, check.raw, check.value, check.plausible) == (field, value, value, plausible)


@pytest.mark.parametrize(("total", "plausible"), [(192 * _GIB, True), (196592, False), (192 * _GIB * 1024, False)])
def test_memory_in_another_unit_shows(total: int, plausible: bool) -> None:
    (check,) = unit_checks(GpuStatic(index=0, vendor="amd", name="GPU", hbm_total_bytes=total), _sample(), [])
    assert (check.raw, check.value, check.unit) == (total, total / _GIB, "GiB")
    assert check.plausible == plausible


def test_no_more_memory_is_used_than_there_is() -> None:
    checks = unit_checks(_GPU, _sample(hbm_used_bytes=193 * _GIB), [])
    assert [(check.quantity, check.plausible) for check in checks] == [
        ("hbm_total_bytes", True),
        ("hbm_used_bytes", False),
    ]


def test_throttling_is_a_share_of_time_for_each_reason() -> None:
    checks = unit_checks(_GPU, _sample(throttle_percent={"power": 37.1, "thermal": 371}), [])
    assert [(check.quantity, check.plausible) for check in checks[1:]] == [
        ("throttle_percent.power", True),
        ("throttle_percent.thermal", False),
    ]


def test_what_is_not_reported_is_not_judged() -> None:
    assert unit_checks(GpuStatic(index=0, vendor="amd", name="GPU"), _sample(), [_sample(), _sample()]) == ()


@pytest.mark.parametrize(
    ("joules_per_s", "plausible"),
    [(600, True), (612, True), (700, True), (0, False), (612e-3, False), (612e3, False), (612 * 65536, False)],
)
def test_the_energy_counter_is_held_against_the_power(joules_per_s: float, plausible: bool) -> None:
    looks = [GpuSample(0, n * 0.5, power_w=612, energy_j=1e6 + joules_per_s * n * 0.5) for n in range(7)]
    (check,) = unit_checks(GpuStatic(index=0, vendor="amd", name="GPU"), _sample(), looks)
    assert (check.quantity, check.unit, check.plausible) == ("energy_j against power", "J", plausible)
    assert check.value == pytest.approx(joules_per_s * 3)
    assert [check.low, check.high] == pytest.approx([0.75 * 1836, 1.25 * 1836])


@pytest.mark.parametrize("looks", [[], [0.0], [0.0, 0.5]])
def test_a_moment_is_too_short_to_judge_the_counter(looks: list[float]) -> None:
    samples = [GpuSample(0, t_s, power_w=612, energy_j=1e6) for t_s in looks]
    assert unit_checks(GpuStatic(index=0, vendor="amd", name="GPU"), _sample(), samples) == ()


def test_versions_of_a_box_with_both_drivers(tmp_path: Path) -> None:
    for name, text in {
        "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
        "sys/module/amdgpu/version": "6.14.14\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release\n",
        "opt/rocm/.info/version": "7.0.2-56\n",
    }.items():
        write(tmp_path / name, text)
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
    write(tmp_path / "mine/.info/version", "6.4.1-83")
    assert versions(tmp_path, {"ROCM_PATH": str(tmp_path / "mine")})["rocm"] == "6.4.1"


def test_who_runs_this() -> None:
    assert f"(uid {os.geteuid()})" in user_words()
    assert groups()


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


NOT_LOADED = {"kfd": "usable", "dri/renderD*": "absent", "nvidiactl": "usable", "nvidia[0-9]*": "absent"}


@pytest.mark.parametrize(
    ("files", "states"), [([], {}), (["nvidiactl", "kfd"], NOT_LOADED), (["dxg"], {"dxg": "usable"})]
)
def test_which_files_a_vendor_needs(tmp_path: Path, files: list[str], states: dict[str, str]) -> None:
    for file in files:
        write(tmp_path / "dev" / file, "")
    assert [(each.path, each.state) for each in device_files(tmp_path)] == [
        (f"/dev/{name}", state) for name, state in states.items()
    ]
