"""Texts from outside: each becomes a profile that loads, or an error that names it."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError
from loadgen.profile.document import build_profile, variant_names
from loadgen.server.recipes.imported import Imported, Origin, RecipeChoice, toml_text
from loadgen.server.recipes.read import MAX_BYTES, import_text
from loadgen.server.recipes.recipe import import_recipe

HERE = Path(__file__).parent
ROWS = (HERE / "rows.yaml").read_bytes()
RECIPE = b"model:\n  model_id: m/M\ncompatible_strategies: [single_node_tp]\n"
ORIGIN = Origin("x", "abc", "123")


def parsed(imported: Imported) -> dict[str, Any]:
    """The profile as it is read from its file, with each variant of it."""
    document = tomllib.loads(toml_text(imported, ORIGIN, "1"))
    assert document.pop("recipe") == {"source": "x", "commit": "abc", "sha256": "123"}
    assert document == imported.document
    for variant in (None, *variant_names(document)):
        build_profile(document, where="x", variant=variant)
    return document


@pytest.mark.parametrize(
    ("data", "name", "choice"),
    [
        (RECIPE, "m.yaml", RecipeChoice(hardware="h200")),
        (RECIPE, "standard input", RecipeChoice(hardware="h200")),
        (b"\xef\xbb\xbf" + RECIPE, "m.yml", RecipeChoice(hardware="h200")),
        (ROWS, "rows.yaml", RecipeChoice(row="dsv4-fp4-b200-vllm")),
        (ROWS, "standard input", RecipeChoice(row="gptoss-fp4-mi300x-vllm")),
        (b"vllm serve m/M", "standard input", RecipeChoice()),
        (b"note: vllm serve m/M", "start.sh", RecipeChoice()),
        (b"Start:\n\n  vllm serve m/M", "standard input", RecipeChoice()),
    ],
)
def test_a_text_is_recognised(data: bytes, name: str, choice: RecipeChoice) -> None:
    parsed(import_text(data, name, choice))


def test_the_merged_json_of_the_site_is_recognised() -> None:
    documents = json.loads((HERE / "merged.json").read_text())["documents"]
    data = json.dumps(documents["openai/gpt-oss-120b/hw/mi300x.json"]).encode()

    for name in ("mi300x.json", "standard input"):
        assert parsed(import_text(data, name, RecipeChoice()))["server"]["model"] == "openai/gpt-oss-120b"


@pytest.mark.parametrize(
    ("data", "name", "word"),
    [
        (b"<!DOCTYPE html><p>vllm serve m", "x", "HTML"),
        (b"\x7fELF\x00\x01", "x", "control characters"),
        (b"\xff\xfe", "x", "UTF-8"),
        (b"a: [", "x.yaml", "not valid YAML"),
        (b"a: 1", "x.yaml", "neither a recipe"),
        (b"- a\n- b", "x.yaml", "neither a recipe"),
        (b"apiVersion: v1\nkind: Pod\n", "x", "no `vllm serve`"),
        (b"? [1, 2]\n: 3\n", "x.yaml", "x.yaml"),
        (b"a: 2026-13-45\n", "x.yaml", "not valid YAML"),
        (b"!!python/object/apply:os.system ['true']", "x.yaml", "not valid YAML"),
        (b"{" * 100_000, "x.json", "not valid JSON"),
        (b"a: " + b"[" * 100_000, "x.yaml", "not valid YAML"),
        (b'{"a": 1}', "x.json", "neither a recipe"),
        (b"[1]", "x", "neither a recipe"),
        (b" " * (MAX_BYTES + 1), "x", "larger than 1 MiB"),
        (b"vllm " * 100_000, "x", "no script"),
    ],
)
def test_another_text_is_refused_by_its_name(data: bytes, name: str, word: str) -> None:
    with pytest.raises(ProfileError) as caught:
        import_text(data, name, RecipeChoice())
    assert word in str(caught.value)
    assert str(caught.value).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("data", "choice", "option"),
    [
        (b"vllm serve m", RecipeChoice(variant="fp8"), "--variant"),
        (b"vllm serve m", RecipeChoice(row="x"), "--row"),
        (RECIPE, RecipeChoice(hardware="h200", row="x"), "--row"),
        (RECIPE, RecipeChoice(hardware="h200", defines={"TP": "8"}), "--define"),
        (ROWS, RecipeChoice(strategy="single_node_tp"), "--strategy"),
    ],
)
def test_an_option_of_another_format_is_refused(data: bytes, choice: RecipeChoice, option: str) -> None:
    with pytest.raises(ProfileError, match=option):
        import_text(data, "x", choice)


def test_shared_and_endless_yaml_costs_nothing() -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 30))
    bomb = f"l0: &l0 [x]\n{levels}strategy_min_gpus: *l29\nendless: &e [*e]\n".encode() + RECIPE

    found = import_text(bomb, "x.yaml", RecipeChoice(hardware="h200"))

    assert any("strategy_min_gpus" in remark for remark in found.left_out)
    with pytest.raises(ProfileError, match="tasks"):
        import_text(bomb + b"meta: {tasks: *l29}\n", "x.yaml", RecipeChoice(hardware="h200"))


NASTY = "\"\n[server]\nengine = \"attach\"\n'''\x7f\x1b[2J\u2028 # \\"


@pytest.mark.parametrize("place", ["model", "flag", "value", "variable", "left out", "key"])
def test_nothing_in_a_text_becomes_toml(place: str) -> None:
    recipe = {
        "model": {
            "model_id": f"m{NASTY}" if place == "model" else "m/M",
            "base_args": [f"--x{NASTY}" if place == "flag" else "--x", NASTY if place == "value" else "1"],
            "base_env": {"A": NASTY if place == "variable" else "1"},
        },
        "compatible_strategies": ["single_node_tp"],
        "dependencies": [{"command": NASTY if place == "left out" else "x"}],
        NASTY if place == "key" else "k": 1,
    }

    document = parsed(import_recipe(recipe, RecipeChoice(hardware="h200")))

    assert document["server"]["engine"] == "vllm"


def test_the_header_says_where_it_is_from_and_what_is_missing() -> None:
    found = import_text(b"vllm serve m -tp $TP", "x", RecipeChoice())

    text = toml_text(found, Origin("https://x/y", "0123abc", "feed", "2026-11-28"), "1.0")

    head = text.partition("\n\n")[0]
    assert all(line.startswith("# ") or line.startswith("description") for line in head.splitlines())
    for word in ("https://x/y", "0123abc", "2026-11-28", "$TP"):
        assert word in head
    assert tomllib.loads(text)["recipe"] == {"source": "https://x/y", "commit": "0123abc", "sha256": "feed"}


_WORDS = st.sampled_from(
    """vllm serve m/M --model -tp 8 --seed=1 $TP ${TP:-8} ${TP [ ] [[ ]] ( ) { } && || ; | & ' " \\ ` $( $(( <<EOF EOF
    export A=1 A+=2 A=( ) if then else fi for do done case in esac ;; function f() docker run -e -v image bash -c
    --api-key HF_TOKEN=x --no-x -- - -O3 -cc.x=1 > < 2>&1 # \n \n \t é """.split(" ")
)
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 9000), st.floats(), st.text(max_size=8), st.sampled_from(["vllm", "h200"])
)
_KEYS = st.sampled_from(
    """model model_id meta tasks hardware variants default precision vram_minimum_gb tp extra_args extra_env features
    args modes hardware_overrides compatible_strategies single_node_tp strategy_overrides supported_hardware framework
    docker_image runner image scenarios fixed-seq-len isl osl search-space conc-start conc-end conc-list ep dp-attn
    deploy_type argv env strategy variant recommended_command companions by_hardware base_args base_env""".split()
)
_DOCUMENTS = st.dictionaries(
    _KEYS,
    st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=5)),
    max_size=8,
)


@given(st.lists(_WORDS, max_size=40).map(" ".join))
def test_any_script_is_a_profile_that_loads_or_an_error(text: str) -> None:
    _imports(text.encode(), "x.sh", RecipeChoice())


@given(_DOCUMENTS)
def test_any_document_is_a_profile_that_loads_or_an_error(document: dict[str, Any]) -> None:
    whole = {"model": {"model_id": "m/M"}, "compatible_strategies": ["single_node_tp"]}
    row = {"framework": "vllm", "model": "m", "scenarios": {"fixed-seq-len": [{"isl": 8, "osl": 8}]}}
    merged = {"deploy_type": "single_node", "hardware": "h200", "argv": ["vllm", "serve", "m"]}
    for each in (document, whole | document, merged | document, {"one": row | document}):
        for name in ("x.json", "x.yaml"):
            _imports(json.dumps(each).encode(), name, RecipeChoice(hardware="h200" if name == "x.yaml" else None))


def _imports(data: bytes, name: str, choice: RecipeChoice) -> None:
    try:
        found = import_text(data, name, choice)
    except ProfileError:
        return
    parsed(found)
