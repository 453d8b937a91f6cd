"""Recipes of vllm-project: what their site makes of them is what an import makes of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ProfileError
from loadgen.server.recipes.flags import Word, served
from loadgen.server.recipes.imported import Imported, RecipeChoice
from loadgen.server.recipes.recipe import import_merged, import_recipe
from loadgen.vendors import Platform

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "recipes.json").read_text())["recipes"]
RECIPES = {entry["file"].removeprefix("models/").removesuffix(".yaml"): entry["recipe"] for entry in RECORDED}
MERGED = json.loads((HERE / "merged.json").read_text())["documents"]
CASES = [(entry["file"], *case) for entry in RECORDED for case in entry["cases"]]
GPT_OSS = RECIPES["openai/gpt-oss-120b"]


def refusal(document: dict[str, Any], choice: RecipeChoice) -> str:
    with pytest.raises(ProfileError) as caught:
        (import_merged if "deploy_type" in document else import_recipe)(document, choice)
    return str(caught.value)


def test_the_recorded_recipes_are_of_many_shapes() -> None:
    assert len(RECORDED) >= 20
    assert len(CASES) >= 100


@pytest.mark.parametrize(("file", "hardware", "variant", "strategy", "argv", "env", "image"), CASES)
def test_a_recipe_is_merged_as_its_site_does(
    file: str, hardware: str, variant: str, strategy: str, argv: list[str], env: dict[str, str], image: str
) -> None:
    recipe = next(entry["recipe"] for entry in RECORDED if entry["file"] == file)

    document = import_recipe(recipe, RecipeChoice(hardware=hardware, variant=variant, strategy=strategy)).document

    # A word with a blank goes through a shell on the site.
    words = [part for word in argv for part in (word.split(" ", 1) if word.startswith("--") else [word])]
    theirs = served([Word(word) for word in words])
    server = document["server"]
    assert (server["model"], server["args"]) == (theirs.model, theirs.args)
    assert server.get("env", {}) == env
    assert document["variants"]["docker"]["server"]["docker"]["image"] == image


def imported(name: str = "openai/gpt-oss-120b", **choice: Any) -> Imported:
    return import_recipe(RECIPES[name], RecipeChoice(**{"hardware": "mi300x"} | choice))


@pytest.mark.parametrize(
    ("hardware", "platform", "devices"),
    [("mi300x", "rocm", True), ("MI355X", "rocm", True), ("h100-sxm", "cuda", False), ("b200", "cuda", False)],
)
def test_hardware_is_a_word_of_the_recipe_or_of_check_box(hardware: str, platform: Platform, devices: bool) -> None:
    server = imported(hardware=hardware).document

    assert server["server"]["platform"] == platform
    docker = server["variants"]["docker"]["server"]["docker"]
    assert ("devices" in docker, "gpus" in docker) == (devices, not devices)


def test_features_are_the_recipes_own_or_those_chosen() -> None:
    assert "speculative-config" not in imported().document["server"]["args"]
    assert any("spec_decoding" in remark for remark in imported().left_out)

    both = imported(features=["default", "spec_decoding"]).document["server"]["args"]
    one = imported(features=["spec_decoding"]).document["server"]["args"]

    assert {"speculative-config", "tool-call-parser"} <= both.keys()
    assert "tool-call-parser" not in one


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"hardware": None}, ["--hardware", "h100, h200"]),
        ({"hardware": "mi9000"}, ["mi9000", "mi300x"]),
        ({"variant": "fp3"}, ["--variant fp3", "amd_fp8"]),
        ({"strategy": "multi_node_tp"}, ["multi_node_tp", "one machine", "single_node_tp"]),
        ({"strategy": "single_node_dep"}, ["single_node_dep", "mi300x", "single_node_tp"]),
        ({"features": ["telepathy"]}, ["--features telepathy", "tool_calling"]),
    ],
)
def test_a_choice_that_the_recipe_does_not_offer(choice: dict[str, Any], words: list[str]) -> None:
    message = refusal(GPT_OSS, RecipeChoice(**{"hardware": "mi300x"} | choice))
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"meta": {"tasks": ["omni"]}}, "omni"),
        ({"meta": {"hardware": {"mi300x": "unsupported"}}}, "does not run there"),
        ({"variants": {"default": {"precision": "nvfp4"}}}, "Blackwell"),
        ({"variants": {"default": {"supported_hardware": ["b200"]}}}, "b200"),
        ({"variants": []}, "variants: expected a table"),
        ({"opt_in_features": "spec_decoding"}, "opt_in_features: expected a list"),
        ({"model": {"model_id": "m/M", "base_args": [["--nested"]]}}, "base_args: expected a list"),
    ],
)
def test_a_recipe_that_cannot_be_imported(change: dict[str, Any], word: str) -> None:
    assert word in refusal(GPT_OSS | change, RecipeChoice(hardware="mi300x"))


def test_what_a_recipe_says_beyond_the_command() -> None:
    recipe = GPT_OSS | {
        "dependencies": [{"command": "uv pip install kernels"}],
        "strategy_min_gpus": 16,
        "invented": 1,
        "variants": {"default": {"vram_minimum_gb": 4000}},
    }

    found = import_recipe(recipe, RecipeChoice(hardware="mi300x"))

    assert any("uv pip install kernels" in remark for remark in found.left_out)
    assert any("strategy_min_gpus" in remark for remark in found.left_out)
    assert any("invented" in remark for remark in found.left_out)
    assert any("4000 GB" in note and "too little" in note for note in found.notes)
    assert any("0.10.0 or later" in note for note in found.notes)


def test_the_merged_json_is_the_yaml_merged() -> None:
    merged = import_merged(MERGED["openai/gpt-oss-120b/hw/mi300x.json"], RecipeChoice())
    by_model = import_merged(MERGED["openai/gpt-oss-120b.json"], RecipeChoice())

    assert merged.document == imported().document
    assert by_model.document == imported(hardware="h200").document
    assert merged.name == "mi300x-gpt-oss-120b"


@pytest.mark.parametrize(
    ("file", "choice", "words"),
    [
        ("moonshotai/Kimi-K2.5/hw/h100.json", RecipeChoice(), ["multi_node", "one machine"]),
        ("openai/gpt-oss-120b/hw/mi300x.json", RecipeChoice(hardware="h200"), ["--hardware h200", "mi300x"]),
        ("openai/gpt-oss-120b/hw/mi300x.json", RecipeChoice(features=["spec_decoding"]), ["--features", "YAML"]),
    ],
)
def test_merged_json_that_is_not_what_was_chosen(file: str, choice: RecipeChoice, words: list[str]) -> None:
    message = refusal(MERGED[file], choice)
    for word in words:
        assert word in message


def test_a_merged_recipe_with_a_companion_says_so() -> None:
    document = MERGED["openai/gpt-oss-120b/hw/mi300x.json"] | {"companions": [{"command": "lmcache server"}]}

    assert any("lmcache server" in remark for remark in import_merged(document, RecipeChoice()).left_out)
