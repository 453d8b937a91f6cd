import re
from typing import Any

import pytest

from loadgen.plan.from_profile import stages_of
from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.server.gpus.gpu import Gpu
from loadgen.server.preflight.facts import Box, Facts, ModelFacts, Setup, facts_of, model_facts
from loadgen.server.preflight.flags import normal_args
from loadgen.server.preflight.installation import newest_recorded
from loadgen.server.preflight.rules import RULES, rule_findings

AITER = {"VLLM_ROCM_USE_AITER": "1"}
GROUPED = ModelFacts(attention_heads=64, kv_heads=8)
LLAMA_70B = ModelFacts(64, 8, 141 * 10**9, 131072)
MI300X = 192 * 2**30


def rocm(env: dict[str, str] | None = None, **more: Any) -> Facts:
    return Facts(platform="rocm", env=env or {}, **more)


def cuda(env: dict[str, str] | None = None, **more: Any) -> Facts:
    return Facts(platform="cuda", env=env or {}, **more)


def gpus(count: int = 8, hbm_bytes: int = MI300X) -> tuple[Gpu, ...]:
    return tuple(Gpu(name="MI300X", arch="gfx942", hbm_bytes=hbm_bytes, index=index) for index in range(count))


def reduce(bits: str = "INT4") -> dict[str, str]:
    return {"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": bits}


def tp(size: int, **more: Any) -> dict[str, Any]:
    return {"tensor-parallel-size": size, **more}


def llama(**more: Any) -> Facts:
    return rocm(model=LLAMA_70B, gpus=gpus(), **more)


UNCHUNKED = {"enable-chunked-prefill": False}

