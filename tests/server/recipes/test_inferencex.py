"""Rows of InferenceX: how they split a model, and the load that they are measured with."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from loadgen.errors import ProfileError
from loadgen.plan.from_profile import stages_of
from loadgen.profile.document import build_profile, variant_names
from loadgen.server.recipes.imported import RecipeChoice
from loadgen.server.recipes.inferencex import import_row, is_rows

ROWS: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "rows.yaml").read_text())


def test_the_load_is_a_ladder_that_doubles_to_its_end() -> None:
    imported = import_row(ROWS, RecipeChoice(row="dsv4-fp8-mi300x-vllm"))

    document = imported.document
    assert document["load"] == {"isl": 8192, "osl": 1024, "concurrency": [4, 8, 16, 32, 64, 128, 256]}
    assert document["server"]["args"] == {"tensor-parallel-size": 8, "max-model-len": 8192 + 1024 + 256}
    assert document["server"]["platform"] == "rocm"
    assert document["variants"]["docker"]["server"]["docker"]["image"].startswith("vllm/vllm-openai-rocm:nightly")
    assert any("dsv4_fp8_mi300x*.sh" in remark for remark in imported.left_out)


@pytest.mark.parametrize(("end", "ladder"), [(4, [4]), (6, [4, 6]), (16, [4, 8, 16]), (20, [4, 8, 16, 20])])
def test_the_end_of_a_ladder_is_measured(end: int, ladder: list[int]) -> None:
    row = ROWS["dsv4-fp8-mi300x-vllm"]
    scenarios = {"fixed-seq-len": [{"isl": 8, "osl": 8, "search-space": [{"tp": 8, "conc-start": 4, "conc-end": end}]}]}

    document = import_row({"one": row | {"scenarios": scenarios}}, RecipeChoice()).document

    assert document["load"]["concurrency"] == ladder


def test_each_way_to_split_the_model_is_a_variant() -> None:
    document = import_row(ROWS, RecipeChoice(row="dsv4-fp4-b200-vllm")).document

    assert list(document["variants"]) == ["tp8-ep8", "tp8-ep8-dp", "docker"]
    profile = build_profile(document, where="x", variant="tp8-ep8-dp")
    assert profile.server.args == {
        "tensor-parallel-size": 1,
        "data-parallel-size": 8,
        "enable-expert-parallel": True,
        "max-model-len": 9472,
    }
    assert [stage.concurrency for stage in stages_of(profile)] == [64, 128, 256, 512, 1024]


def test_several_shapes_become_stages() -> None:
    document = import_row(ROWS, RecipeChoice(row="gptoss-fp4-mi300x-vllm")).document

    assert variant_names(document) == ["tp2", "tp4", "tp8", "docker"]
    assert [(stage["isl"], stage["concurrency"]) for stage in document["stages"]] == [
        *((1024, number) for number in (64, 128, 256)),
        *((8192, number) for number in (4, 8, 16, 32, 64)),
    ]


def test_a_row_without_lengths_keeps_its_concurrencies() -> None:
    imported = import_row(ROWS, RecipeChoice(row="dsv4-fp4-b200-vllm-agentic-mtp"))

    assert imported.document["load"]["concurrency"] == [1, 4, 8, 14]
    for word in ("agentic-coding", "kv-offloading", "router", "spec-decoding mtp"):
        assert any(word in remark for remark in imported.left_out)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (RecipeChoice(row="dsr1-fp8-mi300x-sglang"), ["sglang", "vllm"]),
        (RecipeChoice(row="nothing"), ["--row nothing", "dsv4-fp4-b200-vllm"]),
        (RecipeChoice(), ["--row", "dsv4-fp4-b200-vllm"]),
        (RecipeChoice(hardware="mi210"), ["none of them"]),
        (RecipeChoice(row="dsr1-fp4-b200-dynamo-trt"), ["dynamo-trt"]),
    ],
)
def test_a_row_that_cannot_be_imported(choice: RecipeChoice, words: list[str]) -> None:
    with pytest.raises(ProfileError) as caught:
        import_row(ROWS, choice)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"multinode": True},
        {"scenarios": {}},
        {"scenarios": 3},
        {"scenarios": {"fixed-seq-len": {"isl": 1}}},
        {"scenarios": {"fixed-seq-len": [{"isl": 1, "osl": 1, "search-space": [{"conc-start": 0, "conc-end": 4}]}]}},
        {"scenarios": {"fixed-seq-len": [{"isl": 1, "osl": 1, "search-space": [{"conc-list": []}]}]}},
        {"scenarios": {"fixed-seq-len": [{"isl": "long", "osl": 1, "search-space": []}]}},
        {"model": ["x"]},
    ],
)
def test_a_row_of_another_shape(change: dict[str, Any]) -> None:
    with pytest.raises(ProfileError):
        import_row({"one": ROWS["dsv4-fp8-mi300x-vllm"] | change}, RecipeChoice())


def test_the_hardware_chooses_among_rows() -> None:
    assert is_rows(ROWS)
    assert import_row(ROWS, RecipeChoice(hardware="mi325x")).name == "gptoss-fp4-mi325x-vllm"
