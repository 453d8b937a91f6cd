"""What is known of flags and variables that help, or work against each other: one function per rule.

A rule describes what it sees in the facts of a run, or returns None. Its name is the finding's id, its docstring is
shown as the reason, and its decorator has the remedy and the scope: `on` names platforms or GPU architectures, `vllm`
versions, `needs` the facts without which it cannot be judged. Advice for MI300X does not hold for MI210, nor advice for
the V0 engine today; where architecture, version or a needed fact is unknown, the rule is skipped, with the reason. A
rule never blocks for taste: only what vLLM itself refuses to start with, or to answer, `blocks`. Flags that vLLM has
removed are in `flags`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from loadgen.format import harmless, memory
from loadgen.schema.finding import Finding, Severity, Skipped
from loadgen.server.preflight.attention import (
    FLASH,
    MHA_VARIABLE,
    UNIFIED,
    UNIFIED_VARIABLE,
    attention_backend,
    named_backend,
    rules_out_rocm_attn,
)
from loadgen.server.preflight.facts import Facts
from loadgen.vendors import platform_of

_BENCHMARKS = "GPT-OSS 120B on one MI300X: launch and three benchmarks"
_FLAGS = "GPT-OSS 120B on one MI300X: every flag and variable"
_BEST_PRACTICES = "Serving LLMs on AMD MI300X: Best Practices"
_ENGINE = "vLLM 0.33.0"

_GPUS = ("rocm", "cuda")
_MI300X = ("gfx942",)  # also the architecture of MI300A and MI325X
_MI300_AND_LATER = ("gfx942", "gfx950")  # vLLM has AITER's kernels and quantised all-reduce for these
_WITHOUT_AITER = ("gfx908", "gfx90a", "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151")
_WITHOUT_BF16 = ("sm_60", "sm_61", "sm_70", "sm_72", "sm_75")
_WITH_FP8 = (*_MI300_AND_LATER, "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")

_LONG_PROMPT = 16_384  # tokens from which chunked prefill pays on AMD, too, according to the publication
_MANY_SEQS = 512  # from here on an MI300X may run out of KV cache, according to the publication
_AITER = "VLLM_ROCM_USE_AITER"
_FP8_BMM = "VLLM_ROCM_USE_AITER_FP8BMM"
_QUICK_REDUCE = "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"
_QUICK_REDUCE_GROUPS = (2, 4, 8)
_SCRATCH = "HSA_NO_SCRATCH_RECLAIM"
_MIN_MEC = {"gfx942": 177, "gfx950": 24}
_CHANNELS = "NCCL_MIN_NCHANNELS"

_Judge = Callable[[Facts], str | None]
_Need = Callable[[Facts], str | None]
"""Why something that a rule needs is unknown; None if it is known."""


class Rule(NamedTuple):
    finding: Finding  # without `seen`
    judge: _Judge
    on: tuple[str, ...]  # platforms or architectures; empty: all
    vllm: str  # a version range as in pip; empty: all
    needs: tuple[_Need, ...]
    tunes: bool  # following it would change a published recipe


RULES: list[Rule] = []


def rule_findings(facts: Facts) -> list[Finding]:
    """The findings of all rules that apply to this box and vLLM, in order of definition."""
    judged = (rule for rule in RULES if _applies(rule, facts) and _unknown(rule, facts) is None)
    found = ((rule.finding, rule.judge(facts)) for rule in judged)
    return [replace(finding, seen=harmless(seen)) for finding, seen in found if seen is not None]


def skipped_rules(facts: Facts) -> list[Skipped]:
    """The rules that apply as far as is known, but cannot be judged."""
    unknown = ((rule.finding.id, _unknown(rule, facts)) for rule in RULES if _applies(rule, facts))
    return [Skipped(name, why) for name, why in unknown if why is not None]


def _applies(rule: Rule, facts: Facts) -> bool:
    """Whether nothing that is known rules it out."""
    versions = not rule.vllm or facts.runs(rule.vllm) or not facts.runs(">=0")
    return _may_be_on(rule.on, facts) and versions and not (rule.tunes and facts.published)


def _may_be_on(on: tuple[str, ...], facts: Facts) -> bool:
    if not on or facts.platform in on:
        return True
    return facts.archs <= {*on} if facts.archs else facts.platform in (None, *map(platform_of, on))


def _unknown(rule: Rule, facts: Facts) -> str | None:
    """Why it cannot be judged; None if it can."""
    if rule.on and facts.platform not in rule.on and not facts.archs:
        return _gpus(facts) or "the architecture of these GPUs is unknown"
    if rule.vllm and not facts.runs(">=0"):
        return "the version of vLLM is unknown"
    return next(filter(None, (need(facts) for need in rule.needs)), None)


def _gpus(facts: Facts) -> str | None:
    return None if facts.gpus else facts.no_gpus


def _memory(facts: Facts) -> str | None:
    return _gpus(facts) or ("the memory of these GPUs is unknown" if facts.hbm_bytes is None else None)


def _model(facts: Facts) -> str | None:
    return None if facts.model is not None else "nothing is known of the model while its config.json is not here"


def _weights(facts: Facts) -> str | None:
    known = facts.model is not None and facts.model.weight_bytes is not None
    return None if known else _model(facts) or "the size of the model's weights is unknown"


def _seqs(facts: Facts) -> str | None:
    if facts.streams_each is None or facts.max_num_seqs is not None:
        return None
    return _memory(facts) or "max-num-seqs is unknown"


def _own_length(facts: Facts) -> str | None:
    known = facts.model is not None and facts.model.max_model_len is not None
    return None if known else _model(facts) or "the model's longest sequence is unknown"


def _length(facts: Facts) -> str | None:
    return None if facts.max_model_len is not None else _own_length(facts)


def _mec(facts: Facts) -> str | None:
    known = facts.mec_version is not None or facts.tensor_parallel == 1
    return None if known else _gpus(facts) or "the firmware of these GPUs is unknown"


def _variable(name: str) -> _Need:
    return lambda facts: None if facts.knows(name) else "what variables the container's image sets is unknown"


def _rule(
    severity: Severity,
    fix: str,
    source: str,
    *,
    on: tuple[str, ...] = (),
    vllm: str = "",
    needs: tuple[_Need, ...] = (),
    tunes: bool = False,
) -> Callable[[_Judge], _Judge]:
    """Register a function as a row of RULES."""

    def add(judge: _Judge) -> _Judge:
        id, why = judge.__name__.replace("_", "-"), inspect.cleandoc(judge.__doc__ or "").replace("\n", " ")
        RULES.append(Rule(Finding(id, severity, "", why, fix, source), judge, on, vllm, needs, tunes))
        return judge

    return add


@_rule("warns", f'{_AITER} = "1"', _FLAGS, on=_MI300_AND_LATER, vllm=">=0.8.5", needs=(_variable(_AITER),))
def aiter_unused(facts: Facts) -> str | None:
    """without AITER's kernels, matrix products, experts, norms and MLA are computed by generic ones: the publication
    expects 30 to 50 % less throughput. It says so of attention, too, which since 0.19 no longer depends on this
    variable: ROCM_ATTN is preferred either way"""
    return f"{_AITER} is not 1" if not facts.aiter else None


@_rule("info", "take them out", "vLLM pull request 36702", on=_WITHOUT_AITER, vllm=">=0.19")
def mi300_variable_elsewhere(facts: Facts) -> str | None:
    """vLLM has AITER's kernels and quantised all-reduce for MI300X and later only; here it silently uses other kernels,
    and what is measured is not what the recipe says"""
    named = [_AITER] if facts.aiter else []
    named += [_QUICK_REDUCE] if _quick_reduce(facts) else []
    return f"{', '.join(named)} on {', '.join(sorted(facts.archs))}" if named else None


@_rule("warns", f'{_AITER} = "1"', _FLAGS, on=_MI300_AND_LATER, needs=(_variable(_AITER),))
def aiter_part_alone(facts: Facts) -> str | None:
    """AITER's switches for single kernels do nothing without the master switch"""
    parts = [name for name in facts.env if name.startswith(("VLLM_ROCM_USE_AITER_", "VLLM_USE_AITER_"))]
    on = [name for name in parts if facts.on(name)]
    return f"{', '.join(on)} without {_AITER}=1" if on and not facts.aiter else None


