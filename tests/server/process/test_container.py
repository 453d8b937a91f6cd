"""The container of a server against a stand-in for docker with a memory, and against a real daemon if there is any."""

from __future__ import annotations

import asyncio
import io
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from loadgen.errors import ServerError
from loadgen.profile.schema import Docker, Server
from loadgen.server.process import container
from loadgen.server.process.container import Container, container_ids, container_of, read_id, remove_container
from loadgen.server.process.guard_client import stop_server
from loadgen.server.process.records import find_servers, list_servers
from loadgen.server.supervisor import ManagedServer
from tests.server.fakes import PATIENCE_S, FakeDocker, eventually, fake_docker, kill_at_once, wait_until


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[FakeDocker]:
    with fake_docker(tmp_path) as running:
        yield running


def started(docker: FakeDocker, name: str = "8000-x") -> Container:
    docker.run(name, "vramp.server=x")
    return Container(str(docker.executable), str(docker.folder / name), "x", {})


def test_it_is_known_by_a_name_of_its_own_a_label_and_its_id(tmp_path: Path) -> None:
    chosen = {"DOCKER_HOST": "ssh://gpu-1", "DOCKER_AUTH_CONFIG": "secret", "PATH": "/bin"}
    contained = container_of("docker", id_file=tmp_path / "8000-x.cid", label="x", environment=chosen)
    assert contained.environment == {"DOCKER_HOST": "ssh://gpu-1"}
    assert contained.flags == [
        *("--name", "vramp-8000-x", "--label", "vramp.server=x", "--cidfile", str(tmp_path / "8000-x.cid"))
    ]


@pytest.mark.parametrize("text", ["", "0123456789ab", "--force", "a" * 63 + "/", "\u00e9"])
def test_what_is_no_id_is_not_taken_for_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "cid").write_text(text)
    assert read_id(str(tmp_path / "cid")) is None


def test_only_the_container_of_the_id_is_removed(docker: FakeDocker) -> None:
    theirs, ours = started(docker, "theirs"), started(docker)
    assert len(container_ids(ours)) == 1
    assert remove_container(ours) == ""
    assert container_ids(ours) == []
    assert len(container_ids(theirs)) == 1
    assert remove_container(ours) == ""


@pytest.mark.parametrize("habit", ["rm-fails", "rm-hangs"])
def test_what_cannot_be_removed_is_reported(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch, habit: str) -> None:
    if habit == "rm-hangs":  # one that fails is waited for: its program takes a while to start on a busy machine
        monkeypatch.setattr(container, "_REMOVE_WAIT_S", 0.3)
    monkeypatch.setattr(container, "_GOING_WAIT_S", 0.0)
    ours = started(docker)
    docker.behave(habit)
    how = "ended with exit code 1: docker: it does not want to" if habit == "rm-fails" else "did not end within 0.3 s"
    assert remove_container(ours) == (
        f"the container {Path(ours.id_file).read_text()[:12]} could not be removed: {docker.executable} rm {how}"
    )


def test_one_that_stays_although_it_was_removed_is_reported(
    docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "_GOING_WAIT_S", 0.0)
    ours = started(docker)
    docker.behave("rm-lies")
    assert remove_container(ours) == (
        f"the container {Path(ours.id_file).read_text()[:12]} is still there after it was removed"
    )


def test_one_that_goes_already_is_no_problem(docker: FakeDocker) -> None:
    ours = started(docker)
    docker.behave("rm-fails goes-when-told")  # as of one that --rm removes at the moment
    assert remove_container(ours) == ""


def test_a_program_that_is_gone_is_reported(docker: FakeDocker) -> None:
    ours = started(docker)
    docker.executable.unlink()
    with pytest.raises(ServerError, match=r"cannot run .*docker ps: No such file"):
        container_ids(ours)
    assert "cannot run" in remove_container(ours)


# A real daemon.

IMAGE = "vramp-test-of-nothing"
HOST = tuple(folder for folder in ("/usr", "/bin", "/lib", "/lib64") if Path(folder).exists())
SLEEPS = ["/bin/sh", "-c", "trap 'exit 0' INT; while :; do sleep 0.1; done", "--"]


@pytest.fixture
def real_docker() -> Iterator[str]:
    """The path of a docker whose daemon answers, and which has an image whose programs are the host's."""
    program = shutil.which("docker")
    if program is None or subprocess.run([program, "info"], capture_output=True, check=False).returncode != 0:
        pytest.skip("there is no docker daemon on this machine that this user may ask")
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    subprocess.run([program, "import", "-", IMAGE], input=empty.getvalue(), capture_output=True, check=True)
    yield program
    subprocess.run([program, "rmi", "--force", IMAGE], capture_output=True, check=True)


def in_container(program: str) -> Server:
    mounts = [f"{folder}:{folder}:ro" for folder in HOST]
    settings = Docker(image=IMAGE, executable=program, network="host", mounts=mounts, serve=SLEEPS)
    return Server(engine="docker", model="m", docker=settings, stop_timeout_s=PATIENCE_S)


async def test_a_real_container_stops_by_its_id(real_docker: str, tmp_path: Path) -> None:
    server = ManagedServer(in_container(real_docker), log_path=tmp_path / "log")
    async with server:
        (record,) = list_servers()
        assert record.container is not None
        contained = record.container
        await eventually(lambda: bool(container_ids(contained)))
    assert (await server.stop()).clean
    assert container_ids(contained) == []
    assert list_servers() == []


STARTED = """
import asyncio, sys
from pathlib import Path
from loadgen.profile.schema import Server
from loadgen.server.supervisor import ManagedServer

async def main():
    server = ManagedServer(Server.model_validate_json(sys.argv[1]), log_path=Path(sys.argv[2]))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_real_container_is_found_when_all_its_processes_were_killed(real_docker: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", STARTED, in_container(real_docker).model_dump_json(), str(tmp_path / "log")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as vramp:
        assert vramp.stdout is not None
        client = psutil.Process(int(vramp.stdout.readline()))
        (record,) = list_servers()
        contained = record.container
        assert contained is not None
        wait_until(lambda: read_id(contained.id_file) is not None)
        guard = client.parent()
        assert guard is not None
        kill_at_once(psutil.Process(vramp.pid), guard, client)
    (found,), _ = find_servers([real_docker])
    assert (found.orphaned, found.container, found.mark) == (True, contained, record.mark)
    Path(contained.id_file).unlink()  # as where the folder was lost: the label still tells
    assert asyncio.run(stop_server(found, timeout_s=PATIENCE_S)).clean
    assert container_ids(contained) == []
    assert find_servers([real_docker]) == ([], [])
