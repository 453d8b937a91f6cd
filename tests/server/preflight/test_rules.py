import re
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from packaging.specifiers import SpecifierSet

from loadgen.format import GIB
from loadgen.plan.from_profile import stages_of
from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.schema.samples import GpuStatic
from loadgen.server.preflight.facts import Box, Facts, ModelFacts, Setup, facts_of
from loadgen.server.preflight.rules import RULES, Rule, rule_findings, skipped_rules
from loadgen.server.vllm.installation import newest_recorded
from loadgen.vendors import Platform

AITER = {"VLLM_ROCM_USE_AITER": "1"}
GROUPED = ModelFacts(attention_heads=64, kv_heads=8)
GPT_OSS = ModelFacts(attention_heads=64, kv_heads=8, attention_sinks=True)
MLA = ModelFacts(latent_attention=True)
LLAMA_70B = ModelFacts(64, 8, 141 * 10**9, 131072)
MI300X = 192 * 2**30


def facts(platform: Platform, arch: str, env: dict[str, str] | None = None, **more: Any) -> Facts:
    return Facts(**{"platform": platform, "archs": frozenset({arch}), "vllm": "0.32.0", "env": env or {}, **more})


mi300x = partial(facts, "rocm", "gfx942")
mi355x = partial(facts, "rocm", "gfx950")
mi210 = partial(facts, "rocm", "gfx90a")
h100 = partial(facts, "cuda", "sm_90")
cpu = partial(Facts, platform="cpu", vllm="0.32.0")


def gpus(count: int = 8, hbm_bytes: int | None = MI300X, name: str = "MI300X") -> tuple[GpuStatic, ...]:
    return tuple(GpuStatic(n, "amd", name, arch="gfx942", hbm_total_bytes=hbm_bytes) for n in range(count))


def reduce(bits: str = "INT4") -> dict[str, str]:
    return {"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": bits}


def tp(size: int, **more: Any) -> dict[str, Any]:
    return {"tensor-parallel-size": size, **more}


def llama(*, model: ModelFacts | None = LLAMA_70B, gpus: tuple[GpuStatic, ...] = gpus(), **more: Any) -> Facts:
    return mi300x(model=model, gpus=gpus, **more)


def with_mec(version: str, size: int = 8) -> dict[str, Any]:
    return {"gpus": tuple(GpuStatic(0, "amd", "X", firmware={"mec": version}) for _ in "12"), "args": tp(size)}


UNCHUNKED = {"enable-chunked-prefill": False}

OLD: dict[str, Any] = {"vllm": "0.18.1"}
NEW: dict[str, Any] = {"vllm": "0.33.0"}
ALL_REDUCE: dict[str, Any] = {"args": tp(8), "vllm": "0.29.0"}
FLASH = {"attention-backend": "ROCM_AITER_FA"}
UNIFIED = {"VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION": "1"}