def _shared_heads(facts: Facts) -> str | None:
    model = facts.model
    if model is None or not model.grouped_queries:
        return None
    return f"{model.attention_heads} attention heads share {model.kv_heads} KV heads"


@_rule("warns", f'{MHA_VARIABLE} = "0", or compare the answers', _FLAGS, on=_MI300X, needs=(_model,))
def aiter_mha_grouped(facts: Facts) -> str | None:
    """the publication warns of wrong results and instability of AITER's MHA kernel (the backend ROCM_AITER_FA) at some
    lengths with grouped-query attention; this variable, on by default, is what lets vLLM choose it"""
    shared = _shared_heads(facts)
    if shared is None or named_backend(facts) is not None or attention_backend(facts) != FLASH:
        return None
    said = f"{MHA_VARIABLE}=1" if MHA_VARIABLE in facts.env else f"{MHA_VARIABLE} is not 0"
    preferred = rules_out_rocm_attn(facts) if facts.runs(">=0.19") else None
    return "; ".join([f"vLLM {facts.vllm} chooses {FLASH}", said, *([preferred] if preferred else []), shared])


@_rule("info", "compare the answers, or take attention-backend out", _FLAGS, on=_MI300X, needs=(_model,), tunes=True)
def aiter_flash_grouped(facts: Facts) -> str | None:
    """the publication warns of wrong results of AITER's MHA kernel at some lengths with grouped-query attention;
    "Scaling AI Inference Performance with vLLM on AMD Instinct MI355X GPUs" uses it for Qwen3-235B and Llama-3.3-70B"""
    shared = _shared_heads(facts)
    return f"attention-backend = {FLASH}; {shared}" if named_backend(facts) == FLASH and shared else None


