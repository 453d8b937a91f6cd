"""GPUs whose memory is in use before the start."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadgen.schema.samples import GpuProcess
from loadgen.server.preflight.box_gpus import is_vllm, leftovers
from loadgen.server.preflight.check import box_findings
from loadgen.server.preflight.facts import Box
from loadgen.server.process.records import new_mark, record_path, servers_folder
from loadgen.server.process.tree import process_info
from tests.server.fakes import DEAD, fake_docker, sleeping, write_record
from tests.server.gpu_trees import GIB, MIB, add_amd_gpu, add_kfd_node, add_kfd_process, add_process, write
from tests.server.preflight.boxes import add_h200, check, healthy_box, only, profile_of, setup_of

ROOT = Path(__file__).parents[3]
IDLE, SOME, MUCH = GIB, 12 * GIB, 150 * GIB


def box_with(tmp_path: Path, *used: int) -> Box:
    """AMD GPUs with so much in use each, all by process 70."""
    box = healthy_box(tmp_path)
    for index, amount_bytes in enumerate(used):
        add_amd_gpu(box.sys, index, 5 + index, used=amount_bytes)
        add_kfd_node(box.sys, 1 + index, 100 + index, (5 + index) << 8)
    add_kfd_process(box.sys, 70, {100 + index: amount_bytes for index, amount_bytes in enumerate(used)})
    add_process(box.proc, 70, "python", "train.py", "--api-key", "secret", name="python")
    return box


def found(tmp_path: Path, *used: int, **server: Any) -> list[tuple[str, str, list[str]]]:
    """Id, severity and GPUs of each finding."""
    findings = check(box_with(tmp_path, *used), profile_of(tmp_path, **server), "rocm")
    return [(one.id, one.severity, [text.split()[1] for text in one.seen.split("; ")]) for one in findings]


def test_who_holds_the_memory_is_named_without_secrets(tmp_path: Path) -> None:
    finding = only(box_with(tmp_path, MUCH), profile_of(tmp_path), "rocm")
    assert (finding.id, finding.severity) == ("gpu-memory-taken", "blocks")
    holder = f"pid 70 of {pwd.getpwuid(os.getuid()).pw_name} with 150.0 GiB (python train.py --api-key ***)"
    assert finding.seen == f"GPU 0 (MI300X): 150.0 GiB of 192.0 GiB in use by {holder}"


@pytest.mark.parametrize(
    ("used", "args", "name", "severity"),
    [
        (SOME, {}, "gpu-memory-used", "warns"),
        (SOME, {"gpu-memory-utilization": 0.99}, "gpu-memory-taken", "blocks"),
        (SOME, {"gpu_memory_utilization": "0.95"}, "gpu-memory-taken", "blocks"),
        (SOME, {"gpu-memory-utilization": "most"}, "gpu-memory-used", "warns"),  # for vLLM to refuse
        (MUCH, {"gpu-memory-utilization": 0.2}, "gpu-memory-used", "warns"),
    ],
)
def test_the_share_that_vllm_may_take(
    tmp_path: Path, used: int, args: dict[str, Any], name: str, severity: str
) -> None:
    assert found(tmp_path, used, args=args) == [(name, severity, ["0"])]


@pytest.mark.parametrize(
    ("server", "gpus"),
    [
        ({}, []),
        ({"args": {"tensor-parallel-size": 2}}, ["1"]),
        ({"instances": 3, "platform": "rocm"}, ["1", "2"]),
        ({"env": {"HIP_VISIBLE_DEVICES": "2,0"}}, ["2"]),
        ({"env": {"CUDA_VISIBLE_DEVICES": "1"}}, ["1"]),
        ({"env": {"ROCR_VISIBLE_DEVICES": "3,2", "HIP_VISIBLE_DEVICES": "1"}}, ["2"]),
        ({"env": {"ROCR_VISIBLE_DEVICES": "3"}}, []),
    ],
)
def test_the_gpus_that_were_chosen(tmp_path: Path, server: dict[str, Any], gpus: list[str]) -> None:
    expected = [("gpu-memory-taken", "blocks", gpus)] if gpus else []
    assert found(tmp_path, IDLE, MUCH, MUCH, IDLE, **server) == expected


@pytest.mark.parametrize("visible", ["GPU-1a2b", "0,9"])
def test_gpus_chosen_by_other_names_block_only_if_too_few_are_free(tmp_path: Path, visible: str) -> None:
    env = {"HIP_VISIBLE_DEVICES": visible}
    assert found(tmp_path, IDLE, MUCH, env=env) == [("gpu-memory-used", "warns", ["1"])]


def test_too_few_free_gpus_block_whichever_are_chosen(tmp_path: Path) -> None:
    server = {"env": {"HIP_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "args": {"tensor-parallel-size": 2}}
    assert found(tmp_path, IDLE, MUCH, **server) == [("gpu-memory-taken", "blocks", ["1"])]


def test_partitions_cannot_be_distinguished(tmp_path: Path) -> None:
    box = box_with(tmp_path, IDLE, MUCH)
    add_kfd_node(box.sys, 9, 109, 0x0501)
    assert only(box, profile_of(tmp_path), "rocm").id == "gpu-memory-used"


@pytest.mark.parametrize(
    ("table", "blocked"),
    [({"gpus": "all"}, ["0"]), ({"gpus": '"device=1"'}, []), ({"devices": ["/dev/dri/renderD128"]}, []), ({}, ["0"])],
)
def test_the_gpus_of_a_container(tmp_path: Path, table: dict[str, Any], blocked: list[str]) -> None:
    docker = {"image": "i", "ipc": "host", "executable": "/bin/sh"} | table
    findings = found(tmp_path, MUCH, IDLE, engine="docker", model="/image/model", docker=docker)
    assert [gpus for name, _, gpus in findings if name == "gpu-memory-taken"] == ([blocked] if blocked else [])


def test_a_small_gpu_of_the_other_maker_is_not_meant(tmp_path: Path) -> None:
    box = box_with(tmp_path, MUCH)
    add_h200(box, 10 * MIB)
    assert check(box, profile_of(tmp_path), "cuda") == []


def test_nvidia_is_judged_alike_and_many_holders_are_counted(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    add_h200(box, 90000 * MIB, *(GpuProcess(pid, "", GIB) for pid in range(84, 79, -1)))
    finding = only(box, profile_of(tmp_path), "cuda")
    holders = "pid 80 with 1.0 GiB, pid 81 with 1.0 GiB, pid 82 with 1.0 GiB, 2 more"
    assert finding.seen == f"GPU 0 (H200): 87.9 GiB of 140.4 GiB in use by {holders}"


def test_the_memory_of_other_partitions_blocks_nothing(tmp_path: Path) -> None:
    box = box_with(tmp_path, MUCH)
    write(tmp_path / "sys/class/drm/card0/device/current_compute_partition", "CPX")
    for node in range(9, 16):
        add_kfd_node(box.sys, node, 100 + node, 0x0500 + node - 8)
    assert {one.id for one in check(box, profile_of(tmp_path), "rocm")} == {"gpu-memory-used", "gpu-partitions"}


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
        "from loadgen.server.preflight.facts import Box; from loadgen.server.preflight.box_gpus import leftovers\n"
        "print(*(one.id.pid for group in leftovers(Box()) for one in group))"
    )
    with subprocess.Popen(["VLLM::EngineCore", "60"], executable=shutil.which("sleep")) as process:
        try:
            ours = [one.id.pid for group in leftovers(Box()) for one in group]
            others = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
        finally:
            process.kill()
    assert process.pid not in ours
    assert str(process.pid) in others.split()


def test_a_process_whose_parent_cannot_be_seen(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    add_process(box.proc, 401, *SERVE, parent=400)
    assert [[process.id.pid for process in group] for group in leftovers(box)] == [[401]]


LOOK = """
import sys
from pathlib import Path
from tests.server.preflight.boxes import check, profile_of
from loadgen.server.preflight.facts import Box
for finding in check(Box(), profile_of(Path(sys.argv[1]))):
    if finding.id in ("leftover-server", "orphaned-server") and sys.argv[2] in finding.seen:
        print(finding.id, finding.fix)
