"""Counters in trees of files as cgroup v1, v2 and a container show them, and a kernel log in a file."""

from pathlib import Path

import pytest

from loadgen.server.process.oom import is_oom_kill, kernel_kills, read_oom_kills

KILL = "Memory cgroup out of memory: Killed process 23793 (leaker) total-vm:2623712kB, anon-rss:506500kB"


def tree(folder: Path, **files: str) -> tuple[Path, Path]:
    """`proc__self__cgroup="..."` writes proc/self/cgroup; a second underscore in a row separates folders."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__"))
        path = path.with_name(path.name.replace("_dot_", "."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "proc", folder / "cgroup"


def test_the_groups_own_counter_v2(tmp_path: Path) -> None:
    events = "low 0\nhigh 0\nmax 3\noom 3\noom_kill 2\noom_group_kill 0\n"
    where = tree(tmp_path, proc__self__cgroup="0::/user.slice/run\n", proc__vmstat="oom_kill 9\n")
    (tmp_path / "cgroup/user.slice/run").mkdir(parents=True)
    (tmp_path / "cgroup/user.slice/run/memory.events").write_text(events)
    assert read_oom_kills(*where) == 2


def test_in_a_container_the_groups_path_is_the_hosts(tmp_path: Path) -> None:
    where = tree(tmp_path, proc__self__cgroup="0::/../../docker/abc\n", cgroup__memory_dot_events="oom_kill 1\n")
    assert read_oom_kills(*where) == 1


def test_the_groups_counter_v1(tmp_path: Path) -> None:
    where = tree(
        tmp_path,
        proc__self__cgroup="5:devices:/\n4:cpu,memory:/box\n0::/\n",
        cgroup__memory__box__memory_dot_oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
    )
    assert read_oom_kills(*where) == 5


def test_else_the_machines_counter_or_none(tmp_path: Path) -> None:
    where = tree(tmp_path, proc__self__cgroup="0::/\nnonsense\n", proc__vmstat="pgfault 1\noom_kill 7\n")
    assert read_oom_kills(*where) == 7
    assert read_oom_kills(tmp_path / "no", tmp_path / "no") is None


def test_this_machine_has_a_counter_or_not() -> None:
    kills = read_oom_kills()
    assert kills is None or kills >= 0


def test_the_kernels_words_since_a_moment(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(
        f"6,1,1000000,-;{KILL} early\n SUBSYSTEM=x\n".encode()
        + f"3,2,9000000,-;{KILL}\x1b[31m\n3,3,9000001,-;oom_reaper: reaped process 23793\nnonsense\n;\n".encode()
    )
    assert kernel_kills(5.0, log) == [KILL]
    assert kernel_kills(0.0, log) == [f"{KILL} early", KILL]


def test_a_kernel_log_that_may_not_be_read_says_nothing(tmp_path: Path) -> None:
    assert kernel_kills(0.0, tmp_path / "none") == []
    assert kernel_kills(0.0, tmp_path) == []
    assert all(is_oom_kill(line) for line in kernel_kills(0.0))


@pytest.mark.parametrize(
    ("line", "kill"),
    [
        (KILL, True),
        ("Out of memory: Killed process 2811 (python3) total-vm:16420540kB", True),
        ("Out of memory (oom_kill_allocating_task): Killed process 1 (x)", True),
        ("torch.OutOfMemoryError: CUDA out of memory.", False),
        ("oom_reaper: reaped process 23793 (leaker)", False),
    ],
)
def test_what_is_a_kill(line: str, kill: bool) -> None:
    assert is_oom_kill(line) is kill