@_rule("warns", f'attention-backend = "{UNIFIED}"', _ENGINE, on=_MI300_AND_LATER, vllm=">=0.19")
def unified_attention_variable(facts: Facts) -> str | None:
    """vLLM still reads this variable, but since 0.19 it selects nothing"""
    backend = attention_backend(facts)
    if not facts.on(UNIFIED_VARIABLE) or backend == UNIFIED:
        return None
    return f"{UNIFIED_VARIABLE}=1" + (f", and the backend is {backend}" if backend is not None else "")


@_rule("blocks", "take it out: vLLM chooses", _ENGINE, on=(*_WITHOUT_AITER, "cuda"), vllm=">=0.19")
def aiter_flash_elsewhere(facts: Facts) -> str | None:
    """this backend is AITER's, for MI300X and later: vLLM refuses to start where it is named on another GPU"""
    return f"attention-backend = {FLASH}" if named_backend(facts) == FLASH else None


@_rule("warns", 'VLLM_ROCM_USE_AITER_CUSTOM_AR = "0"', "ROCM/aiter issue 4855", on=_MI300X, vllm=">=0.25,<0.30")
def aiter_all_reduce(facts: Facts) -> str | None:
    """AITER's all-reduce, which vLLM takes by default from 0.25 on, gave wrong text across 8 GPUs without any error;
    AITER has mended its races in 0.1.19.post1 and 0.1.20, and vLLM's images have a later one from 0.30 on. Without it
    throughput was about 3 % less"""
    taken = facts.aiter and facts.on("VLLM_ROCM_USE_AITER_CUSTOM_AR", default=True)
    wide = facts.tensor_parallel == 8 and facts.args.get("disable-custom-all-reduce") is not True
    return "VLLM_ROCM_USE_AITER_CUSTOM_AR is not 0, tensor-parallel-size = 8" if taken and wide else None


@_rule(
    "info",
    f'{_FP8_BMM} = "1", to compare with older figures',
    _ENGINE,
    on=_MI300_AND_LATER,
    vllm=">=0.33",
    needs=(_model, _variable(_FP8_BMM)),
)
def aiter_mla_unquantized(facts: Facts) -> str | None:
    """up to vLLM 0.32 AITER quantised the KV projections of MLA to FP8 while loading (BF16 ones on MI355X to FP4, by
    VLLM_ROCM_USE_AITER_FP4BMM), whatever the checkpoint said; since 0.33 only if asked to"""
    latent = facts.model is not None and facts.model.latent_attention
    return f"{_FP8_BMM} is not set" if facts.aiter and latent and _FP8_BMM not in facts.env else None


