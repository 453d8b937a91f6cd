"""The cores that are left to a process, by made-up trees of /proc and /sys/fs/cgroup."""

import os
from pathlib import Path

import pytest

from loadgen.cores import usable_cores

ALL = float(len(os.sched_getaffinity(0)))


def tree(root: Path, groups: str, **files: str) -> float:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for path, text in files.items():
        file = root / "cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return usable_cores(root / "proc", root / "cgroup")


def test_there_may_be_no_groups_at_all(tmp_path: Path) -> None:
    assert usable_cores(tmp_path, tmp_path) == ALL


def test_of_this_machine_it_is_at_most_the_affinity() -> None:
    assert 0 < usable_cores() <= ALL


def test_affinity_counts() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() <= 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000\n"}, 0.5),
        # A group above holds for all below it.
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "25000 100000\n"}, 0.25),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
        # In a container the path is the host's, and the mount is the container's own group.
        ("0::/docker/f00\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/a\n", {"a/cpu.max": "max 100000\n"}, ALL),
        ("0::/a\n", {"a/cpu.max": "9900000 100000\n"}, min(ALL, 99.0)),
        (
            "5:memory:/m\n4:cpu,cpuacct:/d\n0::/\n",
            {"cpu,cpuacct/d/cpu.cfs_quota_us": "30000\n", "cpu,cpuacct/d/cpu.cfs_period_us": "100000\n"},
            0.3,
        ),
        # Mounted under the name of one of them.
        ("4:cpu,cpuacct:/d\n", {"cpu/d/cpu.cfs_quota_us": "30000", "cpu/d/cpu.cfs_period_us": "100000"}, 0.3),
        ("4:cpu:/d\n", {"cpu/d/cpu.cfs_quota_us": "-1\n", "cpu/d/cpu.cfs_period_us": "100000\n"}, ALL),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "10000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.1),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "10000\n"}, ALL),
        ("0::/\n", {"cpu.max": "nonsense\n"}, ALL),
        ("nonsense\n\n", {"cpu.max": ""}, ALL),
    ],
)
def test_quotas(tmp_path: Path, groups: str, files: dict[str, str], cores: float) -> None:
    assert tree(tmp_path, groups, **files) == pytest.approx(cores)
