import sys
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ProfileError, ServerError
from loadgen.profile import Server
from loadgen.server.vllm.command import server_command, server_environment


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
    assert command == [sys.executable, "-m", "loadgen.simulator", "--host", "127.0.0.1", "--port", "8000", *words]


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


def test_the_executable_is_found_beside_python(monkeypatch: pytest.MonkeyPatch) -> None:
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
    [("no-such-vllm", "not found on PATH"), ("/no/such/vllm", "does not exist"), (__file__, "is not executable")],
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
