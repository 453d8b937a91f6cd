"""Checks the profile's flags and variables against what an installation supports.

An unknown flag ends vLLM's start after ten seconds of imports; an unknown variable only leaves a line in the log, and
the run measures something other than intended. Only what argparse would refuse `blocks`; doubtful cases pass. Values of
flags are shown only where they cannot be secrets.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from loadgen.errors import UNDECODABLE, ProfileError
from loadgen.format import harmless
from loadgen.profile.schema import Server
from loadgen.schema.finding import Finding
from loadgen.server.vllm.installation import (
    FlagInfo,
    Installation,
    newest_recorded,
    recorded_installation,
    recorded_versions,
)

# Flags of earlier vLLM releases that 0.33.0 lacks, by what to do instead: old recipes still use them. Whether an
# installation has a flag is decided by the installation; these tables only explain flags that it lacks.
_REMOVED_FLAGS = {
    "take it out: requests are not logged now, unless enable-log-requests is set": "disable-log-requests",
    "take it out: the V1 engine computes again what it preempts, and swaps nothing to the host": "swap-space",
    "take it out: graphs are captured by batch size, not by sequence length; see max-cudagraph-capture-size": (
        "max-seq-len-to-capture max-context-len-to-capture"
    ),
    "take it out: multi-step scheduling went with the V0 engine; async-scheduling hides the same cost": (
        "num-scheduler-steps num-scheduler-step multi-step-stream-outputs"
    ),
    "use cudagraph-capture-sizes": "cuda-graph-sizes",
    "take it out: scales come with the checkpoint": "calculate-kv-scales quantization-param-path",
    "take it out: the build of vLLM decides": "device",
    "use runner and convert": "task",
    "take it out: reasoning-parser alone turns it on": "enable-reasoning",
    "use pooler-config": "override-pooler-config",
    "write it as a key of the table hf-overrides": "rope-scaling rope-theta",
    "use mm-processor-cache-gb = 0": "disable-mm-preprocessor-cache",
    "use enable-dbo": "enable-microbatching",
    'use distributed-executor-backend = "ray"': "worker-use-ray engine-use-ray",
    'write it as a key of the table speculative-config, such as { model = "...", num_speculative_tokens = 3 }': (
        "speculative-model num-speculative-tokens speculative-draft-tensor-parallel-size ngram-prompt-lookup-max "
        "ngram-prompt-lookup-min spec-decoding-acceptance-method disable-logprobs-during-spec-decoding"
    ),
    'write it as a key of the table structured-outputs-config, such as { backend = "xgrammar" }': (
        "guided-decoding-backend guided-decoding-disable-fallback guided-decoding-disable-any-whitespace"
    ),
    "write it as a key of the table eplb-config": (
        "num-redundant-experts eplb-window-size eplb-step-interval eplb-log-balancedness"
    ),
    "take it out: LoRA no longer has this option": "lora-extra-vocab-size long-lora-scaling-factors",
    "take it out: prompt adapters are gone": "enable-prompt-adapter max-prompt-adapters",
    "take it out: it belonged to the V0 engine, which is gone": (
        "use-v2-block-manager preemption-mode num-lookahead-slots scheduler-delay-factor max-num-partial-prefills "
        "max-long-partial-prefills disable-async-output-proc disable-frontend-multiprocessing tokenizer-pool-size "
        "tokenizer-pool-type"
    ),
}
REMOVED_FLAGS = {flag: fix for fix, flags in _REMOVED_FLAGS.items() for flag in flags.split()}

_REMOVED_COMPILATION_KEYS: dict[str, str] = {
    "full_cuda_graph": 'use cudagraph_mode = "FULL"',
    "use_cudagraph": 'use cudagraph_mode, "NONE" for no graphs',
    "level": "use mode",
    "max_capture_size": "use max_cudagraph_capture_size",
    "use_inductor": 'use backend, "eager" for no Inductor',
}
"""Keys of compilation-config's JSON; like an unknown flag, an unknown key ends the start."""