# For each rule, facts in which it speaks, and facts in which it does not.
CASES: dict[str, tuple[list[Facts], list[Facts]]] = {
    "aiter-unused": ([rocm(), rocm({"VLLM_ROCM_USE_AITER": "0"})], [rocm(AITER), cuda(), Facts()]),
    "aiter-part-alone": (
        [rocm({"VLLM_ROCM_USE_AITER_MOE": "1"}), rocm({"VLLM_USE_AITER_UNIFIED_ATTENTION": "1"})],
        [rocm({"VLLM_ROCM_USE_AITER_MHA": "0"}), rocm(AITER | {"VLLM_ROCM_USE_AITER_MOE": "1"}), rocm(), cuda()],
    ),
    "aiter-mha-grouped": (
        [rocm(AITER, model=GROUPED), rocm(AITER | {"VLLM_ROCM_USE_AITER_MHA": "1"}, model=GROUPED)],
        [
            rocm(AITER | {"VLLM_ROCM_USE_AITER_MHA": "0"}, model=GROUPED),
            rocm(model=GROUPED),
            rocm(AITER, model=ModelFacts(128, 128)),
            rocm(AITER, model=ModelFacts()),
            rocm(AITER),
        ],
    ),
    "rocm-variable-elsewhere": (
        [cuda(AITER), cuda(reduce()), Facts(platform="cpu", env=AITER)],
        [rocm(AITER), Facts(env=AITER), cuda({"VLLM_ROCM_USE_AITER": "0"}), cuda()],
    ),
    "quick-reduce-without-aiter": ([rocm(reduce())], [rocm(AITER | reduce()), rocm(reduce("NONE")), cuda(reduce())]),
    "quick-reduce-nothing": (
        [rocm(reduce()), rocm(reduce(), args=tp(16))],
        [rocm(reduce(), args=tp(8)), rocm(reduce("NONE")), rocm(), cuda(reduce())],
    ),
    "quick-reduce-off": (
        [rocm(AITER, args=tp(8))],
        [rocm(AITER | reduce(), args=tp(8)), rocm(AITER | reduce("NONE"), args=tp(8)), rocm(AITER), rocm(args=tp(8))],
    ),
    "memory-above-aiter": (
        [rocm(AITER, args={"gpu-memory-utilization": 0.95}), rocm(AITER, args={"gpu-memory-utilization": "0.96"})],
        [rocm(AITER, args={"gpu-memory-utilization": 0.94}), rocm(args={"gpu-memory-utilization": 0.95}), rocm(AITER)],
    ),
    "kernel-arguments": ([rocm()], [rocm({"HIP_FORCE_DEV_KERNARG": "1"}), cuda(), Facts()]),
    "nccl-channels": (
        [rocm(args=tp(2))],
        [rocm({"NCCL_MIN_NCHANNELS": "112"}, args=tp(2)), rocm(), cuda(args=tp(2))],
    ),
    "kv-cache-fp8": (
        [cuda(args={"kv-cache-dtype": "fp8"}), rocm(args={"kv-cache-dtype": "fp8_e4m3"})],
        [rocm(args={"kv-cache-dtype": "auto"}), rocm()],
    ),
    "kv-cache-wide": (
        [rocm(args={"max-num-seqs": 512})],
        [rocm(args={"max-num-seqs": 512, "kv-cache-dtype": "fp8"}), rocm(args={"max-num-seqs": 256}), rocm()],
    ),
    "chunked-prefill-off-cuda": ([cuda(args=UNCHUNKED)], [rocm(args=UNCHUNKED), cuda(), Facts(args=UNCHUNKED)]),
    "chunked-prefill-on-rocm": (
        [rocm(), rocm(args={"enable-chunked-prefill": True})],
        [rocm(args=UNCHUNKED), rocm(longest_prompt=32_768), cuda()],
    ),
    "chunked-prefill-off-long": (
        [rocm(args=UNCHUNKED, longest_prompt=32_768)],
        [rocm(args=UNCHUNKED, longest_prompt=16_384), rocm(longest_prompt=32_768)],
    ),
    "prefix-caching-random": (
        [Facts(), Facts(args={"enable-prefix-caching": True})],
        [Facts(args={"enable-prefix-caching": False}), Facts(random_prompts=False)],
    ),
    "tensor-parallel-throughput": (
        [llama(args=tp(8), peak_streams=64)],
        [
            llama(args=tp(2), peak_streams=64),
            llama(args=tp(8), peak_streams=63),
            llama(args=tp(8)),
            rocm(model=LLAMA_70B, args=tp(8), peak_streams=64),
            rocm(model=GROUPED, gpus=gpus(), args=tp(8), peak_streams=64),
        ],
    ),
    "tensor-parallel-latency": (
        [Facts(gpus=gpus(8), peak_streams=1), Facts(gpus=gpus(8), peak_streams=1, args=tp(4))],
        [Facts(gpus=gpus(8), peak_streams=1, args=tp(8)), Facts(peak_streams=1), Facts(gpus=gpus(8), peak_streams=2)],
    ),
    "eager": (
        [cuda(args={"enforce-eager": True})],
        [cuda(args={"enforce-eager": False}), cuda(), Facts(platform="cpu", args={"enforce-eager": True})],
    ),
    "precision": (
        [rocm(args={"dtype": "float16"}), cuda(args={"dtype": "float32"})],
        [rocm(args={"dtype": "bfloat16"}), rocm(), Facts(platform="cpu", args={"dtype": "float32"})],
    ),
    "remote-code": ([Facts(args={"trust-remote-code": True})], [Facts(args={"trust-remote-code": False}), Facts()]),
    "streams-queue": (
        [Facts(args={"max-num-seqs": 64}, peak_streams=128), Facts(args={"max-num-seqs": "64"}, peak_streams=65)],
        [
            Facts(args={"max-num-seqs": 64}, peak_streams=64),
            Facts(args={"max-num-seqs": 64}, peak_streams=128, instances=2),
            Facts(args={"max-num-seqs": 64, "data-parallel-size": 2}, peak_streams=128),
            Facts(args={"max-num-seqs": 64}),
            Facts(peak_streams=128),
        ],
    ),
    "stream-too-long": (
        [
            Facts(args={"max-model-len": 1024}, longest_stream=1025),
            Facts(args={"max-model-len": "1k"}, longest_stream=1001),
        ],
        [
            Facts(args={"max-model-len": 1024}, longest_stream=1024),
            Facts(args={"max-model-len": "1K"}, longest_stream=1024),
            Facts(args={"max-model-len": "auto"}, longest_stream=1024),
            Facts(args={"max-model-len": -1}, longest_stream=1024),
            Facts(longest_stream=1024),
        ],
    ),
    "beyond-model": (
        [
            Facts(model=ModelFacts(max_model_len=4096), longest_stream=4097),
            Facts(model=ModelFacts(max_model_len=4096), args={"max-model-len": 8192}),
        ],
        [
            Facts(model=ModelFacts(max_model_len=4096), longest_stream=4096),
            Facts(model=ModelFacts(max_model_len=4096), args={"max-model-len": 8192, "hf-overrides": {"a": 1}}),
            Facts(
                model=ModelFacts(max_model_len=4096), longest_stream=5000, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
            ),
            Facts(model=ModelFacts(), longest_stream=5000),
            Facts(longest_stream=5000),
        ],
    ),
    "batch-below-length": (
        [
            Facts(args=UNCHUNKED | {"max-num-batched-tokens": 2048, "max-model-len": 4096}),
            Facts(args=UNCHUNKED | {"max-num-batched-tokens": 2048}, model=ModelFacts(max_model_len=4096)),
        ],
        [
            Facts(args=UNCHUNKED | {"max-num-batched-tokens": 4096, "max-model-len": 4096}),
            Facts(args={"max-num-batched-tokens": 2048, "max-model-len": 4096}),
            Facts(args=UNCHUNKED | {"max-num-batched-tokens": 2048}),
            Facts(args=UNCHUNKED | {"max-model-len": 4096}),
        ],
    ),
    "batch-below-seqs": (
        [Facts(args={"max-num-batched-tokens": 512, "max-num-seqs": 1024})],
        [Facts(args={"max-num-batched-tokens": 1024, "max-num-seqs": 1024}), Facts(args={"max-num-seqs": 1024})],
    ),
    "weights-too-large": (
        [rocm(model=LLAMA_70B, gpus=gpus(hbm_bytes=80 * 2**30))],
        [
            llama(),
            rocm(model=LLAMA_70B, gpus=gpus(hbm_bytes=80 * 2**30), args=tp(2)),
            rocm(model=LLAMA_70B, gpus=gpus(hbm_bytes=80 * 2**30), args={"pipeline-parallel-size": 2}),
            rocm(model=LLAMA_70B, gpus=gpus(hbm_bytes=80 * 2**30), args={"quantization": "fp8"}),
            rocm(model=LLAMA_70B, gpus=gpus(hbm_bytes=80 * 2**30), args={"cpu-offload-gb": 100}),
            rocm(model=LLAMA_70B),
            rocm(gpus=gpus(hbm_bytes=80 * 2**30)),
        ],
    ),
}