"""


@pytest.mark.parametrize(
    ("guarded", "reported"), [(True, "leftover-server vramp stop 18765"), (False, "orphaned-server vramp stop 18765")]
)
def test_a_server_that_vramp_left_is_ended_by_vramp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: bool, reported: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with sleeping() as guard, subprocess.Popen(["VLLM::EngineCore", "60"], executable=shutil.which("sleep")) as process:
        info = process_info(process.pid)
        assert info is not None
        write_record(18_765, guard=guard if guarded else DEAD, server=info.id, tree=[info.id])
        command = [sys.executable, "-c", LOOK, str(tmp_path), str(process.pid)]
        said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        process.kill()
    assert said.splitlines() == [reported]


def test_a_container_that_was_left_is_found_whatever_path_the_image_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    profile = profile_of(tmp_path, engine="docker", model="/in/the/image", docker={"image": "i", "ipc": "host"})
    mark = new_mark(18_766, DEAD)
    with fake_docker(tmp_path) as docker:
        docker.run(f"vramp-{record_path(mark).stem}", f"vramp.server={mark}")
        image = {"PATH": "/opt/venv/bin"}
        setup = setup_of(healthy_box(tmp_path), profile, "cpu", image=image)
        findings, _ = box_findings(setup)
    assert [(finding.id, finding.fix) for finding in findings] == [("orphaned-server", "vramp stop 18766")]


def test_a_state_folder_that_others_can_write_to_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    servers_path = servers_folder()
    servers_path.chmod(0o777)
    (finding,) = check(healthy_box(tmp_path), profile_of(tmp_path))
    assert (finding.id, finding.severity) == ("state-folder", "blocks")
    assert finding.seen.endswith("others can write to it")
    assert finding.fix.startswith(f"chmod go-w {servers_path}, or set XDG_STATE_HOME")


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
