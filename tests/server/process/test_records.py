"""Servers found again: by record and by mark, over real processes and a stand-in for docker."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ServerError
from loadgen.server.process import container, records
from loadgen.server.process.container import Container
from loadgen.server.process.guard_client import stop_server
from loadgen.server.process.records import (
    VARIABLE,
    ServerMark,
    find_servers,
    id_file,
    list_servers,
    new_mark,
    read_mark,
    record_path,
    servers_folder,
)
from loadgen.server.process.tree import ProcessId, all_processes, process_info
from tests.server.fakes import (
    DEAD,
    PATIENCE_S,
    FakeDocker,
    FakeServer,
    fake_docker,
    is_gone,
    kill_at_once,
    wait_until,
    write_record,
)
from tests.server.test_supervisor import PARENT, ROOT

# Marks.


@given(st.integers(0, 65535), st.integers(1, 2**22), st.integers(0, 2**60))
def test_a_mark_is_read_as_it_was_written(port: int, pid: int, ticks: int) -> None:
    mark = new_mark(port, ProcessId(pid, ticks))
    assert read_mark(str(mark)) == mark
    assert mark.is_here
    assert new_mark(port, mark.guard) != mark


@given(st.text() | st.from_regex(r"[0-9a-f:.-]*"))
def test_malformed_marks_are_not_read(text: str) -> None:
    assert read_mark(text) is None


# Records.


def test_a_server_is_listed_while_anything_of_it_lives(sleeper: ProcessId) -> None:
    write_record(8001, guard=sleeper)
    write_record(8002, server=sleeper)
    write_record(8003, tree=[DEAD, sleeper])
    write_record(8004, tree=[DEAD])
    assert [record.port for record in list_servers()] == [8001, 8002, 8003]
    assert [record.orphaned for record in list_servers()] == [False, True, True]
    assert [path.name[:4] for path in sorted(servers_folder().iterdir())] == ["8001", "8002", "8003"]


def test_records_of_other_versions_stay_and_are_reported(sleeper: ProcessId) -> None:
    older = {"guard": {"pid": sleeper.pid, "start_ticks": sleeper.start_ticks}, "port": 8000, "kill_command": ["rm"]}
    for name, text in {"8000.json": json.dumps(older), "8001.json": "{", "8002.json": "[]"}.items():
        (servers_folder() / name).write_text(text)
    servers, doubts = find_servers()
    assert servers == []
    assert [doubt.partition(": ")[0] for doubt in doubts] == [
        str(servers_folder() / f"{port}.json") for port in (8000, 8001, 8002)
    ]
    assert "another version of vramp" in doubts[0]
    assert len(list(servers_folder().iterdir())) == 3


def test_a_record_that_goes_while_it_is_read_leaves_no_doubt() -> None:
    (servers_folder() / "8000-x.json").symlink_to("gone")  # listed, and not there to be read
    assert find_servers() == ([], [])


def test_after_another_boot_the_pids_mean_nothing(sleeper: ProcessId) -> None:
    write_record(8000, guard=sleeper, server=sleeper, tree=[sleeper], boot="0" * 36)
    assert find_servers() == ([], [])
    assert list(servers_folder().iterdir()) == []
    assert process_info(sleeper.pid) is not None


def test_a_server_in_another_pid_namespace_is_left_alone(sleeper: ProcessId) -> None:
    path = record_path(write_record(8000, guard=sleeper, server=sleeper, namespace="1").mark)
    servers, doubts = find_servers()
    assert servers == []
    assert doubts == [
        "port 8000: started in another container (pid namespace), and can be ended only there; if that is gone, remove "
        f"{path}"
    ]
    assert list(servers_folder().iterdir()) == [path]


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    servers_folder().chmod(0o770)
    with pytest.raises(ServerError, match=r"others can write to it; chmod go-w /\S+, or set XDG_STATE_HOME"):
        list_servers()


def test_state_that_cannot_be_kept_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(ServerError, match="set XDG_STATE_HOME"):
        list_servers()


def test_a_kernel_without_a_boot_id_starts_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records._here.cache_clear()
    monkeypatch.setattr(records, "_PROC", tmp_path)
    with pytest.raises(ServerError, match=r"boot_id: No such file or directory; .* --url attaches"):
        new_mark(8000, ProcessId(1, 1))


# Orphans: vramp and its guard are killed at once.


@contextmanager
def orphaned(
    fake: FakeServer, habits: str = "deaf children escape", *, processes: int = 3
) -> Iterator[list[psutil.Process]]:
    """What is left of a server whose vramp and guard were killed."""
    profile = json.dumps(fake.profile(habits).model_dump())
    words = [sys.executable, "-c", PARENT, profile, str(fake.log), "killed"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as vramp:
        assert vramp.stdout is not None
        vramp.stdout.readline()
        tree = fake.processes(processes)
        guard = tree[0].parent()
        assert guard is not None
        kill_at_once(psutil.Process(vramp.pid), guard)
        vramp.wait()
    try:
        yield tree
    finally:
        for process in tree:
            if not is_gone(process):
                process.kill()


@pytest.mark.parametrize("recorded", [True, False])
async def test_orphans_are_found_by_their_mark_and_ended_on_request(fake: FakeServer, recorded: bool) -> None:
    with orphaned(fake) as tree:
        if not recorded:
            for path in servers_folder().iterdir():
                path.unlink()
        (record,) = list_servers()
        assert record.orphaned
        assert {process.pid for process in record.tree} == {process.pid for process in tree}
        assert record.server.pid == tree[0].pid
        assert str(tree[0].pid) in records.orphan_words(record)
        assert all(not is_gone(process) for process in tree), "ended although nobody asked for it"
        report = await stop_server(record, timeout_s=PATIENCE_S)
        assert report.clean
        assert {process.pid for process in report.killed} == {process.pid for process in tree}
        fake.assert_gone(tree)
    assert find_servers() == ([], [])
    assert list(servers_folder().iterdir()) == []


def test_a_server_that_obeys_ends_with_its_guard(fake: FakeServer) -> None:
    with orphaned(fake, "", processes=1) as tree:
        fake.assert_gone(tree)
    assert find_servers() == ([], [])


def start_marked(mark: ServerMark) -> subprocess.Popen[bytes]:
    environment = {"PATH": os.environ["PATH"], VARIABLE: str(mark)}
    process = subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)
    wait_until(lambda: VARIABLE in psutil.Process(process.pid).environ())  # the kernel shows it only after the exec
    return process


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, True),
        ({"owner": "0" * 12}, False),
        ({"boot": "0" * 36}, False),
        ({"namespace": "1"}, False),
        ({"guard": ProcessId(1, 2**62)}, False),  # older than the guard that it names
    ],
)
def test_which_marks_are_ours(change: dict[str, str], found: bool) -> None:
    mark = msgspec.structs.replace(new_mark(8000, DEAD), **change)
    with start_marked(mark) as process:
        try:
            assert [record.server.pid for record in list_servers()] == ([process.pid] if found else [])
        finally:
            process.kill()


@contextmanager
def started_by_hand(mark: ServerMark) -> Iterator[int]:
    """A marked process in the session of a stranger, as in a terminal with an environment copied from the server's."""
    words = ["sh", "-c", f"{VARIABLE}='{mark}' sleep 600 & echo $!; wait"]
    with subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE) as leader:
        assert leader.stdout is not None
        child = psutil.Process(int(leader.stdout.readline()))
        wait_until(lambda: child.name() == "sleep")
        yield child.pid
        child.kill()