REMOVED_VARIABLES: dict[str, str] = {
    "VLLM_USE_AITER_UNIFIED_ATTENTION": 'use the flag attention-backend = "ROCM_AITER_UNIFIED_ATTN"',
    "VLLM_USE_AITER_TRITON_ROPE": "use VLLM_ROCM_USE_AITER_TRITON_ROPE",
    "VLLM_ROCM_USE_AITER_TRITON_LINEAR": "use VLLM_ROCM_USE_AITER_LINEAR and VLLM_ROCM_USE_AITER_TRITON_GEMM (both on)",
    "VLLM_ROCM_USE_AITER_FUSED_MOE_A16W4": 'use VLLM_ROCM_USE_AITER_MOE (on), or the flag moe-backend = "aiter"',
    "VLLM_ROCM_USE_AITER_TRITON_FUSED_ROPE_ZEROS_KV_CACHE": "see pass_config.fuse_rope_kvcache of compilation-config",
    "VLLM_V1_USE_PREFILL_DECODE_ATTENTION": 'use the flag attention-backend = "ROCM_ATTN"',
    "VLLM_USE_TRITON_FLASH_ATTN": "take it out: the flag attention-backend chooses the kernels",
    "VLLM_ATTENTION_BACKEND": "use the flag attention-backend",
    "VLLM_FLASH_ATTN_VERSION": "write it as a key of the table attention-config",
    "VLLM_USE_V1": "take it out: V1 is the only engine",
    "VLLM_RPC_TIMEOUT": "use VLLM_ENGINE_READY_TIMEOUT_S and VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
    "VLLM_TORCH_PROFILER_DIR": "use the flag profiler-config",
    "VLLM_ROCM_MONO_DECODE": "use the flag monokernel",
}

WELL_KNOWN_VARIABLES: list[str] = """
    CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_VISIBLE_DEVICES GPU_MAX_HW_QUEUES HF_HOME HF_HUB_CACHE HF_HUB_OFFLINE
    HF_TOKEN HIP_FORCE_DEV_KERNARG HIP_VISIBLE_DEVICES HSA_ENABLE_SDMA HSA_NO_SCRATCH_RECLAIM HSA_OVERRIDE_GFX_VERSION
    MKL_NUM_THREADS NCCL_DEBUG NCCL_IB_DISABLE NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS NCCL_P2P_DISABLE
    NCCL_SOCKET_IFNAME OMP_NUM_THREADS PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF
    PYTORCH_TUNABLEOP_ENABLED RCCL_MSCCL_ENABLE ROCR_VISIBLE_DEVICES SAFETENSORS_FAST_GPU TOKENIZERS_PARALLELISM
    TORCH_BLAS_PREFER_HIPBLASLT TORCH_CUDA_ARCH_LIST TRANSFORMERS_OFFLINE TRITON_CACHE_DIR
""".split()
"""Variables of other libraries that recipes set; a name close to one of them counts as misspelt."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_PARALLEL = (
    *("tensor-parallel-size", "tensor-parallel", "tp"),
    *("pipeline-parallel-size", "pipeline-parallel", "pp"),
    *("data-parallel-size", "dp"),
    *("prefill-context-parallel-size", "pcp"),
)
"""Flags whose product is the number of devices."""


def flag_findings(
    server: Server, installation: Installation, inherited: Mapping[str, str] = os.environ
) -> list[Finding]:
    """What in `server.args` and the environment this installation would refuse, ignore or misinterpret.

    Variables are `inherited` by a server that is no container.
    """
    flags = [finding for key, value in server.args.items() for finding in _judged(key, value, installation)]
    return [*flags, *_variable_findings(server, installation, inherited if server.engine == "vllm" else {})]


def list_form(installation: Installation | None, flag: str) -> Literal["json", "repeat", "several"]:
    """How this flag takes a list: as JSON, as `--flag a --flag b`, or as `--flag a b`.

    Without an installation the newest record decides; an unknown flag takes several values.
    """
    known = installation or newest_recorded()
    matches = _matches(f"--{_name(flag)}", known)
    if len(matches) != 1:
        return "several"
    info = known.flags[matches[0]]
    return "json" if info.json else "repeat" if info.repeats else "several"


def normal_args(args: Mapping[str, Any], installation: Installation | None = None) -> dict[str, Any]:
    """The arguments by long flag name: dashes, no abbreviations, and `no-x = true` as `x = false`.

    Since vLLM 0.33 `disable-x` is also a name of `enable-x`, and the other way round.
    """
    known = installation or newest_recorded()
    normal: dict[str, Any] = {}
    for key, value in args.items():
        name = _name(key)
        matches = _matches(f"--{name}", known)
        flag = matches[0] if len(matches) == 1 else name
        negated = name.startswith("no-") or {name.partition("-")[0], flag.partition("-")[0]} == {"enable", "disable"}
        normal[flag] = False if value is True and negated and matches else value
    return normal


def integer(value: Any) -> int | None:  # noqa: ANN401 - TOML's types
    """A flag's whole number as vLLM reads it (`8192`, `"8k"`, `"8K"`); None for anything else, such as auto."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", str(value))
    return None if match is None else int(float(match[1]) * _UNITS[match[2]])


