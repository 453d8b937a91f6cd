"""The host: real processes and the real kernel; frequencies from a tree of our own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.telemetry.host import (
    SETTINGS,
    HostSampler,
    _Core,
    core_share,
    host_settings,
    read_frequency,
    stolen_share,
    with_hardware,
)
from tests.server.gpu_trees import write

_WORKS = "data = bytearray(50_000_000); print('here', flush=True)\nwhile True: pass"


@pytest.fixture
def worker() -> Iterator[int]:
    """A process that holds 50 MB and keeps a core busy."""
    with subprocess.Popen([sys.executable, "-c", _WORKS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_the_first_sample_has_amounts_and_no_rates() -> None:
    first = HostSampler().sample()
    assert first.cores == len(os.sched_getaffinity(0)) or first.cores == os.cpu_count()
    assert 0 < first.memory_used_bytes < first.memory_total_bytes
    assert first.load_1min >= 0
    assert (first.cpu_percent, first.disk_read_bytes_per_s, first.network_in_bytes_per_s) == (None, None, None)
    assert (first.server_rss_bytes, first.server_cpu_percent, first.open_files) == (None, None, {})


def test_a_server_that_works_is_seen_working(worker: int) -> None:
    sampler = HostSampler()
    first = sampler.sample(server=[worker])
    assert (first.server_rss_bytes or 0) > 50_000_000
    assert first.server_cpu_percent is None
    later = first
    while not later.server_cpu_percent:  # the kernel counts in hundredths of a second
        later = sampler.sample(server=[worker])
    assert later.server_cpu_percent > 0
    assert later.t_s > first.t_s


def test_rates_and_shares_are_there_from_the_second_sample_on() -> None:
    sampler = HostSampler()
    first = sampler.sample()
    later = sampler.sample()
    while later.cpu_percent is None:  # until the kernel's next tick
        later = sampler.sample()
    assert 0 <= later.cpu_percent <= (later.cpu_busiest_percent or 0) <= 100
    assert (later.disk_read_bytes_per_s or 0) >= 0
    assert later.network_out_bytes_per_s is not None
    assert later.memory_total_bytes == first.memory_total_bytes


def test_a_process_that_has_ended_is_left_out(worker: int) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    sampler = HostSampler()
    assert (sampler.sample(server=[gone.pid, worker]).server_rss_bytes or 0) > 50_000_000
    last = sampler.sample(server=[gone.pid], files_of=[gone.pid])
    assert (last.server_rss_bytes, last.server_cpu_percent, last.open_files) == (None, None, {})


def test_open_files_are_counted_by_process(tmp_path: Path) -> None:
    sampler = HostSampler()
    before = sampler.sample(files_of=[os.getpid()]).open_files[os.getpid()]
    with (tmp_path / "one").open("w"), (tmp_path / "two").open("w"):
        assert sampler.sample(files_of=[os.getpid()]).open_files == {os.getpid(): before + 2}


def _core(root: Path, number: int, khz: str, governor: str) -> None:
    folder = root / f"devices/system/cpu/cpu{number}/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_cur_freq").write_text(khz + "\n")
    (folder / "scaling_governor").write_text(governor + "\n")


def test_frequency_and_governor(tmp_path: Path) -> None:
    _core(tmp_path, 0, "3700000", "performance")
    _core(tmp_path, 1, "1500000", "powersave")
    _core(tmp_path, 2, "<unknown>", "performance")
    sample = HostSampler(sysfs=tmp_path).sample()
    assert (sample.cpu_mhz, sample.cpu_mhz_min) == (2600, 1500)
    assert sample.governor == "performance, powersave"


def test_only_a_few_of_many_cores_are_asked_for_their_frequency(tmp_path: Path) -> None:
    for number in range(100):
        _core(tmp_path, number, "3000000", f"governor-{number}")
    assert len((read_frequency(tmp_path)["governor"] or "").split(", ")) <= 8


def test_no_frequency_is_no_error(tmp_path: Path) -> None:
    assert read_frequency(tmp_path) == {"cpu_mhz": None, "cpu_mhz_min": None, "governor": None}


def test_what_lies_on_top_of_a_device_is_not_counted_again(tmp_path: Path) -> None:
    for name in ("eth0", "eth1"):
        (tmp_path / name / "device").mkdir(parents=True)
    for name in ("bond0", "docker0"):
        (tmp_path / name).mkdir()
    assert with_hardware(["bond0", "docker0", "eth0", "eth1"], tmp_path) == ["eth0", "eth1"]
    assert with_hardware(["sda1", "bond0"], tmp_path) == ["bond0"]
    assert with_hardware(["eth0"], tmp_path / "no sysfs") == ["eth0"]


@given(st.tuples(*[st.floats(0, 1e6)] * 4))
def test_the_share_of_a_core_is_a_share(times: tuple[float, float, float, float]) -> None:
    busy_before, busy_after, all_before, all_after = times
    share = core_share(_Core(busy_before, all_before), _Core(busy_after, all_after))
    assert (share is None) == (all_after <= all_before)
    assert share is None or 0 <= share <= 100


def test_the_share_of_a_core() -> None:
    assert core_share(_Core(10, 100), _Core(12, 108)) == 25


def test_stolen_time_is_a_share_of_all_cores() -> None:
    assert stolen_share([(_Core(10, 100, 1), _Core(12, 108, 2)), (_Core(0, 100), _Core(0, 102))]) == 10
    assert stolen_share([(_Core(10, 100, 5), _Core(10, 100, 5))]) is None  # no time has passed
    assert stolen_share([(_Core(10, 100, 5), _Core(12, 108, 4))]) == 0  # a counter that fell
    assert stolen_share([]) is None


@pytest.mark.parametrize(
    "failure", [PermissionError("/proc/net/dev"), NotImplementedError("no /proc/diskstats"), ValueError("unknown line")]
)
@pytest.mark.parametrize("function", ["cpu_times", "disk_io_counters", "net_io_counters"])
def test_counters_that_cannot_be_read_cost_their_own_fields_only(
    function: str, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(**_: object) -> None:
        raise failure

    # This kernel offers all of them: psutil raises in its place.
    monkeypatch.setattr(psutil, function, failing)
    sampler = HostSampler()
    sampler.sample()
    sample = sampler.sample()
    assert sample.memory_used_bytes > 0
    assert (sample.network_in_bytes_per_s is None) == (function == "net_io_counters")
    assert (sample.disk_read_bytes_per_s is None) == (function == "disk_io_counters")
    assert (sample.cores == 0) == (function == "cpu_times")


def test_settings_of_processor_and_kernel(tmp_path: Path) -> None:
    assert host_settings(tmp_path) == {}
    cpu = tmp_path / "sys/devices/system/cpu"
    for file, text in {
        "cpufreq/boost": "0",
        "smt/active": "1",
        "cpu0/cpufreq/scaling_governor": "performance",
        "cpu0/cpuidle/state0/name": "POLL",
        "cpu0/cpuidle/state1/name": "C1",
        "cpu0/cpuidle/state2/name": "C2",
        "cpu0/cpuidle/state2/disable": "1",
    }.items():
        write(cpu / file, text)
    write(tmp_path / "proc/sys/kernel/numa_balancing", "0")
    write(
        tmp_path / "proc/cmdline",
        "BOOT_IMAGE=/vmlinuz root=UUID=1 iommu=pt agent.token=hunter2hunter2 -- --addr 0",
    )
    found = host_settings(tmp_path)
    assert tuple(found) == SETTINGS
    assert [*found.values()][:5] == ["off", "on", "performance", "POLL, C1", "0"]
    assert "iommu=pt" in found["kernel_command_line"]
    assert not [word for word in ("BOOT_IMAGE", "root", "hunter2", "addr") if word in found["kernel_command_line"]]