def test_a_process_in_the_session_of_a_stranger_is_not_ours() -> None:
    with started_by_hand(new_mark(8000, DEAD)):
        assert list_servers() == []


def test_a_session_from_outside_the_namespace_is_a_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    # A session of another pid namespace cannot be had without root: what the kernel says of one is put in its place.
    with start_marked(new_mark(8000, DEAD)) as process:
        try:
            found = all_processes()
            found[process.pid] = dataclasses.replace(found[process.pid], session=0)
            monkeypatch.setattr(records, "all_processes", lambda: found)
            assert list_servers() == []
        finally:
            process.kill()


def test_a_session_whose_leader_is_a_zombie_is_still_ours() -> None:
    environment = {"PATH": os.environ["PATH"], VARIABLE: str(new_mark(8000, DEAD))}
    words = ["sh", "-c", "sleep 600 & echo $!"]
    with subprocess.Popen(words, env=environment, start_new_session=True, stdout=subprocess.PIPE) as leader:
        assert leader.stdout is not None
        child = psutil.Process(int(leader.stdout.readline()))
        # Amid its exec a process has no environment; the kernel renames it before it shows the new one.
        wait_until(lambda: child.name() == "sleep" and VARIABLE in child.environ())
        wait_until(lambda: psutil.Process(leader.pid).status() == psutil.STATUS_ZOMBIE)
        found = [record.server.pid for record in list_servers()]
        child.kill()
    assert found == [child.pid]


