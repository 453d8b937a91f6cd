"""What this process reads and sets of itself and its machine; limits are tried in a child, whose own may change."""

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from loadgen.system import usable_cores

ALL = float(len(os.sched_getaffinity(0)))
CHILD = (
    "import signal, time; from loadgen.system import signal_when_parent_dies; "
    "signal_when_parent_dies(signal.SIGKILL); print('ready', flush=True); time.sleep(60)"
)
PARENT = f"import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', {CHILD!r}]); time.sleep(60)"
_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 100))
from loadgen.system import raise_open_files
raise_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
_LEAN = """
from loadgen.system import inherited_environment, start_lean
start_lean()
import os, numpy, pydantic.plugin._loader as plugins
given = inherited_environment()
print(len(os.listdir("/proc/self/task")), plugins.get_plugins() == (), *map(given.get, NAMES))
"""
_HOLES = """
from loadgen.system import map_large_blocks
import psutil, sys
if sys.argv[1] == "mapped":
    map_large_blocks()
freed = bytearray(1 << 20); del freed  # after which glibc takes blocks of this size from the heap, too
resident = psutil.Process().memory_info
blocks, between = [], []
for _ in range(300):
    blocks.append(bytearray(80_000))
    between.append(bytes(9_000))
most = resident().rss
del blocks
print((most - resident().rss) // 80_000)
"""
_NAMES = ("OPENBLAS_NUM_THREADS", "PYDANTIC_DISABLE_PLUGINS")


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


def said_by(code: str, environment: dict[str, str], *words: str) -> str:
    child = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return child.stdout.strip()


def test_open_files_up_to_the_hard_limit() -> None:
    assert said_by(_FILES, dict(os.environ)) == "(100, 100)"


@pytest.mark.parametrize("chosen", [{}, dict(zip(_NAMES, ("1", "logfire"), strict=True))])
def test_lean_environment_is_not_passed_to_the_server(chosen: dict[str, str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _NAMES}
    said = said_by(_LEAN.replace("NAMES", str(_NAMES)), environment | chosen)
    assert said == " ".join(["1", str(not chosen), *(str(chosen.get(name)) for name in _NAMES)])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_large_blocks_leave_no_holes() -> None:
    assert int(said_by(_HOLES, dict(os.environ), "mapped")) > 200
    assert int(said_by(_HOLES, dict(os.environ), "in the heap")) < 100


def test_a_child_that_is_stopped_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        (child,) = psutil.Process(parent.pid).children()
        os.kill(child.pid, signal.SIGSTOP)
        parent.kill()
    assert psutil.wait_procs([child], timeout=10)[1] == []