def devices_each(args: Mapping[str, Any]) -> int:
    """How many devices a server with these flags uses; raises `ProfileError` for sizes that are not numbers."""
    given = {_name(name): value for name, value in args.items()}
    sizes = {name: given[name] for name in _PARALLEL if name in given}
    for name, size in sizes.items():
        if not str(size).isdecimal() or int(size) < 1:
            raise ProfileError(f"server.args.{name} = {size!r}: expected a whole number of at least 1")
    return math.prod(map(int, sizes.values()))


def _name(key: str) -> str:
    """A flag's name as vLLM reads it: underscores become dashes, up to the first dot."""
    head, dot, rest = key.lstrip("-").partition(".")
    return head.replace("_", "-") + dot + rest


def _matches(word: str, installation: Installation) -> list[str]:
    """The flags that a word such as `--max-model` may mean, by argparse's rule: the flag itself, or all it begins."""
    word = word.partition(".")[0]
    spelled = {name: flag for flag, info in installation.flags.items() for name in info.names}
    if word in spelled:
        return [spelled[word]]
    return sorted({flag for name, flag in spelled.items() if name.startswith(word)})


def _judged(key: str, value: Any, installation: Installation) -> Iterator[Finding]:  # noqa: ANN401 - TOML's types
    name, shown = _name(harmless(key)), f"server.args.{harmless(key)}"
    word = f"--no-{name}" if value is False else f"--{name}"
    matches = _matches(word, installation)
    if not matches:
        yield _unknown(shown, name, word, installation)
    elif len(matches) > 1:
        listed = ", ".join(f"--{flag}" for flag in matches[:5]) + (" and others" if len(matches) > 5 else "")
        yield _blocks("ambiguous-flag", shown, f"{word} may be {listed}", "write its whole name")
    else:
        info = installation.flags[matches[0]]
        if word.partition(".")[0] not in info.names:
            why = f"vLLM reads it as --{matches[0]}, as long as no other flag begins like this"
            yield Finding("abbreviated-flag", "info", shown, why, f"write {matches[0]}")
        yield from _value_findings(shown, info, value, dotted="." in name)
        yield from _json_key_findings(shown, matches[0], name, value)


def _unknown(shown: str, name: str, word: str, installation: Installation) -> Finding:
    if word.startswith("--no-") and _matches(f"--{name}", installation):
        return _blocks("no-negation", f"{shown} = false", f"vLLM {installation.version} has no {word}", "take it out")
    why = f"vLLM {installation.version} does not know {word}, and ends with exit code 2"
    return _blocks("unknown-flag", shown, why, _replacement(name, installation))


def _replacement(name: str, installation: Installation) -> str:
    plain = name.lower().removeprefix("no-")
    if plain in REMOVED_FLAGS:
        return REMOVED_FLAGS[plain]
    short = [flag for flag, info in installation.flags.items() if f"-{name}" in info.names]
    if short:
        return f"did you mean {short[0]}?"
    return _in_other_version(plain) or _near(plain, installation.flags, "take it out")