# Containers.


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[FakeDocker]:
    folder = tmp_path / "docker"
    folder.mkdir()
    with fake_docker(folder) as running:
        yield running


def start_contained(docker: FakeDocker, mark: ServerMark) -> Container:
    """A container of a server whose vramp, guard and client are gone."""
    contained = Container(str(docker.executable), str(id_file(record_path(mark))), str(mark), {})
    client = subprocess.Popen([str(docker.executable), "run", "--rm", *contained.flags], stdout=subprocess.DEVNULL)
    assert docker.container.is_running()
    client.kill()
    client.wait()
    return contained


@pytest.mark.parametrize("known_by", ["id", "label", "label alone"])
async def test_container_without_processes_is_ended(docker: FakeDocker, known_by: str) -> None:
    mark = new_mark(8000, DEAD)
    contained = start_contained(docker, mark)
    theirs = docker.run("theirs", "vramp.server=x")
    if known_by != "label alone":
        write_record(mark=mark, container=contained)
    if known_by != "id":
        os.unlink(contained.id_file)  # noqa: PTH108 - pathlib's would be taken for one that blocks
    (record,), _ = find_servers([str(docker.executable)])
    assert (record.port, record.orphaned, record.container) == (8000, True, contained)
    assert (await stop_server(record, timeout_s=PATIENCE_S)).clean
    wait_until(lambda: is_gone(docker.container))
    assert theirs.is_running()
    assert find_servers([str(docker.executable)]) == ([], [])
    assert list(servers_folder().iterdir()) == []


async def test_before_a_record_is_stale_its_daemon_is_asked(
    docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = new_mark(8000, DEAD)
    record = write_record(mark=mark, container=start_contained(docker, mark))
    docker.behave("late")
    assert find_servers() == ([record], [])

    with monkeypatch.context() as impatient:
        impatient.setattr(container, "_ANSWER_WAIT_S", 0.2)
        docker.daemon.suspend()
        found = find_servers()
        report = await stop_server(record, timeout_s=PATIENCE_S)
    silent = f"{docker.executable} ps did not end within 0.2 s"
    assert found == ([record], [f"port 8000: its container may still run: {silent}"])
    assert (report.clean, report.problem) == (False, silent)
    assert record_path(mark).exists()

    docker.daemon.resume()
    docker.behave("")
    assert (await stop_server(record, timeout_s=PATIENCE_S)).clean
    assert find_servers() == ([], [])
    assert is_gone(docker.container)


def test_a_record_whose_container_is_gone_is_removed(docker: FakeDocker) -> None:
    mark = new_mark(8000, DEAD)
    contained = start_contained(docker, mark)
    write_record(mark=mark, container=contained)
    docker.container.kill()
    wait_until(lambda: container.container_ids(contained) == [])
    assert find_servers() == ([], [])
    assert list(servers_folder().iterdir()) == []


@pytest.mark.parametrize("change", [{"owner": "0" * 12}, {"namespace": "1"}])
def test_containers_of_others_are_none_of_ours(docker: FakeDocker, change: dict[str, str]) -> None:
    start_contained(docker, msgspec.structs.replace(new_mark(8000, DEAD), **change))
    assert find_servers([str(docker.executable)]) == ([], [])


@pytest.mark.parametrize("recorded", [True, False])
def test_a_container_that_got_our_label_from_an_image_is_none_of_ours(docker: FakeDocker, recorded: bool) -> None:
    mark = new_mark(8000, DEAD)
    theirs = docker.run("theirs", f"vramp.server={mark}")  # as one from an image that `docker commit` made of ours
    contained = Container(str(docker.executable), str(id_file(record_path(mark))), str(mark), {})
    if recorded:
        write_record(mark=mark, container=contained)
    assert find_servers([str(docker.executable)]) == ([], [])
    assert container.remove_container(contained) == ""
    assert theirs.is_running()


def test_a_daemon_that_is_not_there_is_reported(docker: FakeDocker) -> None:
    docker.daemon.kill()
    docker.daemon.wait()
    _, (doubt,) = find_servers([str(docker.executable)])
    assert doubt.startswith("containers that vramp left cannot be looked for: ")
    assert "Is the docker daemon running?" in doubt