def ids(facts: Facts) -> set[str]:
    return {finding.id for finding in rule_findings(facts)}


def test_every_rule_has_its_cases() -> None:
    assert list(CASES) == [rule.id for rule, _ in RULES]


@pytest.mark.parametrize("name", CASES)
def test_a_rule_speaks_where_it_should_and_only_there(name: str) -> None:
    speaks, silent = CASES[name]
    assert [facts for facts in speaks if name not in ids(facts)] == []
    assert [facts for facts in silent if name in ids(facts)] == []


def test_what_is_unknown_leaves_the_rules_silent() -> None:
    assert rule_findings(Facts(random_prompts=False)) == []


def test_rules_speak_of_flags_and_variables_that_exist() -> None:
    known = newest_recorded()
    others = {"HIP_FORCE_DEV_KERNARG", "NCCL_MIN_NCHANNELS"}
    for rule, _ in RULES:
        assert set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", rule.fix)) <= {*known.variables, *others}
        for flag in re.findall(r"^([a-z]+(?:-[a-z]+)+) =", rule.fix):
            assert flag in known.flags


def test_a_finding_says_what_was_seen() -> None:
    (finding,) = [finding for finding in rule_findings(llama(args=tp(8), peak_streams=128)) if "through" in finding.id]
    assert finding.seen == (
        "tensor-parallel-size = 8 for 128 streams, where 2 of 192.0 GiB hold the 131.3 GiB of weights"
    )
    assert (finding.severity, finding.source) == ("info", "Serving LLMs on AMD MI300X: Best Practices, case 7")