# For each rule, facts in which it speaks, and facts in which it does not, though its architecture and version are met.
CASES: dict[str, tuple[list[Facts], list[Facts]]] = {
    "aiter-unused": (
        [mi300x(), mi355x({"VLLM_ROCM_USE_AITER": "0"}), mi300x({"VLLM_ROCM_USE_AITER": "0"}, env_whole=False)],
        [mi300x(AITER), mi300x(env_whole=False)],
    ),
    "mi300-variable-elsewhere": ([mi210(AITER), mi210(reduce())], [mi210(), mi210(reduce("NONE"))]),
    "aiter-part-alone": (
        [mi300x({"VLLM_ROCM_USE_AITER_MOE": "1"}), mi355x({"VLLM_USE_AITER_UNIFIED_ATTENTION": "1"})],
        [
            mi300x({"VLLM_ROCM_USE_AITER_MHA": "0"}),
            mi300x(AITER | {"VLLM_ROCM_USE_AITER_MOE": "1"}),
            mi300x({"VLLM_ROCM_USE_AITER_MOE": "1"}, env_whole=False),
            mi300x(),
        ],
    ),
    "aiter-mha-grouped": (
        [
            mi300x(AITER, model=GPT_OSS),
            mi300x(AITER | {"VLLM_ROCM_USE_AITER_MHA": "1"}, model=GPT_OSS, **NEW),
            mi300x(AITER, model=GROUPED, args={"kv-transfer-config": {}}),
            mi300x(AITER, model=GROUPED, **OLD),
            mi300x(AITER | {"VLLM_ROCM_USE_AITER_MHA": "1"}, model=GROUPED, **OLD),
        ],
        [
            mi300x(AITER, model=GROUPED),
            mi300x(AITER, model=GROUPED, args={"kv-transfer-config": {}}, vllm="0.19.0"),
            mi300x(AITER | {"VLLM_ROCM_USE_AITER_MHA": "0"}, model=GPT_OSS),
            mi300x(AITER, model=GPT_OSS, args={"attention-backend": "ROCM_AITER_UNIFIED_ATTN"}),
            mi300x(AITER, model=GPT_OSS, args=FLASH),
            mi300x({"VLLM_ROCM_USE_AITER_MHA": "1"}, model=GPT_OSS),
            mi300x(AITER, model=GPT_OSS, vllm=None),
            mi300x(AITER | {"VLLM_ROCM_USE_AITER_MHA": "0"}, model=GROUPED, **OLD),
            mi300x(AITER | {"VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION": "1"}, model=GROUPED, **OLD),
            mi300x(model=GROUPED, **OLD),
            mi300x(AITER, model=ModelFacts(128, 128), **OLD),
            mi300x(AITER, model=ModelFacts(), **OLD),
            mi300x(AITER, **OLD),
        ],
    ),
    "aiter-flash-grouped": (
        [
            mi300x(model=GROUPED, args=FLASH),
            mi300x(model=GROUPED, args={"attention-config": {"backend": "rocm_aiter_fa"}}),
        ],
        [
            mi300x(AITER, model=GROUPED),
            mi300x(AITER, args=FLASH),
            mi300x(AITER, model=ModelFacts(128, 128), args=FLASH),
            mi300x(AITER, model=GROUPED, args={"attention-backend": "ROCM_ATTN"}),
        ],
    ),
    "unified-attention-variable": (
        [mi300x(AITER | UNIFIED, model=GROUPED), mi355x(UNIFIED), mi300x(UNIFIED, model=GPT_OSS, args=FLASH)],
        [
            mi300x(AITER, model=GROUPED),
            mi300x(UNIFIED, model=GPT_OSS),
            mi300x(AITER | UNIFIED, model=GROUPED, args={"attention-backend": "ROCM_AITER_UNIFIED_ATTN"}),
            mi300x({"VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION": "0"}, model=GROUPED),
        ],
    ),
    "aiter-flash-elsewhere": (
        [mi210(args=FLASH), h100(args=FLASH)],
        [mi210(args={"attention-backend": "ROCM_ATTN"}), mi210()],
    ),
    "aiter-all-reduce": (
        [mi300x(AITER, **ALL_REDUCE), mi300x(AITER | {"VLLM_ROCM_USE_AITER_CUSTOM_AR": "1"}, **ALL_REDUCE)],
        [
            mi300x(AITER | {"VLLM_ROCM_USE_AITER_CUSTOM_AR": "0"}, **ALL_REDUCE),
            mi300x(**ALL_REDUCE),
            mi300x(AITER, args=tp(4), vllm="0.29.0"),
            mi300x(AITER, args=tp(8) | {"disable-custom-all-reduce": True}, vllm="0.29.0"),
        ],
    ),
    "aiter-mla-unquantized": (
        [mi300x(AITER, model=MLA, **NEW), mi355x(AITER, model=MLA, **NEW)],
        [
            mi300x(AITER | {"VLLM_ROCM_USE_AITER_FP8BMM": "1"}, model=MLA, **NEW),
            mi300x(AITER | {"VLLM_ROCM_USE_AITER_FP8BMM": "0"}, model=MLA, **NEW),
            mi300x(model=MLA, **NEW),
            mi300x(AITER, model=GROUPED, **NEW),
            mi300x(AITER, **NEW),
            mi300x(AITER, model=MLA, env_whole=False, **NEW),
        ],
    ),
    "rocm-variable-elsewhere": (
        [h100(AITER), h100(reduce()), cpu(env=AITER)],
        [h100({"VLLM_ROCM_USE_AITER": "0"}), h100()],
    ),
    "visible-devices-differ": (
        [mi210({"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "2,3"})],
        [
            mi210({"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"}),
            mi210({"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": ""}),
            mi210({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, instances=2),
            mi210({"HIP_VISIBLE_DEVICES": "0,1"}),
        ],
    ),
    "visible-devices-renumbered": (
        [
            mi210({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "4,5"}),
            mi210({"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}),
        ],
        [
            mi210({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "0,1"}),
            mi210({"ROCR_VISIBLE_DEVICES": "4,5"}),
            mi210({"HIP_VISIBLE_DEVICES": "4,5"}),
        ],
    ),
    "scratch-reclaim": (
        [mi300x(**with_mec("0x000080b0")), mi355x(**with_mec("0x00000017"))],
        [
            mi300x(**with_mec("0x000080b1")),  # 32945, which is 177
            mi300x({"HSA_NO_SCRATCH_RECLAIM": "1"}, **with_mec("0x000080b0")),
            mi300x(**with_mec("0x000080b0", 1)),
            mi355x(**with_mec("0x00000018")),
            mi300x(**with_mec("of another format")),
            mi300x(args=tp(8)),
        ],
    ),
    "quick-reduce-without-aiter": (
        [mi300x(reduce())],
        [mi300x(AITER | reduce()), mi300x(reduce("NONE")), mi300x(reduce(), env_whole=False)],
    ),
    "quick-reduce-nothing": (
        [mi300x(reduce()), mi300x(reduce(), args=tp(16))],
        [mi300x(reduce(), args=tp(8)), mi300x(reduce("NONE")), mi300x()],
    ),
    "quick-reduce-off": (
        [mi300x(AITER, args=tp(8))],
        [
            mi300x(AITER | reduce(), args=tp(8)),
            mi300x(AITER | reduce("NONE"), args=tp(8)),
            mi300x(AITER, args=tp(8), env_whole=False),
            mi300x(AITER),
            mi300x(args=tp(8)),
        ],
    ),
    "memory-above-aiter": (
        [mi300x(AITER, args={"gpu-memory-utilization": share}) for share in (0.95, "0.96")],
        [mi300x(AITER, args={"gpu-memory-utilization": 0.94}), mi300x(args={"gpu-memory-utilization": 0.95})],
    ),
    "kernel-arguments": ([mi300x({"HIP_FORCE_DEV_KERNARG": "0"})], [mi300x({"HIP_FORCE_DEV_KERNARG": "1"}), mi300x()]),
    "nccl-channels": (
        [mi300x(args=tp(2))],
        [mi300x({"NCCL_MIN_NCHANNELS": "112"}, args=tp(2)), mi300x(args=tp(2), env_whole=False), mi300x()],
    ),
    "kv-cache-fp8": (
        [mi300x(args={"kv-cache-dtype": "fp8"}), mi300x(args={"kv-cache-dtype": "fp8_e4m3"})],
        [mi300x(args={"kv-cache-dtype": "auto"}), mi300x()],
    ),
    "kv-cache-wide": (
        [mi300x(args={"max-num-seqs": 512}, peak_streams=600), h100(args={"max-num-seqs": 1024}, peak_streams=512)],
        [
            mi300x(args={"max-num-seqs": 512, "kv-cache-dtype": "fp8"}, peak_streams=600),
            mi300x(args={"max-num-seqs": 256}, peak_streams=600),
            mi300x(args={"max-num-seqs": 4096}, peak_streams=128),
            mi300x(args={"max-num-seqs": 512}, peak_streams=600, instances=2),
            mi300x(args={"max-num-seqs": 512}),
            mi300x(peak_streams=600),
        ],
    ),
    "chunked-prefill-off-cuda": ([h100(args=UNCHUNKED)], [h100()]),
    "chunked-prefill-on-rocm": (
        [mi300x(args={"enable-chunked-prefill": True}, vllm="0.6.2")],
        [
            mi300x(args={"enable-chunked-prefill": True}, longest_prompt=32_768, vllm="0.6.2"),
            mi300x(args=UNCHUNKED, vllm="0.6.2"),
            mi300x(vllm="0.6.2"),
        ],
    ),
    "chunked-prefill-off-rocm": ([mi300x(args=UNCHUNKED), mi210(args=UNCHUNKED)], [mi300x()]),
    "chunked-prefill-off-long": (
        [mi300x(args=UNCHUNKED, longest_prompt=32_768)],
        [mi300x(args=UNCHUNKED, longest_prompt=16_384), mi300x(longest_prompt=32_768)],
    ),
    "prefix-caching-random": (
        [h100(), cpu(args={"enable-prefix-caching": True})],
        [h100(args={"enable-prefix-caching": False}), h100(random_prompts=False)],
    ),
    "prefix-caching-sessions": (
        [h100(args={"enable-prefix-caching": False}, sessions=True)],
        [h100(sessions=True), h100(args={"enable-prefix-caching": False})],
    ),
    "cached-tokens-unknown": (
        [h100(sessions=True)],
        [h100(), h100(args={"enable-prompt-tokens-details": True}, sessions=True)],
    ),
    "tensor-parallel-throughput": (
        [llama(args=tp(8), peak_streams=64)],
        [
            llama(args=tp(2), peak_streams=64),
            llama(args=tp(8), peak_streams=63),
            llama(args=tp(8)),
            llama(gpus=(), args=tp(8), peak_streams=64),
            llama(model=GROUPED, args=tp(8), peak_streams=64),
        ],
    ),
    "tensor-parallel-latency": (
        [h100(gpus=gpus(8), peak_streams=1), mi300x(gpus=gpus(8), peak_streams=1, args=tp(4))],
        [
            h100(gpus=gpus(8), peak_streams=1, args=tp(8)),
            h100(peak_streams=1),
            h100(gpus=gpus(8), peak_streams=2),
        ],
    ),
    "eager": ([h100(args={"enforce-eager": True})], [h100(args={"enforce-eager": False}), h100()]),
    "precision": (
        [mi300x(args={"dtype": "float16"}), h100(args={"dtype": "float32"})],
        [mi300x(args={"dtype": "bfloat16"}), mi300x(), facts("cuda", "sm_70", args={"dtype": "float16"})],
    ),
    "remote-code": ([Facts(args={"trust-remote-code": True})], [Facts(args={"trust-remote-code": False}), Facts()]),
    "streams-queue": (
        [
            Facts(args={"max-num-seqs": 64}, peak_streams=128),
            Facts(args={"max-num-seqs": "64"}, peak_streams=65),
            mi300x(gpus=gpus(), peak_streams=1025),
            mi300x(gpus=gpus(), args={"max-num-batched-tokens": 512}, peak_streams=513),
            mi210(gpus=gpus(hbm_bytes=64 * GIB), peak_streams=257),
            h100(gpus=gpus(1, 80 * GIB, "NVIDIA A100-SXM4-80GB"), peak_streams=257),
            cpu(peak_streams=129),
        ],
        [
            Facts(args={"max-num-seqs": 64}, peak_streams=64),
            Facts(args={"max-num-seqs": 64}, peak_streams=128, instances=2),
            Facts(args={"max-num-seqs": 64, "data-parallel-size": 2}, peak_streams=128),
            Facts(args={"max-num-seqs": 64}),
            Facts(peak_streams=10_000, gpus=gpus()),
            mi300x(gpus=gpus(), peak_streams=1024),
            mi300x(gpus=gpus(), args={"performance-mode": "throughput"}, peak_streams=2048),
            mi300x(peak_streams=10_000),
            cpu(args=tp(2), peak_streams=256),
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
        [
            llama(gpus=gpus(hbm_bytes=80 * GIB)),
            llama(gpus=gpus(hbm_bytes=144 * GIB), vllm="0.19.0"),  # 0.9 of it where 0.92 would do
        ],
        [
            llama(),
            llama(gpus=gpus(hbm_bytes=144 * GIB)),
            llama(gpus=gpus(hbm_bytes=80 * GIB), args=tp(2)),
            llama(gpus=gpus(hbm_bytes=80 * GIB), args={"pipeline-parallel-size": 2}),
            llama(gpus=gpus(hbm_bytes=80 * GIB), args={"quantization": "fp8"}),
            llama(gpus=gpus(hbm_bytes=80 * GIB), args={"cpu-offload-gb": 100}),
            llama(gpus=()),
            llama(model=None, gpus=gpus(hbm_bytes=80 * GIB)),
        ],
    ),
}


def ids(seen: Facts) -> set[str]:
    return {finding.id for finding in rule_findings(seen)}


def test_every_rule_has_its_cases() -> None:
    assert list(CASES) == [rule.finding.id for rule in RULES]


@pytest.mark.parametrize("name", CASES)
def test_a_rule_speaks_where_it_should_and_only_there(name: str) -> None:
    speaks, silent = CASES[name]
    assert [seen for seen in speaks if name not in ids(seen)] == []
    assert [seen for seen in silent if name in ids(seen)] == []


PLACES: list[tuple[Platform, str | None]] = [
    *(("rocm", arch) for arch in ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")),
    *(("cuda", arch) for arch in ("sm_80", "sm_90", "sm_100")),
    *(("rocm", None), ("cuda", None), ("cpu", None)),
]
VERSIONS = [
    "0.6.2",
    "0.8.5",
    "0.18.1",
    "0.19.0",
    "0.24.0",
    "0.25.0rc1",
    "0.29.0+rocm72",
    "0.30.0",
    "0.32.0",
    "0.33.0",
    "?",
    None,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.finding.id)
def test_rules_apply_to_their_boxes_and_versions_only(rule: Rule) -> None:
    elsewhere = [(platform, arch) for platform, arch in PLACES if rule.on and not {platform, arch} & {*rule.on}]
    assert bool(elsewhere) == bool(rule.on)
    others = [version for version in VERSIONS if rule.vllm and not _is_one_of(version, rule.vllm)]
    assert bool(others) == bool(rule.vllm)
    for seen in CASES[rule.finding.id][0]:
        moved = [
            replace(seen, platform=platform, archs=frozenset({arch} if arch else ())) for platform, arch in elsewhere
        ]
        changed = [replace(seen, vllm=version) for version in others]
        reported = [replace(seen, published=True)] if rule.tunes else []
        assert [one for one in (*moved, *changed, *reported) if rule.finding.id in ids(one)] == []


def _is_one_of(version: str | None, versions: str) -> bool:
    return version not in (None, "?") and SpecifierSet(versions).contains(version or "", prereleases=True)


GPUS_UNKNOWN: dict[str, Any] = {"no_gpus": "look there"}


@pytest.mark.parametrize(
    ("seen", "rule", "reason"),
    [
        (Facts(platform="rocm", vllm="0.32.0", **GPUS_UNKNOWN), "aiter-unused", "look there"),
        (Facts(vllm="0.32.0", **GPUS_UNKNOWN), "eager", "look there"),
        (
            Facts(platform="rocm", vllm="0.32.0", gpus=gpus(1, None)),
            "aiter-unused",
            "the architecture of these GPUs",
        ),
        (mi300x(vllm="?"), "aiter-unused", "the version of vLLM is unknown"),
        (mi300x(env_whole=False), "aiter-unused", "what variables the container's image sets is unknown"),
        (llama(gpus=(), **GPUS_UNKNOWN), "weights-too-large", "look there"),
        (llama(gpus=gpus(1, None)), "weights-too-large", "the memory of these GPUs is unknown"),
        (llama(model=None), "weights-too-large", "nothing is known of the model"),
        (llama(model=GROUPED), "weights-too-large", "the size of the model's weights is unknown"),
        (llama(model=GROUPED), "beyond-model", "the model's longest sequence is unknown"),
        (mi300x(peak_streams=64, **GPUS_UNKNOWN), "streams-queue", "look there"),
    ],
)
def test_what_a_rule_has_to_know_and_does_not_is_said(seen: Facts, rule: str, reason: str) -> None:
    assert rule not in ids(seen)
    (skipped,) = [skipped for skipped in skipped_rules(seen) if skipped.rule == rule]
    assert skipped.reason.startswith(reason)


@pytest.mark.parametrize(
    ("seen", "rule"),
    [
        (Facts(platform="cuda", vllm="0.32.0"), "aiter-unused"),  # there is no such GPU of NVIDIA's
        (cpu(), "weights-too-large"),
        (mi300x(vllm="0.7.0", env_whole=False), "aiter-unused"),
        (mi300x({"VLLM_ROCM_USE_AITER": "0"}, env_whole=False), "aiter-unused"),
        (llama(model=None, published=True, peak_streams=64), "tensor-parallel-throughput"),
        (mi300x(peak_streams=64, args={"max-num-seqs": 8}), "streams-queue"),
        (mi300x(), "streams-queue"),  # all open loop
        (llama(), "weights-too-large"),
    ],
)
def test_a_rule_that_does_not_apply_or_knows_enough_is_not_skipped(seen: Facts, rule: str) -> None:
    assert rule not in [skipped.rule for skipped in skipped_rules(seen)]


@pytest.mark.parametrize("name", CASES)
def test_a_rule_that_speaks_is_not_skipped(name: str) -> None:
    assert [seen for seen in CASES[name][0] if name in [skipped.rule for skipped in skipped_rules(seen)]] == []


def test_a_rule_of_an_architecture_is_silent_on_a_box_that_has_others_too() -> None:
    assert "aiter-unused" in ids(mi300x())
    assert "aiter-unused" not in ids(mi300x(archs=frozenset({"gfx942", "gfx90a"})))


def test_what_is_unknown_leaves_the_rules_silent() -> None:
    assert rule_findings(Facts(random_prompts=False)) == []


def test_rules_speak_of_flags_and_variables_that_exist() -> None:
    known = newest_recorded()
    others = {"HIP_VISIBLE_DEVICES", "HSA_NO_SCRATCH_RECLAIM", "NCCL_MIN_NCHANNELS", "ROCM_AITER_UNIFIED_ATTN"}
    for rule in RULES:
        assert set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", rule.finding.fix)) <= {*known.variables, *others}
        for flag in re.findall(r"^([a-z]+(?:-[a-z]+)+) =", rule.finding.fix):
            assert flag in known.flags


def test_a_finding_says_what_was_seen() -> None:
    (finding,) = [finding for finding in rule_findings(llama(args=tp(8), peak_streams=128)) if "through" in finding.id]
    assert finding.seen == (
        "tensor-parallel-size = 8 for 128 streams, where 2 of 192.0 GiB hold the 131.3 GiB of weights"
    )
    assert (finding.severity, finding.source) == ("info", "Serving LLMs on AMD MI300X: Best Practices, case 7")


def test_no_value_reaches_the_screen_as_it_is() -> None:
    (finding,) = [
        finding for finding in rule_findings(mi300x(reduce("\x1b[2J"))) if finding.id == "quick-reduce-nothing"
    ]
    assert "\x1b" not in finding.seen


def profile(server: dict[str, Any], load: dict[str, Any] | None = None) -> Profile:
    document = {"server": {"engine": "vllm", "model": "m", **server}, "load": load or {}}
    return build_profile(document, where="test")


def test_facts_come_from_profile_and_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_MIN_NCHANNELS", "112")
    requested = profile(
        {"args": {"tensor_parallel": 8, "no-enable-prefix-caching": True}, "env": AITER, "instances": 2},
        {"shapes": [[1024, 8192], [8192, 1024]], "concurrency": [4, 128]},
    )
    facts = facts_of(Setup(requested, stages_of(requested), Box(), "rocm", gpus(8)))
    assert facts.args == {"tensor-parallel-size": 8, "enable-prefix-caching": False}
    assert facts.env["NCCL_MIN_NCHANNELS"] == "112"
    assert (facts.aiter, facts.tensor_parallel, facts.instances, facts.devices) == (True, 8, 2, 8)
    assert facts.hbm_bytes == MI300X
    assert (facts.peak_streams, facts.longest_prompt, facts.longest_stream) == (128, 8192, 9216)
    assert (facts.goal, facts.random_prompts) == ("throughput", True)


def facts_of_load(load: dict[str, Any]) -> Facts:
    requested = profile({}, load)
    return facts_of(Setup(requested, stages_of(requested), Box(), None))


def test_an_open_loop_has_no_concurrency() -> None:
    seen = facts_of_load({"rate": [4.0]})
    assert (seen.peak_streams, seen.goal) == (None, None)


def test_a_container_sees_the_variables_of_its_image_and_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_MIN_NCHANNELS", "112")
    requested = profile({"engine": "docker", "docker": {"image": "i"}, "env": AITER})
    unknown = facts_of(Setup(requested, stages_of(requested), Box(), "rocm"))
    assert (unknown.env, unknown.env_whole) == (AITER, False)
    image = {"HIP_FORCE_DEV_KERNARG": "1", "VLLM_ROCM_USE_AITER": "0"}
    known = facts_of(Setup(requested, stages_of(requested), Box(), "rocm", image=image))
    assert (known.env, known.env_whole) == (AITER | {"HIP_FORCE_DEV_KERNARG": "1"}, True)
    assert known.knows("NCCL_MIN_NCHANNELS")
    assert not unknown.knows("NCCL_MIN_NCHANNELS")


@pytest.mark.parametrize(
    "load",
    [{"prefix": {"share": 0.5}}, {"turns": {"count": 2}}, {"data": "sample"}, {"passes": 2}],
)
def test_prompts_that_come_again_are_not_random(load: dict[str, Any]) -> None:
    assert not facts_of_load(load).random_prompts


@pytest.mark.parametrize(
    ("load", "prompt", "stream"),
    [
        ({"isl": "uniform:100:32768", "osl": 10}, 32768, 32778),
        ({"isl": "0.9*256+0.1*20000", "osl": "uniform:1:100"}, 20000, 20100),
        ({"isl": 1000, "osl": 100, "turns": {"count": 3}}, 3200, 3300),
    ],
)
def test_the_longest_prompt_is_the_longest_that_may_be_drawn(load: dict[str, Any], prompt: int, stream: int) -> None:
    seen = facts_of_load(load)
    assert (seen.longest_prompt, seen.longest_stream) == (prompt, stream)


def test_a_recipe_with_published_figures_is_not_tuned() -> None:
    reference = {"source": "somewhere"}
    document = {"server": {"engine": "vllm", "model": "m"}, "load": {}, "reference": reference}
    requested = build_profile(document, where="test")
    assert facts_of(Setup(requested, stages_of(requested), Box(), None)).published


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
