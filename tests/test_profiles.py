"""The profiles that vramp ships: each loads with all its variants, and says what the publication says."""

import asyncio
from pathlib import Path

import pytest

from loadgen.plan.from_profile import stages_of
from loadgen.plan.stage import Stage
from loadgen.profile import BASE
from loadgen.profile.document import load_document, load_profile, variant_names
from loadgen.profile.schema import Profile
from loadgen.server.preflight.check import check_profile
from loadgen.server.vllm.installation import recorded_versions

FOLDER = Path(__file__).parents[1] / "profiles"
FILES = sorted(FOLDER.glob("*.toml"))
PUBLISHED = [path for path in FILES if path.stem not in ("simulator", "vllm-cpu-tiny", "agentx")]
ALL = [(path.stem, variant) for path in FILES for variant in [None, *variant_names(load_document(path))]]

MAX_COLUMNS = 120
MAX_LINES = 90
"""More would not be read from top to bottom."""

SHAPES = [(1024, 1024), (1024, 8192), (8192, 1024)]
MATRIX = [(isl, osl, concurrency) for isl, osl in SHAPES for concurrency in (4, 8, 16, 32, 64, 128)]
BOXES = [f"{gpu}-{model}" for gpu in ("b200", "mi355x") for model in ("deepseek-r1", "gpt-oss-120b")]
BOXES += [f"{gpu}-{model}" for gpu in ("b200", "mi355x") for model in ("qwen3-235b", "llama-3.3-70b")]
NEED_A_CHANGE = ("unknown-variable", "misspelt-variable", "abbreviated-flag")


def profile(name: str, variant: str | None = None) -> Profile:
    return load_profile(FOLDER / f"{name}.toml", variant=variant)


def plan(name: str, variant: str | None = None) -> list[Stage]:
    return stages_of(profile(name, variant))


def figures(name: str, variant: str | None = None, *, of: str = "") -> dict[str, float]:
    """All published figures of one column."""
    reference = profile(name, variant).reference
    assert reference is not None
    points = [point for point in reference.points if point.of == of]
    return {figure: value for point in points for figure, value in point.figures.items()}


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_every_variant_loads_and_has_a_plan(name: str, variant: str | None) -> None:
    assert plan(name, variant)
    assert profile(name, variant).name == (name if variant is None else f"{name}+{variant}")


@pytest.mark.parametrize("version", recorded_versions())
@pytest.mark.parametrize(("name", "variant"), ALL)
def test_profiles_use_known_flags_and_variables(
    name: str, variant: str | None, version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))  # what models the box has must not matter
    findings = asyncio.run(check_profile(profile(name, variant), plan(name, variant), recorded=version))
    wrong = [found for found in findings if found.severity == "blocks" or found.id in NEED_A_CHANGE]
    assert wrong == []


