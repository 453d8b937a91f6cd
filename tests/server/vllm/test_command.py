"""How one profile becomes several servers, as tables: ports, devices, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ProfileError, ServerError
from loadgen.profile.schema import Server
from loadgen.server.vllm.command import (
    instance_servers,
    server_command,
    server_environment,
)
from loadgen.server.vllm.flags import devices_each


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"max-model-len": 8192}, ["--max-model-len", "8192"]),
        ({"gpu-memory-utilization": 0.95}, ["--gpu-memory-utilization", "0.95"]),
        ({"dtype": "bfloat16"}, ["--dtype", "bfloat16"]),
        ({"enforce-eager": True}, ["--enforce-eager"]),
        ({"enable-prefix-caching": False}, ["--no-enable-prefix-caching"]),
        ({"compilation-config": {"cudagraph_mode": "FULL"}}, ["--compilation-config", '{"cudagraph_mode": "FULL"}']),
        ({"allowed-origins": ["a", "b"]}, ["--allowed-origins", '["a", "b"]']),
        ({"middleware": ["a", "b"]}, ["--middleware", "a", "--middleware", "b"]),
        ({"api-key": ["a", "b"]}, ["--api-key", "a", "b"]),
        ({"lora-modules": [{"name": "x"}, 3]}, ["--lora-modules", '{"name": "x"}', "3"]),
        ({"--swap-space": 0}, ["--swap-space", "0"]),
        ({"chat-template": "-x"}, ["--chat-template=-x"]),
        ({"text": "two words; rm"}, ["--text", "two words; rm"]),
        ({"a": 1, "b": True}, ["--a", "1", "--b"]),
        ({}, []),
    ],
)
def test_args_become_flags(args: dict[str, Any], words: list[str]) -> None:
    command = server_command(Server(engine="simulator", args=args), port=8000)
    assert command == [sys.executable, "-P", "-m", "loadgen.simulator", "--host", "127.0.0.1", "--port", "8000", *words]


@pytest.mark.parametrize("flag", ["host", "port", "served-model-name", "--port"])
def test_flags_that_vramp_sets_are_refused(flag: str) -> None:
    with pytest.raises(ProfileError, match=r"use server\."):
        server_command(Server(engine="simulator", args={flag: "x"}), port=1)


def test_the_simulator_takes_its_name_from_the_model_too() -> None:
    by_model = server_command(Server(engine="simulator", model="m"), port=1)
    by_name = server_command(Server(engine="simulator", model="m", served_model_name="n"), port=1)
    assert by_model[-2:] == ["--served-model-name", "m"]
    assert by_name[-2:] == ["--served-model-name", "n"]


def test_vllm_with_a_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    executable = tmp_path / "vllm"
    executable.touch(mode=0o755)
    server = Server(engine="vllm", command="~/vllm", model="~/models/m", served_model_name="m", host="0.0.0.0")
    assert server_command(server, port=8000) == [
        *(str(executable), "serve", str(tmp_path / "models/m")),
        *("--host", "0.0.0.0", "--port", "8000", "--served-model-name", "m"),
    ]


def test_the_executable_is_found_on_the_profiles_path(tmp_path: Path) -> None:
    executable = tmp_path / "vllm"
    executable.touch(mode=0o755)
    server = Server(engine="vllm", model="org/m", env={"PATH": str(tmp_path)})
    assert server_command(server, port=1)[:3] == [str(executable), "serve", "org/m"]


def test_the_executable_is_found_next_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    python = Path(sys.executable)
    server = Server(engine="vllm", model="m", command=python.name)
    assert server_command(server, port=1)[0] == str(python)


def test_the_folder_of_an_environment_is_its_vllm(tmp_path: Path) -> None:
    executable = tmp_path / "bin" / "vllm"
    executable.parent.mkdir()
    executable.touch(mode=0o755)
    assert server_command(Server(engine="vllm", model="m", command=str(tmp_path)), port=1)[0] == str(executable)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-vllm", "not found on PATH"),
        ("/no/such/vllm", "does not exist"),
        (__file__, "is not executable"),
        ("x" * 5000, "not found"),
    ],
)
def test_a_missing_executable_is_named(command: str, message: str) -> None:
    with pytest.raises(ServerError, match=message) as caught:
        server_command(Server(engine="vllm", model="m", command=command), port=1)
    assert command in str(caught.value)


def test_the_profile_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "ours")
    monkeypatch.setenv("B", "ours")
    environment = server_environment(Server(engine="simulator", env={"B": "profile"}))
    assert (environment["A"], environment["B"], environment["PYTHONUNBUFFERED"]) == ("ours", "profile", "1")


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
        ulimits=["memlock=-1"],
        security_options=["seccomp=unconfined"],
        args={"max-num-seqs": 8},
    )
    assert server_command(server, port=8000, known_by=["--name", "x"]) == [
        *(docker, "run", "--rm", "--name", "x", "--stop-signal", "SIGINT", "--network", "host"),
        *("--ipc", "host", "--shm-size", "16g", "--device", "/dev/kfd", "--device", "/dev/dri"),
        *("--group-add", "video", "--ulimit", "memlock=-1"),
        *("--cap-add", "SYS_PTRACE", "--security-opt", "seccomp=unconfined"),
        *("--volume", "/home/me/models:/models:ro", "--env", "HF_TOKEN", "vllm:1"),
        *("vllm", "serve", "org/m", "--host", "127.0.0.1", "--port", "8000", "--max-num-seqs", "8"),
    ]


def test_another_network_publishes_the_port_on_the_hosts_address_only(docker: str) -> None:
    words = server_command(in_container(docker, network="bridge", gpus="all", serve=[]), port=8001)
    assert words[words.index("--publish") + 1] == "127.0.0.1:8001:8001"
    assert words[words.index("--gpus") + 1] == "all"
    assert words[words.index("vllm:1") :] == ["vllm:1", "org/m", "--host", "0.0.0.0", "--port", "8001"]


def test_a_missing_docker_is_named() -> None:
    with pytest.raises(ServerError, match=r"server\.docker\.executable = 'no-such-docker': not found"):
        server_command(in_container("no-such-docker"), port=1)


VARIABLES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@pytest.fixture(autouse=True)
def _no_devices_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def server(**settings: Any) -> Server:
    return Server.model_validate({"engine": "vllm", "model": "m", **settings})


def hip(devices: str) -> dict[str, str]:
    return {"HIP_VISIBLE_DEVICES": devices, "CUDA_VISIBLE_DEVICES": devices}


def cuda(devices: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": devices}


TP = "tensor-parallel-size"
CHOSEN = "HIP_VISIBLE_DEVICES"
IMAGE = {"image": "vllm/vllm-openai:v0.32.0"}


@pytest.mark.parametrize(
    ("settings", "envs"),
    [
        ({"platform": "rocm"}, [hip("0"), hip("1")]),
        ({"platform": "cuda"}, [cuda("0"), cuda("1")]),
        ({"platform": "cpu"}, [{}, {}]),
        ({}, [{}, {}]),
        ({"platform": "rocm", "engine": "simulator"}, [{}, {}]),
        ({"platform": "cuda", "args": {TP: 2}}, [cuda("0,1"), cuda("2,3")]),
        ({"platform": "cuda", "args": {"tp": 2, "pp": 2}}, [cuda("0,1,2,3"), cuda("4,5,6,7")]),
        ({"platform": "rocm", "env": {CHOSEN: "2, 3"}}, [hip("2"), hip("3")]),
        ({"platform": "rocm", "env": cuda("4,5"), "args": {"x": 1}}, [hip("4"), hip("5")]),
        ({"platform": "rocm", "env": {CHOSEN: "7,3,1,0"}, "args": {TP: "2"}}, [hip("7,3"), hip("1,0")]),
        ({"platform": "rocm", "env": {CHOSEN: ""}}, [hip("0"), hip("1")]),
        ({"platform": "cuda", "env": cuda("GPU-a,GPU-b"), "instances": 2}, [cuda("GPU-a"), cuda("GPU-b")]),
        ({"platform": "cuda", "env": {CHOSEN: "5"}}, [{CHOSEN: "5"} | cuda("0"), {CHOSEN: "5"} | cuda("1")]),
        ({"platform": "rocm", "engine": "docker", "docker": IMAGE}, [hip("0"), hip("1")]),
    ],
)
def test_each_instance_has_devices_of_its_own(settings: dict[str, Any], envs: list[dict[str, str]]) -> None:
    servers = instance_servers(server(**{"instances": 2} | settings))
    assert [each.env for each in servers] == envs
    assert [each.instances for each in servers] == [1, 1]


@pytest.mark.parametrize(
    ("port", "ports"), [(0, [0, 0, 0]), (8000, [8000, 8001, 8002]), (65533, [65533, 65534, 65535])]
)
def test_each_instance_has_a_port_of_its_own(port: int, ports: list[int]) -> None:
    assert [each.port for each in instance_servers(server(instances=3, port=port))] == ports


@pytest.mark.parametrize("env", [{}, {CHOSEN: "2,3"}])
def test_a_single_server_is_left_as_it_is(env: dict[str, str]) -> None:
    alone = server(platform="rocm", env=env, port=8000)
    assert instance_servers(alone) == [alone]


def test_devices_chosen_around_vramp_are_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "4,5,6,7")
    two = {"platform": "rocm", "instances": 2}
    assert [each.env for each in instance_servers(server(**two))] == [hip("4"), hip("5")]
    # The profile is nearer than the surroundings, which no container sees.
    assert [each.env for each in instance_servers(server(**two, env=cuda("1,2")))] == [hip("1"), hip("2")]
    contained = server(**two, engine="docker", docker=IMAGE)
    assert [each.env for each in instance_servers(contained)] == [hip("0"), hip("1")]


def test_what_rocr_leaves_is_numbered_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "6,7")
    assert [each.env for each in instance_servers(server(platform="rocm", instances=2))] == [hip("0"), hip("1")]
    with pytest.raises(ProfileError, match="they take 3 devices, and ROCR_VISIBLE_DEVICES lists 2"):
        instance_servers(server(platform="rocm", instances=3))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"port": 65535}, r"server\.port = 65535: 2 instances"),
        ({"platform": "rocm", "env": {CHOSEN: "2"}}, "they take 2 devices, and HIP_VISIBLE_DEVICES lists 1; lower"),
        (
            {"platform": "cuda", "env": cuda("0,1,2"), "args": {TP: 2}},
            "take 4 devices, and CUDA_VISIBLE_DEVICES lists 3",
        ),
        ({"platform": "cuda", "args": {TP: "two"}}, r"server\.args\.tensor-parallel-size = 'two': expected"),
        ({"platform": "cuda", "args": {TP: 0}}, "whole number of at least 1"),
    ],
)
def test_what_does_not_suffice_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        instance_servers(server(instances=2, **settings))


@pytest.mark.parametrize(
    ("args", "devices"),
    [
        ({}, 1),
        ({"tensor_parallel_size": 8}, 8),
        ({"--tensor-parallel": 4}, 4),
        ({"-tp": 2, "dp": 4}, 8),
        ({"tensor-parallel-size": 2, "pipeline_parallel_size": 2, "data-parallel-size": 2}, 8),
        ({"max-model-len": 8192, "tpx": 3}, 1),
    ],
)
def test_how_many_devices_a_server_takes(args: dict[str, Any], devices: int) -> None:
    assert devices_each(args) == devices