def _in_other_version(name: str) -> str | None:
    """What to do about a flag or variable that another recorded version knows; None if none does."""
    others = (recorded_installation(version) for version in reversed(recorded_versions()))
    found = next((one.version for one in others if name in one.flags or name in one.variables), None)
    return f"take it out, or run vLLM {found}, which knows it" if found is not None else None


def _near(word: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]}?" if near else otherwise


def _value_findings(shown: str, info: FlagInfo, value: Any, *, dotted: bool) -> Iterator[Finding]:  # noqa: ANN401
    problem = _value_problem(info, value, dotted=dotted)
    if problem is not None:
        yield _blocks("flag-value", shown, *problem)
        return
    for entry in value if isinstance(value, list) else [value]:
        text = str(entry).lower().replace("-", "_") if info.any_case else str(entry)
        if info.choices and not isinstance(entry, bool) and text not in info.choices:
            why = f"it takes one of: {', '.join(info.choices)}"
            yield _blocks("flag-choice", f"{shown} = {harmless(str(entry))}", why, _near(str(entry), info.choices, ""))


def _value_problem(info: FlagInfo, value: Any, *, dotted: bool) -> tuple[str, str] | None:  # noqa: ANN401
    """Why argparse refuses a value of this kind, and what to do; None if it accepts it."""
    long = next(name for name in info.names if name.startswith("--"))
    if dotted and not info.json:
        return f"{long} takes no JSON, so it has no keys to set one by one", f"write {long[2:]} with its value"
    if info.takes == "nothing":
        return None if isinstance(value, bool) else (f"{long} is a switch and takes no value", "write true or false")
    if value is True and info.takes != "optional":
        return f"{long} takes a value", "write the value instead of true"
    if value == [] and info.takes == "several":
        return f"{long} takes at least one value", "take it out"
    if info.json or info.takes == "several" or info.repeats:
        return None
    if isinstance(value, list):
        return f"{long} takes one value, not a list", "write one value; some flags take several with commas between"
    if isinstance(value, dict):
        return f"{long} takes no JSON, and a table is passed as JSON", "write a plain value"
    return None


def _json_key_findings(shown: str, flag: str, name: str, value: Any) -> Iterator[Finding]:  # noqa: ANN401
    given = name.split(".")[1:2] or _keys(value)
    for key, fix in _REMOVED_COMPILATION_KEYS.items() if flag == "compilation-config" else ():
        if key in given:
            yield _blocks("unknown-flag", f"{shown}: {key}", f"{flag} no longer has {key}, and the start fails", fix)


def _keys(value: Any) -> list[str]:  # noqa: ANN401 - any of TOML's types
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except UNDECODABLE:
            return []  # not JSON: a path, a name, or a mistake that vLLM reports
    return list(value) if isinstance(value, dict) else []


def _variable_findings(server: Server, installation: Installation, inherited: Mapping[str, str]) -> Iterator[Finding]:
    strict = normal_args(server.args, installation).get("fail-on-environ-validation") is True
    ours = [name for name in inherited if name.startswith("VLLM_") and name not in server.env]
    for name in [*server.env, *ours]:
        own = f"server.env.{harmless(name)}"
        shown = own if name in server.env else f"{harmless(name)} in the environment of vramp"
        if name in installation.variables or name in WELL_KNOWN_VARIABLES:
            continue
        if name.startswith("VLLM_"):
            fix = REMOVED_VARIABLES.get(name) or _in_other_version(name)
            fix = fix or _near(name, installation.variables, "take it out", cutoff=0.8)
            why = f"vLLM {installation.version} does not read it: it has no effect, and only the log says so"
            if strict:
                why = "fail-on-environ-validation is set: vLLM will not start"
            yield Finding("unknown-variable", "blocks" if strict else "warns", shown, why, fix)
        elif near := difflib.get_close_matches(name, WELL_KNOWN_VARIABLES, n=1, cutoff=0.9):
            why = f"no library is known to read it, but {near[0]} is: a misspelt variable does nothing"
            yield Finding("misspelt-variable", "warns", shown, why, f"did you mean {near[0]}?")


def _blocks(name: str, seen: str, why: str, fix: str) -> Finding:
    return Finding(name, "blocks", seen, why, fix)
