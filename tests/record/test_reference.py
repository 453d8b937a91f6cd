"""What is said of a published measurement's conditions, and when nothing may be said."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.errors import ResultError
from loadgen.profile.schema import Reference
from loadgen.record.reference import NO_CONTAINER, conditions, published_reference
from loadgen.report.notes import condition_words
from loadgen.schema.journal import RunStarted
from loadgen.schema.shared import DataFile

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
DATA = DataFile("sharegpt.json", "a" * 64, 10, "sharegpt", 5, 0, is_sample=False)
HERE = dict[str, Any](
    models=["openai/gpt-oss-120b", "served"],
    version="0.6.2",
    image="rocm/vllm:1",
    gpus=["NVIDIA L40"] * 2,
    requests=[80],
    data=DATA,
    canaries=0,
)


def words(reference: Reference = REFERENCE, **changes: Any) -> list[str]:
    return list(condition_words(conditions(reference, **HERE | changes)))


def test_same_conditions_are_said_to_be_the_same() -> None:
    assert words() == ["as published: model, version, image, GPU, GPUs, requests, data"]
    assert words(version="v0.6.2+rocm630", models=["served", "OpenAI/gpt-oss-120b"]) == words()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpus": ["NVIDIA L40S"] * 2}, "GPU: NVIDIA L40S, published: L40"),
        ({"gpus": ["NVIDIA L40"] * 8}, "GPUs: 8, published: 2"),
        ({"version": "0.32.0"}, "version: 0.32.0, published: 0.6.2"),
        ({"data": None}, "data: synthetic prompts, published: sharegpt.json"),
        ({"requests": [16, 16]}, "requests: 16, published: 80"),
        ({"requests": [80, None]}, "requests: 80, as many as in a time, published: 80"),
        ({"canaries": 6}, "canaries: 6, published: none"),
        ({"models": ["m"]}, "model: m, published: openai/gpt-oss-120b"),
        ({"image": NO_CONTAINER}, "image: no container, published: rocm/vllm:1"),
    ],
)
def test_a_different_condition_is_named(changes: dict[str, Any], said: str) -> None:
    assert words(**changes)[0] == f"not as published: {said}"


def test_what_an_attached_server_does_not_say_is_unknown() -> None:
    assert words(version=None, image=None, gpus=None) == [
        "not known whether as published: version, image, GPU, GPUs",
        "as published: model, requests, data",
    ]


def test_a_reference_without_conditions_is_not_the_same() -> None:
    bare = Reference(source="a publication")
    assert words(bare) == ["the profile names no conditions of the publication: none were compared"]


def test_a_run_without_load_has_no_requests_to_compare() -> None:
    assert words(requests=[])[0] == "not known whether as published: requests"


def test_a_damaged_server_in_a_journal_is_refused() -> None:
    run = RunStarted(
        unix_s=0.0,
        run_id="r",
        vramp_version="0",
        profile={"server": {"model": 5}, "reference": {"source": "a publication"}},
        environment={},
        workers=1,
        seed=1,
        stages_planned=1,
    )
    with pytest.raises(ResultError, match="cannot read the profile of this run"):
        published_reference(run)
