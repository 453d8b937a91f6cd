import os
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ServerError
from loadgen.profile import Server
from loadgen.server.process.container import stop_commands
from loadgen.server.vllm.command import server_command

NAME = f"vramp-8000-{os.getpid()}"


@pytest.fixture
def docker(tmp_path: Path) -> str:
    executable = tmp_path / "docker"
    executable.touch(mode=0o755)
    return str(executable)


def in_container(docker: str, *, args: dict[str, Any] | None = None, **keys: Any) -> Server:
    return Server.model_validate(
        {
            "engine": "docker",
            "model": "org/m",
            "env": {"HF_TOKEN": "secret"},
            "args": args or {},
            "stop_timeout_s": 7,
            "docker": {"image": "vllm:1", "executable": docker, **keys},
        }
    )


def test_a_published_docker_run(docker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    server = in_container(
        docker,
        devices=["/dev/kfd", "/dev/dri"],
        groups=["video"],
        ipc="host",
        mounts=["~/models:/models:ro"],
        shm_size="16g",
        capabilities=["SYS_PTRACE"],
        security_options=["seccomp=unconfined"],
        args={"max-num-seqs": 8},
    )
    assert server_command(server, port=8000) == [
        *(docker, "run", "--rm", "--name", NAME, "--stop-signal", "SIGINT", "--network", "host"),
        *("--ipc", "host", "--shm-size", "16g", "--device", "/dev/kfd", "--device", "/dev/dri"),
        *("--group-add", "video", "--cap-add", "SYS_PTRACE", "--security-opt", "seccomp=unconfined"),
        *("--volume", "/home/me/models:/models:ro", "--env", "HF_TOKEN", "vllm:1"),
        *("vllm", "serve", "org/m", "--host", "127.0.0.1", "--port", "8000", "--max-num-seqs", "8"),
    ]


def test_another_network_publishes_the_port_on_the_hosts_address_only(docker: str) -> None:
    words = server_command(in_container(docker, network="bridge", gpus="all", serve=[]), port=8001)
    assert words[words.index("--publish") + 1] == "127.0.0.1:8001:8001"
    assert words[words.index("--gpus") + 1] == "all"
    assert words[words.index("vllm:1") :] == ["vllm:1", "org/m", "--host", "0.0.0.0", "--port", "8001"]


def test_a_container_is_stopped_and_removed_by_its_name(docker: str) -> None:
    assert stop_commands(in_container(docker), port=8000) == (
        [docker, "stop", "-t", "7", NAME],
        [docker, "rm", "--force", NAME],
    )
    assert stop_commands(Server(engine="simulator"), port=8000) is None


def test_a_missing_docker_is_named() -> None:
    with pytest.raises(ServerError, match=r"server\.docker\.executable = 'no-such-docker': not found"):
        server_command(in_container("no-such-docker"), port=1)
