"""Limits and settings of the operating system."""

from pathlib import Path

import pytest

from loadgen.metrics.journal import Severity
from loadgen.server.preflight.facts import Platform
from tests.server.gpu_trees import add_amd_gpu, write
from tests.server.preflight.boxes import check, healthy_box, only, profile_of

CLOSED = "load.concurrency=1000"


@pytest.mark.parametrize(
    ("overrides", "limits", "severity"),
    [
        ([CLOSED, "load.workers=1"], (1064, 4096), None),
        ([CLOSED, "load.workers=1"], (1063, 4096), "blocks"),
        ([CLOSED, "load.workers=4"], (314, 4096), None),
        ([CLOSED, "load.workers=4"], (313, 4096), "blocks"),
        ([CLOSED, "load.workers=1"], (1064, 1255), "blocks"),
        ([CLOSED, "load.workers=1", "server.instances=2"], (600, 756), "warns"),
        (["load.rate=100", "load.osl=100", "load.workers=1"], (564, 4096), None),
        (["load.rate=100", "load.osl=100", "load.workers=1"], (563, 4096), "warns"),
        (["load.rate=100", "load.osl=100", "load.workers=1", "load.requests=20"], (84, 4096), None),
        # Even with half a millisecond a token, 2,000 streams a second of 1,000 tokens are 1,000 at once.
        (["load.rate=2000", "load.osl=1000", "load.workers=1"], (1063, 2**20), "blocks"),
        (["load.rate=2000", "load.osl=1000", "load.workers=1"], (1064, 2**20), "warns"),
    ],
)
def test_open_files_against_the_plan(
    tmp_path: Path, overrides: list[str], limits: tuple[int, int], severity: Severity | None
) -> None:
    findings = check(healthy_box(tmp_path, open_files=limits), profile_of(tmp_path, *overrides))
    assert [(finding.id, finding.severity) for finding in findings] == ([("open-files", severity)] if severity else [])


def test_the_hard_limit_does_not_bind_what_vramp_does_not_start(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, CLOSED, "load.workers=1", engine="attach", url="http://127.0.0.1:1", model="m")
    assert check(healthy_box(tmp_path, open_files=(1064, 1064)), profile) == []


@pytest.mark.parametrize(
    ("streams", "hard", "command"),
    [
        (100, 65536, "ulimit -n 65536"),
        (90_000, 2**20, "ulimit -n 131072"),
        (100, 4096, "sudo prlimit --pid $$ --nofile=65536:65536"),
    ],
)
def test_the_fix_is_enough_and_allowed(tmp_path: Path, streams: int, hard: int, command: str) -> None:
    box = healthy_box(tmp_path, open_files=(50, hard))
    finding = only(box, profile_of(tmp_path, f"load.concurrency={streams}", "load.workers=1"))
    assert finding.fix == f"{command}, in the shell that starts vramp"
    assert finding.seen == f"a process may have 50 files open, and raise that to {hard}"


def test_a_governor_that_waits_for_load(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    write(box.sys / "devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave")
    finding = only(box, profile_of(tmp_path))
    assert (finding.id, finding.severity) == ("cpu-governor", "warns")
    assert finding.seen == "1 of 2 CPUs have the governor powersave"


def test_a_processor_that_steers_itself_to_performance(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    folder = box.sys / "devices/system/cpu/cpu1/cpufreq"
    write(folder / "scaling_governor", "powersave")
    write(folder / "energy_performance_preference", "performance")
    assert check(box, profile_of(tmp_path)) == []


@pytest.mark.parametrize("known", [True, None])
def test_a_clock_that_is_kept_or_unknown(tmp_path: Path, known: bool | None) -> None:
    assert check(healthy_box(tmp_path, clock_synchronised=known), profile_of(tmp_path)) == []


def test_a_clock_that_nothing_keeps(tmp_path: Path) -> None:
    finding = only(healthy_box(tmp_path, clock_synchronised=False), profile_of(tmp_path))
    assert (finding.id, finding.severity) == ("clock-unsynchronised", "info")


@pytest.mark.parametrize(
    ("platform", "value", "severity"), [("rocm", "1", "warns"), ("rocm", "2", "warns"), ("cpu", "1", "info")]
)
def test_numa_balancing(tmp_path: Path, platform: Platform, value: str, severity: Severity) -> None:
    box = healthy_box(tmp_path)
    add_amd_gpu(box.sys, 0, 5, used=0)
    write(box.proc / "sys/kernel/numa_balancing", value)
    finding = only(box, profile_of(tmp_path), platform)
    assert (finding.id, finding.severity, finding.seen) == (
        "numa-balancing",
        severity,
        f"kernel.numa_balancing is {value}",
    )
    assert finding.fix == "sudo sh -c 'echo 0 > /proc/sys/kernel/numa_balancing'"
    assert ("hang" in finding.why) == bool(finding.source) == (platform == "rocm")


def test_a_kernel_without_these_settings(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    (box.proc / "sys/kernel/numa_balancing").unlink()
    (box.sys / "kernel/mm/transparent_hugepage/enabled").unlink()
    for path in box.sys.glob("devices/system/cpu/*/cpufreq/*"):
        path.unlink()
    assert check(box, profile_of(tmp_path)) == []


@pytest.mark.parametrize(("platform", "severity"), [("rocm", "info"), ("cpu", "warns")])
def test_huge_pages_switched_off(tmp_path: Path, platform: Platform, severity: Severity) -> None:
    box = healthy_box(tmp_path)
    add_amd_gpu(box.sys, 0, 5, used=0)
    write(box.sys / "kernel/mm/transparent_hugepage/enabled", "always madvise [never]")
    finding = only(box, profile_of(tmp_path), platform)
    assert (finding.id, finding.severity) == ("huge-pages", severity)