def test_no_value_reaches_the_screen_as_it_is() -> None:
    (finding,) = [finding for finding in rule_findings(rocm(reduce("\x1b[2J"))) if finding.id == "quick-reduce-nothing"]
    assert "\x1b" not in finding.seen


def profile(server: dict[str, Any], load: dict[str, Any] | None = None) -> Profile:
    document = {"server": {"engine": "vllm", "model": "m", **server}, "load": load or {}}
    return build_profile(document, where="test")


def test_facts_come_from_profile_and_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_MIN_NCHANNELS", "112")
    asked = profile(
        {"args": {"tensor_parallel": 8, "no-enable-prefix-caching": True}, "env": AITER, "instances": 2},
        {"shapes": [[1024, 8192], [8192, 1024]], "concurrency": [4, 128]},
    )
    facts = facts_of(Setup(asked, stages_of(asked), Box(), "rocm", gpus(8)))
    assert facts.args == {"tensor-parallel-size": 8, "enable-prefix-caching": False}
    assert facts.env["NCCL_MIN_NCHANNELS"] == "112"
    assert (facts.aiter, facts.tensor_parallel, facts.instances, facts.devices) == (True, 8, 2, 8)
    assert facts.hbm_bytes == MI300X
    assert (facts.peak_streams, facts.longest_prompt, facts.longest_stream) == (128, 8192, 9216)
    assert (facts.goal, facts.random_prompts) == ("throughput", True)


def test_an_open_loop_has_no_concurrency_and_a_container_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_MIN_NCHANNELS", "112")
    asked = profile({"engine": "docker", "docker": {"image": "i"}, "env": AITER}, {"rate": [4.0]})
    facts = facts_of(Setup(asked, stages_of(asked), Box(), None))
    assert (facts.peak_streams, facts.goal, facts.env) == (None, None, AITER)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (8192, 8192),
        ("8192", 8192),
        ("8k", 8000),
        ("8K", 8192),
        ("1.5k", 1500),
        ("auto", None),
        (-1, None),
        (None, None),
    ],
)
def test_whole_numbers_are_read_as_vllm_reads_them(value: object, number: int | None) -> None:
    assert Facts(args={"max-model-len": value}).number("max-model-len") == number


