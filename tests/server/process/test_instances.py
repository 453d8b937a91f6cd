"""How one profile becomes several servers, as tables: ports, devices, and what is refused."""

from typing import Any

import pytest

from loadgen.errors import ProfileError
from loadgen.profile import Server
from loadgen.server.process.instances import devices_each, instance_servers

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
