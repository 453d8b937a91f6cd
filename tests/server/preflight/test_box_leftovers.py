"""vLLM processes that run already."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from loadgen.server.preflight.box_view import Box
from loadgen.server.preflight.leftovers import is_vllm, leftovers
from loadgen.server.process.records import ServerRecord, record_path
from loadgen.server.process.tree import ProcessId
from tests.server.gpu_trees import GIB, add_amd_gpu, add_kfd_node, add_kfd_process, add_process, write
from tests.server.preflight.boxes import check, healthy_box, only, profile_of

SERVE = ("/usr/bin/python3", "/opt/vllm/bin/vllm", "serve", "org/model", "--api-key", "secret")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["VLLM::EngineCore"], True),
        (["VLLM::Worker_TP0"], True),
        (list(SERVE), True),
        (["vllm", "serve", "m"], True),
        (["python", "-m", "vllm", "serve", "m"], True),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], True),
        (["python3", "-u", "-m", "vllm.entrypoints.cli.main", "serve"], True),
        (["vllm", "bench", "serve"], False),
        (["grep", "vllm", "server.log"], False),
        (["vim", "vllm.py"], False),
        (["docker", "run", "--name", "x", "image", "vllm", "serve", "m"], False),
        (["bash", "-c", "vllm serve m"], False),
        ([], False),
    ],
)
def test_which_commands_are_servers(words: list[str], expected: bool) -> None:
    assert is_vllm(words) == expected


def test_one_finding_for_each_server_with_the_command_that_ends_it(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    add_amd_gpu(box.sys, 0, 5, used=80 * GIB)
    add_kfd_node(box.sys, 1, 7, 0x0500)
    add_kfd_process(box.sys, 101, {7: 80 * GIB})
    add_process(box.proc, 100, *SERVE, group=100)
    add_process(box.proc, 101, "VLLM::EngineCore", parent=100, group=100)
    add_process(box.proc, 102, "VLLM::Worker_TP0", parent=101, group=100)
    add_process(box.proc, 103, "VLLM::Worker_TP1", parent=101, group=100)
    add_process(box.proc, 200, "VLLM::EngineCore")
    add_process(box.proc, 201, "vllm", "serve", "m", state="Z")
    add_process(box.proc, 300, "bash")
    profile = profile_of(tmp_path, args={"gpu-memory-utilization": 0.1})
    first, second = (one for one in check(box, profile, "rocm") if one.id == "leftover-server")
    assert first.seen == (
        "vLLM runs already: pid 100 (/usr/bin/python3 /opt/vllm/bin/vllm serve org/model --api-key ***), "
        "pid 101 (VLLM::EngineCore), pid 102 (VLLM::Worker_TP0) and 1 more, holding 80.0 GiB of GPU memory"
    )
    assert (first.severity, first.fix) == ("warns", "kill 100 101 102 103")
    assert (second.seen, second.fix) == ("vLLM runs already: pid 200 (VLLM::EngineCore)", "kill 200")


def test_what_this_process_started_is_no_leftover(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    add_process(box.proc, os.getpid(), "vramp")
    add_process(box.proc, 400, "guard", parent=os.getpid())
    add_process(box.proc, 401, *SERVE, parent=400)
    assert leftovers(box) == []


def test_a_real_process_is_a_leftover_to_everybody_but_who_started_it() -> None:
    look = (
        "from loadgen.server.preflight.box_view import Box; from loadgen.server.preflight.leftovers import leftovers\n"
        "print(*(one.pid for group in leftovers(Box()) for one in group))"
    )
    with subprocess.Popen(["VLLM::EngineCore", "60"], executable=shutil.which("sleep")) as process:
        try:
            ours = [one.pid for group in leftovers(Box()) for one in group]
            others = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
        finally:
            process.kill()
    assert process.pid not in ours
    assert str(process.pid) in others.split()


def test_a_process_whose_parent_cannot_be_seen(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    add_process(box.proc, 401, *SERVE, parent=400)
    assert [[process.pid for process in group] for group in leftovers(box)] == [[401]]


def test_a_server_that_vramp_left_running_is_ended_by_vramp(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    add_process(box.proc, 500, *SERVE)
    record = ServerRecord(
        guard=ProcessId(499, 1),
        server=ProcessId(500, 5000),
        tree=(),
        port=18_765,
        url="http://127.0.0.1:18765",
        profile="p",
        model="m",
        command=[],
        kill_command=None,
        log_path="",
        started_unix_s=0.0,
        left=True,
    )
    path = record_path(18_765)
    path.write_bytes(msgspec.json.encode(record))
    try:
        assert only(box, profile_of(tmp_path)).fix == "vramp stop 18765"
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, server=ProcessId(500, 4))))
        assert only(box, profile_of(tmp_path)).fix == "kill 500"  # another process that got the same pid
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("cgroup", "fix"),
    [
        (f"0::/system.slice/docker-{'0123456789ab' + 'c' * 52}.scope", "docker stop 0123456789ab"),
        (f"12:memory:/docker/{'0123456789ab' + 'c' * 52}", "docker stop 0123456789ab"),
        (f"0::/machine.slice/libpod-{'0123456789ab' + 'c' * 52}.scope/container", "podman stop 0123456789ab"),
        ("0::/user.slice/user-1000.slice/session-3.scope", "kill 600"),
    ],
)
def test_a_server_in_a_container_is_ended_by_its_container(tmp_path: Path, cgroup: str, fix: str) -> None:
    box = healthy_box(tmp_path)
    add_process(box.proc, 600, "VLLM::EngineCore")
    write(box.proc / "600/cgroup", cgroup)
    assert only(box, profile_of(tmp_path)).fix == fix


def test_a_process_of_another_user_needs_more_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = healthy_box(tmp_path)
    add_process(box.proc, 700, "VLLM::EngineCore")
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)  # only root could give a file to somebody else
    assert only(box, profile_of(tmp_path)).fix == "sudo kill 700"