@_rule("warns", "take them out", _FLAGS, on=("cuda", "cpu"))
def rocm_variable_elsewhere(facts: Facts) -> str | None:
    """these variables steer AMD's kernels only: this recipe is for another box"""
    ours = [name for name in facts.env if name.startswith(("VLLM_ROCM_", "VLLM_USE_AITER_"))]
    named = [name for name in ours if facts.env[name].lower() not in ("", "0", "false", "none")]
    return f"{', '.join(named)} on platform {facts.platform}" if named else None


@_rule("blocks", "set HIP_VISIBLE_DEVICES only", _ENGINE, on=("rocm",), vllm=">=0.17")
def visible_devices_differ(facts: Facts) -> str | None:
    """both choose the GPUs, and vLLM refuses to start where they contradict each other"""
    hip, cuda = facts.env.get("HIP_VISIBLE_DEVICES"), facts.env.get("CUDA_VISIBLE_DEVICES")
    # Several instances are each given devices of their own, by both.
    differ = hip and cuda and hip != cuda and facts.instances == 1
    return f"HIP_VISIBLE_DEVICES={hip}, CUDA_VISIBLE_DEVICES={cuda}" if differ else None


@_rule(
    "warns", "number the GPUs from 0, or leave one of the two out", "ROCm documentation, GPU isolation", on=("rocm",)
)
def visible_devices_renumbered(facts: Facts) -> str | None:
    """the GPUs that ROCR_VISIBLE_DEVICES leaves are numbered from 0 again, and a number that is not among them leaves
    the server without that GPU and those after it"""
    left = [one for one in facts.env.get("ROCR_VISIBLE_DEVICES", "").split(",") if one.strip()]
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        chosen = [one.strip() for one in facts.env.get(name, "").split(",")]
        if left and any(one.isdecimal() and int(one) >= len(left) for one in chosen):
            return f"{name}={facts.env[name]} of the {len(left)} that ROCR_VISIBLE_DEVICES={','.join(left)} leaves"
    return None


@_rule(
    "warns",
    f'{_SCRATCH} = "1", which takes some memory, or newer firmware',
    "ROCm/rccl, rccl_wrap.cc: validHsaScratchEnvSetting; rccl issue 1867",
    on=_MI300_AND_LATER,
    needs=(_mec, _variable(_SCRATCH)),
)
def scratch_reclaim(facts: Facts) -> str | None:
    """with this firmware RCCL wants the runtime to keep the scratch memory of kernels: otherwise it may be taken back
    between two collectives, which slows them"""
    least = min((_MIN_MEC[arch] for arch in facts.archs if arch in _MIN_MEC), default=0)
    version = facts.mec_version
    if facts.tensor_parallel == 1 or version is None or version >= least or facts.on(_SCRATCH):
        return None
    return f"MEC firmware {version}, older than {least}; {_SCRATCH} is not 1"


def _quick_reduce(facts: Facts) -> str | None:
    value = facts.env.get(_QUICK_REDUCE) or "NONE"
    return None if value.upper() == "NONE" else f"{_QUICK_REDUCE}={value}"


@_rule("info", f'{_AITER} = "1"', _FLAGS, on=_MI300_AND_LATER, needs=(_variable(_AITER),))
def quick_reduce_without_aiter(facts: Facts) -> str | None:
    """the publication makes AITER its condition; vLLM 0.33.0 itself asks only for a group of 2, 4 or 8 GPUs"""
    seen = _quick_reduce(facts)
    return f"{seen} without {_AITER}=1" if seen and not facts.aiter else None


@_rule("info", "", _ENGINE, on=_MI300_AND_LATER)
def quick_reduce_nothing(facts: Facts) -> str | None:
    """quantised all-reduce works between 2, 4 or 8 tensor-parallel GPUs; here it has nothing to do"""
    seen = _quick_reduce(facts)
    idle = seen and facts.tensor_parallel not in _QUICK_REDUCE_GROUPS
    return f"{seen} with tensor-parallel-size = {facts.tensor_parallel}" if idle else None