@pytest.mark.parametrize("name", ["h100-llama-3.1-8b-fp8-kv", "mi300x-qwen3-235b-attention"])
@pytest.mark.parametrize("setting", ["env.VLLM_GONE=1", "args.gone=1", "args.kv-cache=fp8"])
def test_what_the_newest_recorded_version_does_not_know_is_found(name: str, setting: str) -> None:
    """In a container, too, so that the test of all profiles cannot pass for want of looking."""
    wrong = load_profile(FOLDER / f"{name}.toml", [f"server.{setting}"])
    findings = asyncio.run(check_profile(wrong, stages_of(wrong), recorded=recorded_versions()[-1]))
    assert any(found.severity == "blocks" or found.id in NEED_A_CHANGE for found in findings)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_can_be_read_from_top_to_bottom(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert len(lines) <= MAX_LINES
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_says_what_it_is(path: Path) -> None:
    assert load_profile(path).description


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_recipe_names_its_publication_and_its_platform(path: Path) -> None:
    recipe = load_profile(path)
    assert recipe.reference is not None
    assert recipe.reference.source
    assert recipe.reference.notes
    assert recipe.server.platform in ("rocm", "cuda")


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_every_published_figure_meets_a_stage(name: str, variant: str | None) -> None:
    reference = profile(name, variant).reference
    keys = ("concurrency", "rate", "isl", "osl", "pass_number")
    for point in [] if reference is None else reference.points:
        stages = plan(name, variant)
        assert any(all(getattr(point, key) in (None, getattr(stage, key)) for key in keys) for stage in stages)


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_published_ratio_is_of_two_variants_and_meets_a_stage(path: Path) -> None:
    names = {BASE, *variant_names(load_document(path))}
    reference = load_profile(path).reference
    for ratio in [] if reference is None else reference.ratios:
        assert {ratio.variant, ratio.over} <= names
        keys = ("concurrency", "rate", "isl", "osl")
        stages = plan(path.stem)
        assert any(all(getattr(ratio, key) in (None, getattr(stage, key)) for key in keys) for stage in stages)


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_a_container_has_what_its_gpu_needs(name: str, variant: str | None) -> None:
    server = profile(name, variant).server
    if server.docker is None:
        assert variant != "docker"
    elif server.platform == "rocm":
        assert (server.docker.devices, server.docker.gpus) == (["/dev/kfd", "/dev/dri"], None)
        assert server.docker.groups == ["video"]
    else:
        assert (server.docker.devices, server.docker.gpus) == ([], "all")


@pytest.mark.parametrize("name", BOXES)
def test_the_boxes_of_eight_are_measured_at_18_loads(name: str) -> None:
    stages = plan(name)
    assert [(stage.isl, stage.osl, stage.concurrency) for stage in stages] == MATRIX
    assert [stage.requests for stage in stages] == [10 * concurrency for _, _, concurrency in MATRIX]


@pytest.mark.parametrize("name", BOXES)
def test_ratios_are_notes_and_no_figures(name: str) -> None:
    assert figures(name) == {}


def test_the_three_benchmarks_of_gpt_oss() -> None:
    loads = [
        (stage.concurrency, stage.requests, stage.isl, stage.osl)
        for variant in (None, "latency", "latency-batch-1", "throughput")
        for stage in plan("mi300x-gpt-oss-120b", variant)
    ]
    assert loads == [(8, 80, 4096, 1024), (8, 240, 4096, 1024), (1, 30, 4096, 1024), (4, 4, 4070, 1024)]


def test_the_other_workloads_of_every_flag_explained() -> None:
    seqs = {
        variant: profile("mi300x-gpt-oss-120b-aiter", variant).server.args["max-num-seqs"]
        for variant in (None, "low-latency", "batch")
    }
    assert seqs == {None: 512, "low-latency": 16, "batch": 1024}


@pytest.mark.parametrize(
    ("size", "gpus", "published"),
    [
        ("7b", 1, {"L40": (532.26, 66.6), "A100": (757.43, 94.8), "MI210": (718.06, 90.0)}),
        ("13b", 2, {"L40": (491.16, 61.8), "A100": (730.01, 91.8), "MI210": (595.11, 74.4)}),
        ("70b", 4, {"L40": (399.01, 49.8), "A100": (629.33, 79.2), "MI210": (436.40, 54.6)}),
    ],
)
def test_llama_2_on_mi210(size: str, gpus: int, published: dict[str, tuple[float, float]]) -> None:
    name = f"mi210-llama2-{size}"
    assert profile(name).server.args["tensor-parallel-size"] == gpus
    assert [(stage.rate, stage.requests) for stage in plan(name)] == [(rate, 1000) for rate in (0.5, 1, 2, 4, 8)]
    assert [(stage.concurrency, stage.requests) for stage in plan(name, "offline")] == [(1000, 1000)]
    for gpu, (tokens, requests) in published.items():
        found = figures(name, "offline", of=gpu)
        assert found == {"total_tokens_per_s": tokens, "requests_per_min": requests}


@pytest.mark.parametrize("name", ["mi300x-llama-3.1-70b", "mi300x-llama-3.1-405b", "tgi-llama-3.1-405b"])
def test_llama_3_1_at_three_rates(name: str) -> None:
    assert [(stage.rate, stage.requests) for stage in plan(name)] == [(16, 1000), (32, 1000), (1000, 1000)]
    assert "default" in variant_names(load_document(FOLDER / f"{name}.toml"))


@pytest.mark.parametrize("name", ["mi300x-llama-3.1-405b", "tgi-llama-3.1-405b"])
def test_vllm_next_to_tgi(name: str) -> None:
    found = [figures(name, variant, of=of) for variant in (None, "default") for of in ("vLLM", "TGI")]
    assert [entry["requests_per_s"] for entry in found] == [5.76, 3.55, 4.05, 2.58]


def test_sharegpt_where_it_was_published_with() -> None:
    """The sample stands in for it, and the profile says what the file is and what becomes of the answers."""
    for path in PUBLISHED:
        recipe = load_profile(path)
        assert recipe.reference is not None
        assert (recipe.load.data == "sample") == path.stem.startswith(("mi210", "mi300x-llama", "tgi"))
        if recipe.load.data is not None:
            assert "anon8231489123/ShareGPT_Vicuna_unfiltered" in recipe.reference.data
            assert recipe.reference.data_sha256.startswith("35f0e213ce09")
            assert (recipe.load.osl, recipe.load.requests) == ("data", 1000)
            # vLLM's benchmark of 0.1.4 asked for full answers at temperature 1, that of 0.6.2 did not.
            old = path.stem.startswith("mi210")
            assert (recipe.load.ignore_eos, recipe.load.temperature) == (old, float(old))


def test_the_sizes_of_gpt_oss_are_all_there() -> None:
    config = profile("mi355x-gpt-oss-120b").server.args["compilation-config"]
    assert isinstance(config, dict)
    fine = [1, *range(2, 129, 2)]
    assert config["compile_sizes"] == [*fine, 256, 512, 1024, 2048, 8192]
    assert config["cudagraph_capture_sizes"] == [*fine, *range(136, 1025, 8), 2048, 4096, 8192]


def test_the_second_run_over_a_warm_cache() -> None:
    recipe = profile("mi300x-llama-3.1-70b", "case3-prefix-caching")
    assert recipe.server.args["enable-prefix-caching"] is True
    assert recipe.reference is not None
    hits = {point.pass_number: point.figures["prefix_hit_percent"] for point in recipe.reference.points}
    assert hits == {1: 0.9, 2: 50}
    passes = [(stage.rate, stage.pass_number) for stage in plan("mi300x-llama-3.1-70b", "case3-prefix-caching")]
    assert passes == [(rate, number) for rate in (16, 32, 1000) for number in (1, 2)]


def test_the_eight_cases() -> None:
    names = variant_names(load_document(FOLDER / "mi300x-llama-3.1-70b.toml"))
    assert {name.partition("-")[0] for name in names} >= {f"case{number}" for number in range(1, 9)}
    base = profile("mi300x-llama-3.1-70b").server
    for name in names:
        assert profile("mi300x-llama-3.1-70b", name).server != base