MI355X = 288 * 10**9
REDUCE_4 = {"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "INT4"}

# (model, args, env, platform, bytes of a GPU, longest prompt, answer): the published commands, as printed.
RECIPES: dict[str, tuple[str, dict[str, Any], dict[str, str], str, int, int, int]] = {
    "gpt-oss on MI300X, benchmarks": (
        "openai/gpt-oss-120b",
        {"tensor-parallel": 1, "enable-prefix-caching": False, "compilation-config": {"full_cuda_graph": True}},
        AITER | {"VLLM_USE_AITER_UNIFIED_ATTENTION": "1", "VLLM_ROCM_USE_AITER_MHA": "0"},
        *("rocm", MI300X, 4096, 1024),
    ),
    "gpt-oss on MI300X, flags": (
        "openai/gpt-oss-120b",
        {
            "tensor-parallel-size": 1,
            "max-model-len": 8192,
            "trust-remote-code": True,
            "dtype": "bfloat16",
            "kv-cache-dtype": "fp8",
            "gpu-memory-utilization": 0.92,
            "enable-chunked-prefill": False,
            "max-num-seqs": 512,
        },
        AITER | REDUCE_4 | {"VLLM_ROCM_USE_AITER_MHA": "0", "HIP_FORCE_DEV_KERNARG": "1"},
        *("rocm", MI300X, 4096, 1024),
    ),
    "DeepSeek-R1 on MI355X": (
        "deepseek-ai/DeepSeek-R1",
        {
            "tensor-parallel-size": 8,
            "max-num-batched-tokens": 131072,
            "max-model-len": 32768,
            "async-scheduling": True,
            "kv-cache-dtype": "auto",
            "quantization": "fp8",
            "block-size": 1,
            "gpu-memory-utilization": 0.95,
            "enable-prefix-caching": False,
            "max-num-seqs": 4096,
            "enable-chunked-prefill": True,
        },
        AITER | REDUCE_4 | {"VLLM_ROCM_USE_AITER_RMSNORM": "1"},
        *("rocm", MI355X, 8192, 8192),
    ),
    "gpt-oss on MI355X": (
        "openai/gpt-oss-120b",
        tp(8, **{"gpu-memory-utilization": 0.95, "max-model-len": 10368, "block-size": 64}),
        {"VLLM_USE_AITER_UNIFIED_ATTENTION": "1", "VLLM_ROCM_USE_AITER_MHA": "0"},
        *("rocm", MI355X, 8192, 1024),
    ),
    "Qwen3-235B on MI355X": (
        "Qwen/Qwen3-235B-A22B-Instruct-2507",
        tp(8, **{"max-num-seqs": 256, "max-num-batched-tokens": 8192, "enable-prefix-caching": False}),
        AITER | REDUCE_4 | {"VLLM_ROCM_USE_AITER_MHA": "1"},
        *("rocm", MI355X, 8192, 8192),
    ),
    "Qwen3-235B on B200": (
        "Qwen/Qwen3-235B-A22B-Instruct-2507",
        tp(8, **{"enable-prefix-caching": False}),
        {},
        *("cuda", 180 * 10**9, 8192, 8192),
    ),
    "Llama-3.3-70B on MI355X": (
        "amd/Llama-3.1-70B-Instruct-FP8-KV",
        {
            "tensor-parallel-size": 8,
            "max-num-batched-tokens": 8192,
            "max-model-len": 10240,
            "kv-cache-dtype": "fp8",
            "gpu-memory-utilization": 0.94,
            "enable-prefix-caching": False,
            "max-num-seqs": 512,
        },
        AITER | REDUCE_4 | {"VLLM_ROCM_USE_AITER_MHA": "1"},
        *("rocm", MI355X, 8192, 1024),
    ),
    "Llama-2-70B on MI210": ("meta-llama/Llama-2-70b-hf", tp(4), {}, "rocm", 64 * 10**9, 1024, 1024),
    "Llama-3.1-70B on MI300X": (
        "meta-llama/Llama-3.1-70B-Instruct",
        tp(4, **{"max-num-seqs": 1024, "enable-chunked-prefill": False}),
        {"VLLM_USE_TRITON_FLASH_ATTN": "0"},
        *("rocm", MI300X, 1024, 1024),
    ),
    "Llama-3.1-405B on MI300X": (
        "Llama-3.1-405B-Instruct",
        tp(8, **{"max-num-seqs": 1024, "max-num-batched-tokens": 1024}),
        {},
        *("rocm", MI300X, 1024, 1024),
    ),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_published_recipe_is_blocked(recipe: str) -> None:
    model, args, env, platform, hbm_bytes, isl, osl = RECIPES[recipe]
    facts = Facts(
        args=normal_args(args),
        env=env,
        platform="rocm" if platform == "rocm" else "cuda",
        model=model_facts(model, {"HF_HOME": "/no/such"}),
        gpus=gpus(8, hbm_bytes),
        peak_streams=128,
        longest_prompt=isl,
        longest_stream=isl + osl,
    )
    assert facts.model is not None
    assert [finding for finding in rule_findings(facts) if finding.severity == "blocks"] == []