@_rule(
    "info",
    f'{_QUICK_REDUCE} = "INT4"',
    _FLAGS,
    on=_MI300_AND_LATER,
    vllm=">=0.9.2",
    needs=(_variable(_QUICK_REDUCE),),
    tunes=True,
)
def quick_reduce_off(facts: Facts) -> str | None:
    """all-reduce moves 16-bit activations; INT4 moves a quarter of the bytes, and costs some accuracy"""
    usable = facts.aiter and facts.tensor_parallel in _QUICK_REDUCE_GROUPS
    return f"{_QUICK_REDUCE} is not set" if usable and _QUICK_REDUCE not in facts.env else None


@_rule("warns", "gpu-memory-utilization = 0.92", _FLAGS, on=_MI300X)
def memory_above_aiter(facts: Facts) -> str | None:
    """AITER's workspace grows for a moment when large prefills meet: out of memory under load"""
    share = facts.memory_share
    return f"gpu-memory-utilization = {share:g} with AITER" if facts.aiter and share >= 0.95 else None


@_rule("info", "take it out", f"{_FLAGS}; ROCm CLR, rocsettings.cpp", on=_MI300_AND_LATER)
def kernel_arguments(facts: Facts) -> str | None:
    """kernel arguments come from host memory: 5 to 10 us a launch, hundreds of launches a step; since ROCm 6.2 these
    GPUs have them in device memory unless told otherwise"""
    off = facts.env.get("HIP_FORCE_DEV_KERNARG") == "0"
    return "HIP_FORCE_DEV_KERNARG is 0" if off else None


@_rule(
    "info",
    f'{_CHANNELS} = "112"',
    f"{_BEST_PRACTICES}, case 5",
    on=_MI300X,
    needs=(_variable(_CHANNELS),),
    tunes=True,
)
def nccl_channels(facts: Facts) -> str | None:
    """on MI300X, 112 channels gave a slight gain in communication between GPUs"""
    seen = f"{_CHANNELS} is not set, tensor-parallel-size = {facts.tensor_parallel}"
    return seen if _CHANNELS not in facts.env and facts.tensor_parallel > 1 else None


def _fp8_cache(facts: Facts) -> bool:
    return str(facts.args.get("kv-cache-dtype", "auto")).startswith("fp8")


@_rule("info", "", f"{_BEST_PRACTICES}, case 6", on=_MI300X)
def kv_cache_fp8(facts: Facts) -> str | None:
    """half the memory a token, so twice the streams; but it lost some requests/s against auto with a BF16
    Llama-3.1-70B. "GPT-OSS 120B on one MI300X: every flag and variable" expects the opposite: measure both"""
    return f"kv-cache-dtype = {facts.args['kv-cache-dtype']}" if _fp8_cache(facts) else None


@_rule(
    "info",
    'kv-cache-dtype = "fp8", if the engine reports preemptions',
    _FLAGS,
    on=_WITH_FP8,
    needs=(_seqs,),
    tunes=True,
)
def kv_cache_wide(facts: Facts) -> str | None:
    """FP8 would hold twice the sequences; without it, long streams at this number are preempted and start over"""
    at_once = min(facts.max_num_seqs or 0, facts.streams_each or 0)
    wide = at_once >= _MANY_SEQS and not _fp8_cache(facts)
    return f"{at_once} streams at once with a KV cache in the model's own precision" if wide else None


def _chunked(facts: Facts) -> bool:
    return facts.args.get("enable-chunked-prefill") is not False


@_rule("warns", "take it out", _FLAGS, on=("cuda",))
def chunked_prefill_off_cuda(facts: Facts) -> str | None:
    """this is advice for AMD; on NVIDIA the default balances latency and throughput"""
    return "enable-chunked-prefill = false on NVIDIA" if not _chunked(facts) else None


@_rule("info", "enable-chunked-prefill = false", f"{_BEST_PRACTICES}, case 1", on=_MI300X, vllm="<0.8")
def chunked_prefill_on_rocm(facts: Facts) -> str | None:
    """with the V0 engine it was slower than whole prompts unless its size was tuned. Later recipes leave it on, as
    that of DeepSeek-R1 in "Scaling AI Inference Performance with vLLM on AMD Instinct MI355X GPUs" does"""
    on = facts.args.get("enable-chunked-prefill") is True and facts.longest_prompt <= _LONG_PROMPT
    return "enable-chunked-prefill = true" if on else None


