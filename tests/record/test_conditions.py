"""What is said of a published measurement's conditions, and when nothing may be said."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from loadgen.profile.schema import Reference
from loadgen.record.conditions import conditions
from loadgen.report.notes import condition_words
from loadgen.schema.journal import DataFile, ServerChanged, StageStarted
from loadgen.schema.samples import GpuStatic

SYSTEM = {
    "model": "openai/gpt-oss-120b",
    "version": "0.6.2",
    "image": "rocm/vllm:1",
    "gpu": "L40",
    "gpus": 2,
    "requests": 80,
}
REFERENCE = Reference.model_validate(
    {"source": "a publication", "data": "sharegpt.json", "data_sha256": "a" * 64, "system": SYSTEM}
)
PROFILE = {"server": {"engine": "docker", "model": "openai/gpt-oss-120b", "docker": {"image": "rocm/vllm:1"}}}
SERVER = ServerChanged(1.0, "ready", "docker", "http://127.0.0.1:8000", model="served", version="0.6.2")
DATA = DataFile("sharegpt.json", "a" * 64, 10, "sharegpt", 5, 0, is_sample=False)
STAGE = StageStarted(t_s=1.0, index=0, concurrency=8, rate=None, isl=10, osl=10, label="8", requests=80)


def _gpus(name: str, count: int) -> list[GpuStatic]:
    return [GpuStatic(index, "nvidia", name, socket=str(index)) for index in range(count)]


def words(reference: Reference = REFERENCE, **changes: Any) -> list[str]:
    run: dict[str, Any] = {
        "profile": PROFILE,
        "data": DATA,
        "server": SERVER,
        "gpus": _gpus("NVIDIA L40", 2),
        "stages": [STAGE],
        "canaries": 0,
    }
    return list(condition_words(conditions(reference, **run | changes)))


def test_same_conditions_are_said_to_be_the_same() -> None:
    assert words() == ["as published: model, version, image, GPU, GPUs, requests, data"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpus": _gpus("NVIDIA L40S", 2)}, "GPU: NVIDIA L40S, published: L40"),
        ({"gpus": _gpus("NVIDIA L40", 8)}, "GPUs: 8, published: 2"),
        ({"server": msgspec.structs.replace(SERVER, version="0.32.0")}, "version: 0.32.0, published: 0.6.2"),
        ({"data": None}, "data: synthetic prompts, published: sharegpt.json"),
        ({"stages": [msgspec.structs.replace(STAGE, requests=16)]}, "requests: 16, published: 80"),
        ({"stages": [msgspec.structs.replace(STAGE, requests=None)]}, "requests: as many as in a time, published: 80"),
        ({"canaries": 6}, "canaries: 6, published: none"),
        ({"profile": {"server": {"engine": "vllm", "model": "m"}}}, "model: m, published: openai/gpt-oss-120b"),
        ({"profile": {"server": {"engine": "vllm"}}}, "image: no container, published: rocm/vllm:1"),
    ],
)
def test_a_different_condition_is_named(changes: dict[str, Any], said: str) -> None:
    assert said in words(**changes)[0]
    assert words(**changes)[0].startswith("not as published: ")


def test_an_attached_server_tells_neither_its_image_nor_its_gpus() -> None:
    attached = {"server": {"engine": "attach", "url": "http://127.0.0.1:8000"}}
    server = msgspec.structs.replace(SERVER, model="openai/gpt-oss-120b", version=None)
    assert words(profile=attached, server=server, gpus=None) == [
        "not known whether as published: version, image, GPU, GPUs",
        "as published: model, requests, data",
    ]


def test_a_reference_without_conditions_is_not_the_same() -> None:
    bare = Reference(source="a publication")
    assert words(bare) == ["the profile names no conditions of the publication: none were compared"]


def test_stages_without_load_have_no_requests_to_compare() -> None:
    nothing_sent = msgspec.structs.replace(STAGE, concurrency=0, requests=None)
    assert "requests" in words(stages=[nothing_sent])[0]
    assert words(stages=[nothing_sent])[0].startswith("not known")
