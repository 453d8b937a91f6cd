import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan.from_profile import stages_of
from loadgen.schema.samples import GpuStatic
from loadgen.server.preflight.facts import Box, Facts, ModelFacts, Setup, facts_of, memory_share, model_facts
from loadgen.vendors import Platform
from tests.server.preflight.boxes import described_box, profile_of, setup_of

UNKNOWN = {"HIP_VISIBLE_DEVICES": "GPU-1a2b"}
LLAMA = {"num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 131072}


def write_model(folder: Path, config: object, **files: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name, size in files.items():
        (folder / f"{name}.safetensors").write_bytes(b"x" * size)
    return folder


def test_a_folder_tells_by_itself(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", LLAMA, model_1=10, model_2=20, consolidated=30)
    facts = model_facts(str(folder), {})
    assert facts == ModelFacts(attention_heads=64, kv_heads=8, weight_bytes=30, max_model_len=131072)
    assert facts.grouped_queries


def test_the_cache_of_the_hub_has_the_newest_snapshot(tmp_path: Path) -> None:
    snapshots = tmp_path / "hub/models--org--m/snapshots"
    old = write_model(snapshots / "b", LLAMA | {"num_key_value_heads": 4})
    write_model(snapshots / "a", LLAMA)
    os.utime(old / "config.json", (1, 1))
    for environment in ({"HF_HOME": str(tmp_path)}, {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HOME": "/no"}):
        facts = model_facts("org/m", environment)
        assert facts is not None
        assert facts.kv_heads == 8
    assert model_facts("org/m", {"HF_HOME": str(tmp_path / "no")}) is None


def test_the_cache_is_in_the_home_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_model(tmp_path / ".cache/huggingface/hub/models--org--m/snapshots/a", LLAMA)
    assert model_facts("org/m", {}) is not None


@pytest.mark.parametrize(
    ("model", "heads", "billions_of_bytes", "length"),
    [
        ("openai/gpt-oss-120b", (64, 8), 65, 131072),
        ("deepseek-ai/DeepSeek-R1", (128, 128), 685, 163840),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", (64, 4), 470, 262144),
        ("meta-llama/Llama-3.1-70B-Instruct", (64, 8), 141, 131072),
        ("meta-llama/Llama-3.3-70B-Instruct", (64, 8), 141, 131072),
        ("amd/Llama-3.1-70B-Instruct-FP8-KV", (64, 8), 72, 131072),
        ("Llama-3.1-405B-Instruct", (128, 8), 811, 131072),
        ("Llama-3.1-405B-Instruct-FP8", (128, 8), 410, 131072),
        ("meta-llama/Llama-2-7b-hf", (32, 32), 13, 4096),
        ("meta-llama/Llama-2-13b-hf", (40, 40), 26, 4096),
        ("/models/Llama-2-70b-hf/", (64, 8), 137, 4096),
    ],
)
def test_published_models_are_known(model: str, heads: tuple[int, int], billions_of_bytes: int, length: int) -> None:
    facts = model_facts(model, {"HF_HOME": "/no/such"})
    assert facts is not None
    assert (facts.attention_heads, facts.kv_heads) == heads
    assert facts.weight_bytes is not None
    assert facts.weight_bytes // 10**9 == billions_of_bytes
    assert facts.max_model_len == length


def test_a_folder_wins_over_the_table_where_it_says_something(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "Llama-2-7b-hf", LLAMA)
    assert model_facts(str(folder), {}) == ModelFacts(64, 8, 13_477_000_000, 131072)


def test_what_cannot_be_read_is_unknown() -> None:
    # Too long for a name: root may enter any folder.
    unreadable = f"/{'m' * 300}"
    assert model_facts(unreadable, {}) is None
    assert model_facts("org/m", {"HF_HOME": unreadable}) is None


def test_a_weight_file_whose_blob_is_gone_has_no_size(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", LLAMA, model_1=10)
    (folder / "model_2.safetensors").symlink_to(tmp_path / "gone")
    assert model_facts(str(folder), {}) == ModelFacts(64, 8, 10, 131072)


def test_other_models_are_not_known() -> None:
    assert model_facts("org/Llama-2-7b-something", {"HF_HOME": "/no/such"}) is None
    assert model_facts("", {"HF_HOME": "/no/such"}) is None


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        ({"text_config": LLAMA}, ModelFacts(64, 8, None, 131072)),
        ({"num_attention_heads": 32}, ModelFacts(32, 32, None, None)),
        ({"num_attention_heads": 128, "kv_lora_rank": 512}, ModelFacts(128, 128, latent_attention=True)),
        ({"num_attention_heads": "many"}, ModelFacts()),
        (LLAMA | {"rope_scaling": None}, ModelFacts(64, 8, None, 131072)),
        (LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ModelFacts(64, 8, None, 131072)),
        (LLAMA | {"rope_scaling": {"type": "yarn", "factor": 40}}, ModelFacts(64, 8, None, 131072)),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": 4}}, ModelFacts(64, 8)),
        (LLAMA | {"rope_parameters": {"rope_type": "dynamic", "factor": 4}}, ModelFacts(64, 8)),
        (LLAMA | {"rope_parameters": {"rope_type": "default"}}, ModelFacts(64, 8, None, 131072)),
        ("{ half", None),
        ([1], None),
        ({"text_config": 1}, None),
    ],
)
def test_configurations(tmp_path: Path, config: object, facts: ModelFacts | None) -> None:
    assert model_facts(str(write_model(tmp_path / "m", config)), {}) == facts


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.dictionaries(
        st.sampled_from([*LLAMA, "text_config", "rope_scaling", "rope_parameters", "factor", "type"]), inner, max_size=4
    ),
    max_leaves=10,
)


@given(config=ANY_JSON)
def test_no_configuration_breaks_it(config: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write_model(tmp_path_factory.mktemp("any") / "m", config)
    facts = model_facts(str(folder), {})
    assert facts is None or facts.kv_heads is None or facts.kv_heads > 0


@pytest.mark.parametrize(
    ("vllm", "versions", "is_one"),
    [
        ("0.32.0", ">=0.19", True),
        ("0.32.0+rocm723", ">=0.19,<0.33", True),
        ("0.28.1rc1.dev681+ge7edf17ce", ">=0.28", True),
        ("0.30.0rc1", "<0.30", False),
        ("0.6.2", ">=0.8", False),
        ("dev", ">=0", False),
        ("", ">=0", False),
        (None, ">=0", False),
    ],
)
def test_versions_are_compared_as_pip_does(vllm: str | None, versions: str, is_one: bool) -> None:
    assert Facts(vllm=vllm).runs(versions) == is_one


@pytest.mark.parametrize(
    ("value", "vllm", "share"),
    [
        (None, "0.19.1", 0.9),
        (None, "0.20.0", 0.92),
        (None, None, 0.92),
        (0.5, "0.19.1", 0.5),
        (".95", None, 0.95),
        ("much", "0.32.0", 0.92),
    ],
)
def test_the_share_of_memory_is_the_versions_own_unless_it_is_set(
    value: object, vllm: str | None, share: float
) -> None:
    args = {} if value is None else {"gpu-memory-utilization": value}
    assert memory_share(args, vllm) == Facts(args=args, vllm=vllm).memory_share == share


@pytest.mark.parametrize(
    ("name", "platform", "arch", "devices"),
    [
        ("mi210", "rocm", "gfx90a", 4),
        ("mi300x", "rocm", "gfx942", 8),
        ("mi355x", "rocm", "gfx950", 8),
        ("h100", "cuda", "sm_90", 8),
        ("b200", "cuda", "sm_100", 8),
    ],
)
def test_the_facts_of_the_described_boxes(
    tmp_path: Path, name: str, platform: Platform, arch: str, devices: int
) -> None:
    profile, box = profile_of(tmp_path), described_box(tmp_path, name)
    facts = facts_of(setup_of(box, profile, platform))
    assert facts.archs == {arch}
    assert facts.devices == devices


def test_the_architecture_is_that_of_the_gpus_that_the_server_takes(tmp_path: Path) -> None:
    archs = ("gfx942", "gfx1036")
    gpus = [GpuStatic(n, "amd", "MI300X", arch=arch, engine_index=n) for n, arch in enumerate(archs)]
    for env, expected in (
        ({}, {"gfx942"}),
        ({"HIP_VISIBLE_DEVICES": "1"}, {"gfx1036"}),
        (UNKNOWN, {"gfx942", "gfx1036"}),
    ):
        profile = profile_of(tmp_path, env=env)
        setup = Setup(profile, stages_of(profile), Box(environ={}), "rocm", gpus)
        assert facts_of(setup).archs == expected