@_rule("info", "compare the answers, or take it out", "vLLM issue 42360", on=("rocm",), vllm=">=0.12")
def chunked_prefill_off_rocm(facts: Facts) -> str | None:
    """ "GPT-OSS 120B on one MI300X: every flag and variable" turns it off for 10 to 20 % more prefill throughput. vLLM
    obeys, but warns at the start that most models do not support it: the engine may crash or answer wrongly"""
    return "enable-chunked-prefill = false" if not _chunked(facts) else None


@_rule("info", "enable-chunked-prefill = true", _FLAGS)
def chunked_prefill_off_long(facts: Facts) -> str | None:
    """above 16384 tokens chunks help: the decoding of other streams goes on between them"""
    off = not _chunked(facts) and facts.longest_prompt > _LONG_PROMPT
    return f"enable-chunked-prefill = false with prompts of {facts.longest_prompt} tokens" if off else None


@_rule("info", "enable-prefix-caching = false", f"{_BEST_PRACTICES}, case 3", vllm=">=0.8", tunes=True)
def prefix_caching_random(facts: Facts) -> str | None:
    """no prompt has been seen before, so the cache cannot hit; most publications turn it off, and figures are
    comparable only like with like"""
    on = facts.random_prompts and facts.args.get("enable-prefix-caching") is not False
    return "enable-prefix-caching is on, which is the default, and every prompt is random" if on else None


@_rule("warns", "enable-prefix-caching = true", "vLLM 0.32.0", vllm=">=0.8", tunes=True)
def prefix_caching_sessions(facts: Facts) -> str | None:
    """each request of a session repeats the context of the one before, which is then computed again"""
    off = facts.sessions and facts.args.get("enable-prefix-caching") is False
    return "enable-prefix-caching = false, and the load is sessions" if off else None


@_rule("info", "enable-prompt-tokens-details = true", "vLLM 0.32.0", vllm=">=0.8")
def cached_tokens_unknown(facts: Facts) -> str | None:
    """the server then says for each request how much of its prompt was cached; its counters also include priming and
    other clients"""
    silent = facts.sessions and facts.args.get("enable-prompt-tokens-details") is not True
    return "enable-prompt-tokens-details is off, and the load is sessions" if silent else None


@_rule(
    "info",
    "a lower tensor-parallel-size, and more instances",
    f"{_BEST_PRACTICES}, case 7",
    on=_GPUS,
    needs=(_memory, _weights),
    tunes=True,
)
def tensor_parallel_throughput(facts: Facts) -> str | None:
    """communication grows and each GPU has less to do: several instances give more throughput"""
    weights = facts.model.weight_bytes if facts.model is not None else None
    if facts.goal != "throughput" or weights is None or facts.hbm_bytes is None:
        return None
    # Weights may take 60 % of the HBM, and still leave room for context and activations.
    least = next(2**power for power in range(64) if weights / 2**power <= 0.6 * facts.hbm_bytes)
    if least >= facts.tensor_parallel:
        return None
    held = f"{least} of {memory(facts.hbm_bytes)} hold the {memory(weights)} of weights"
    return f"tensor-parallel-size = {facts.tensor_parallel} for {facts.peak_streams} streams, where {held}"


@_rule(
    "info",
    "tensor-parallel-size = the number of GPUs",
    f"{_BEST_PRACTICES}, case 7",
    on=_GPUS,
    needs=(_gpus,),
    tunes=True,
)
def tensor_parallel_latency(facts: Facts) -> str | None:
    """the lowest latency comes from splitting each layer over all GPUs of the box"""
    used = facts.tensor_parallel * (facts.number("pipeline-parallel-size") or 1) * facts.instances
    idle = facts.goal == "latency" and facts.devices is not None and used < facts.devices
    return f"one stream on {used} of {facts.devices} GPUs" if idle else None


@_rule("warns", "take it out", _BENCHMARKS, on=_GPUS)
def eager(facts: Facts) -> str | None:
    """without captured graphs every decode step pays for launching its kernels one by one"""
    return "enforce-eager = true" if facts.args.get("enforce-eager") is True else None


@_rule("info", 'dtype = "bfloat16"', _FLAGS, on=_GPUS)
def precision(facts: Facts) -> str | None:
    """float16 may overflow in large models, float32 halves throughput; these GPUs run bfloat16 at full rate"""
    dtype = facts.args.get("dtype")
    if facts.archs & {*_WITHOUT_BF16}:
        return None
    return f"dtype = {dtype}" if dtype in ("float16", "half", "float32", "float") else None


@_rule("info", "take it out, unless the model fails to load", _FLAGS)
def remote_code(facts: Facts) -> str | None:
    """Python code from the model's repository will run with your rights; vLLM has models such as gpt-oss built in"""
    return "trust-remote-code = true" if facts.args.get("trust-remote-code") is True else None


@_rule(
    "warns",
    "raise max-num-seqs, to 512 and above if memory allows, or lower the concurrency",
    f"{_BEST_PRACTICES}, case 8",
    needs=(_seqs,),
)
def streams_queue(facts: Facts) -> str | None:
    """what exceeds it waits inside the engine: TTFT will measure the queue"""
    seqs = facts.max_num_seqs
    if seqs is None or facts.streams_each is None or seqs >= facts.streams_each:
        return None
    counted = f"{facts.engines} x {seqs}" if facts.engines > 1 else str(seqs)
    said = f"= {counted}" if "max-num-seqs" in facts.args else f"is not set, which is {counted} here,"
    return f"max-num-seqs {said} for {facts.peak_streams} streams"


@_rule("blocks", "raise max-model-len, or shorten isl or osl", _FLAGS)
def stream_too_long(facts: Facts) -> str | None:
    """the server refuses such requests"""
    limit = facts.number("max-model-len")
    short = limit is not None and limit < facts.longest_stream
    return f"max-model-len = {limit} for {facts.longest_stream} tokens of prompt and answer" if short else None


@_rule("blocks", "lower max-model-len, or shorten isl or osl", _ENGINE, needs=(_own_length,))
def beyond_model(facts: Facts) -> str | None:
    """vLLM does not go beyond the length in the model's config.json"""
    limit = facts.model.max_model_len if facts.model is not None else None
    wanted = facts.number("max-model-len", facts.longest_stream) or 0
    free = facts.on("VLLM_ALLOW_LONG_MAX_MODEL_LEN") or "hf-overrides" in facts.args
    return f"{wanted} tokens, and the model was made for {limit}" if limit and not free and wanted > limit else None


@_rule("blocks", "take out max-num-batched-tokens, or lower max-model-len", _ENGINE, needs=(_length,))
def batch_below_length(facts: Facts) -> str | None:
    """without chunks a whole prompt must fit into one step, and vLLM refuses to start"""
    batch, length = facts.number("max-num-batched-tokens"), facts.max_model_len
    short = not _chunked(facts) and batch is not None and length is not None and batch < length
    return f"max-num-batched-tokens = {batch} below max-model-len = {length}, unchunked" if short else None


@_rule("blocks", "raise max-num-batched-tokens, or lower max-num-seqs", _ENGINE)
def batch_below_seqs(facts: Facts) -> str | None:
    """every sequence needs a token in each step, and vLLM refuses to start"""
    batch, seqs = facts.number("max-num-batched-tokens"), facts.number("max-num-seqs")
    short = batch is not None and seqs is not None and batch < seqs
    return f"max-num-batched-tokens = {batch} below max-num-seqs = {seqs}" if short else None


@_rule("blocks", "raise tensor-parallel-size", _FLAGS, on=_GPUS, needs=(_memory, _weights))
def weights_too_large(facts: Facts) -> str | None:
    """the model does not fit into the memory that vLLM may use"""
    weights = facts.model.weight_bytes if facts.model is not None else None
    shrunk = any("offload" in flag or flag in ("quantization", "enable-expert-parallel") for flag in facts.args)
    if weights is None or facts.hbm_bytes is None or shrunk:
        return None
    shards = facts.tensor_parallel * (facts.number("pipeline-parallel-size") or 1)
    room = facts.memory_share * facts.hbm_bytes
    needed = weights / shards
    return f"{memory(needed)} of weights a GPU in {memory(room)}" if needed > room else None
