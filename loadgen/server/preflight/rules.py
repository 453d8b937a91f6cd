"""What the publications know of flags and variables that work together, or against each other: one function a rule.

A rule says in words what it sees in the facts of a run, or None where it is silent. Its name is the finding's id, its
docstring is shown as the reason, and its decorator has what to do. It never blocks for taste: `blocks` is said only
where vLLM itself refuses to start or to answer. What vLLM no longer has is in `flags`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from msgspec.structs import replace

from loadgen.format import harmless, memory
from loadgen.metrics.journal import Finding, Severity
from loadgen.server.preflight.facts import Facts

_BENCHMARKS = "GPT-OSS 120B on one MI300X: launch and three benchmarks"
_FLAGS = "GPT-OSS 120B on one MI300X: every flag and variable"
_BEST_PRACTICES = "Serving LLMs on AMD MI300X: Best Practices"
_ENGINE = "vLLM 0.32.0"
_LONG_PROMPT = 16_384  # tokens from which chunked prefill pays on AMD too, by the publication
_DEFAULT_UTILIZATION = 0.92
_QUICK_REDUCE = "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"
_QUICK_REDUCE_GROUPS = (2, 4, 8)


_Sees = Callable[[Facts], str | None]
RULES: list[tuple[Finding, _Sees]] = []  # the finding, but for what was seen


def rule_findings(facts: Facts) -> list[Finding]:
    """Every rule that sees something, in the order of their definition."""
    found = ((finding, sees(facts)) for finding, sees in RULES)
    return [replace(finding, seen=harmless(seen)) for finding, seen in found if seen is not None]


def _rule(severity: Severity, fix: str, source: str) -> Callable[[_Sees], _Sees]:
    """Make a row of RULES of a function."""

    def add(sees: _Sees) -> _Sees:
        id, why = sees.__name__.replace("_", "-"), inspect.cleandoc(sees.__doc__ or "").replace("\n", " ")
        RULES.append((Finding(id, severity, "", why, fix, source), sees))
        return sees

    return add


@_rule("warns", 'VLLM_ROCM_USE_AITER = "1"', _FLAGS)
def aiter_unused(facts: Facts) -> str | None:
    """without AITER's kernels vLLM falls back to generic attention on MI300X and later: 30 to 50 % less throughput"""
    return "VLLM_ROCM_USE_AITER is not 1" if facts.platform == "rocm" and not facts.aiter else None


@_rule("warns", 'VLLM_ROCM_USE_AITER = "1"', _FLAGS)
def aiter_part_alone(facts: Facts) -> str | None:
    """AITER's switches for single kernels do nothing without the master switch"""
    parts = [name for name in facts.env if name.startswith(("VLLM_ROCM_USE_AITER_", "VLLM_USE_AITER_"))]
    on = [name for name in parts if facts.on(name)]
    alone = facts.platform == "rocm" and on and not facts.aiter
    return f"{', '.join(on)} without VLLM_ROCM_USE_AITER=1" if alone else None


@_rule("warns", 'VLLM_ROCM_USE_AITER_MHA = "0", or compare the answers', _FLAGS)
def aiter_mha_grouped(facts: Facts) -> str | None:
    """AITER's MHA kernel is on by default; with grouped-query attention it may give wrong results or fail at some
    lengths. "Scaling AI Inference Performance with vLLM on AMD Instinct MI355X GPUs" leaves it on for Qwen3-235B and
    Llama-3.3-70B"""
    model = facts.model
    if not facts.aiter or model is None or not model.grouped_queries:
        return None
    if facts.env.get("VLLM_ROCM_USE_AITER_MHA", "1").lower() not in ("1", "true"):
        return None
    said = "=1" if "VLLM_ROCM_USE_AITER_MHA" in facts.env else " is not 0"
    return f"VLLM_ROCM_USE_AITER_MHA{said}; {model.attention_heads} attention heads share {model.kv_heads} KV heads"


@_rule("warns", "take them out", _FLAGS)
def rocm_variable_elsewhere(facts: Facts) -> str | None:
    """these variables steer AMD's kernels only: this recipe is for another box"""
    if facts.platform in (None, "rocm"):
        return None
    ours = [name for name in facts.env if name.startswith(("VLLM_ROCM_", "VLLM_USE_AITER_"))]
    named = [name for name in ours if facts.env[name].lower() not in ("", "0", "false", "none")]
    return f"{', '.join(named)} on platform {facts.platform}" if named else None


def _quick_reduce(facts: Facts) -> str | None:
    value = facts.env.get(_QUICK_REDUCE, "NONE") or "NONE"
    return None if facts.platform != "rocm" or value.upper() == "NONE" else f"{_QUICK_REDUCE}={value}"


@_rule("info", 'VLLM_ROCM_USE_AITER = "1"', _FLAGS)
def quick_reduce_without_aiter(facts: Facts) -> str | None:
    """the publication makes AITER its condition; vLLM 0.32.0 itself asks only for a group of 2, 4 or 8 GPUs"""
    seen = _quick_reduce(facts)
    return f"{seen} without VLLM_ROCM_USE_AITER=1" if seen and not facts.aiter else None


@_rule("info", "", _ENGINE)
def quick_reduce_nothing(facts: Facts) -> str | None:
    """quantised all-reduce works between 2, 4 or 8 tensor-parallel GPUs; here it has nothing to do"""
    seen = _quick_reduce(facts)
    idle = seen and facts.tensor_parallel not in _QUICK_REDUCE_GROUPS
    return f"{seen} with tensor-parallel-size = {facts.tensor_parallel}" if idle else None


@_rule("info", f'{_QUICK_REDUCE} = "INT4"', _FLAGS)
def quick_reduce_off(facts: Facts) -> str | None:
    """all-reduce moves 16-bit activations; INT4 moves a quarter of the bytes, and costs some accuracy"""
    usable = facts.aiter and facts.tensor_parallel in _QUICK_REDUCE_GROUPS
    return f"{_QUICK_REDUCE} is not set" if usable and _QUICK_REDUCE not in facts.env else None


@_rule("warns", "gpu-memory-utilization = 0.92", _FLAGS)
def memory_above_aiter(facts: Facts) -> str | None:
    """AITER's workspace grows for a moment when large prefills meet: out of memory under load"""
    share = facts.fraction("gpu-memory-utilization", _DEFAULT_UTILIZATION)
    return f"gpu-memory-utilization = {share:g} with AITER" if facts.aiter and share >= 0.95 else None


@_rule("info", 'HIP_FORCE_DEV_KERNARG = "1"', _FLAGS)
def kernel_arguments(facts: Facts) -> str | None:
    """kernel arguments come from host memory: 5 to 10 us a launch, hundreds of launches a step"""
    unset = facts.platform == "rocm" and not facts.on("HIP_FORCE_DEV_KERNARG")
    return "HIP_FORCE_DEV_KERNARG is not 1" if unset else None


@_rule("info", 'NCCL_MIN_NCHANNELS = "112"', f"{_BEST_PRACTICES}, case 5")
def nccl_channels(facts: Facts) -> str | None:
    """on MI300X, 112 channels gave a slight gain in communication between GPUs"""
    unset = facts.platform == "rocm" and facts.tensor_parallel > 1 and "NCCL_MIN_NCHANNELS" not in facts.env
    return f"NCCL_MIN_NCHANNELS is not set, tensor-parallel-size = {facts.tensor_parallel}" if unset else None


def _fp8_cache(facts: Facts) -> bool:
    return str(facts.args.get("kv-cache-dtype", "auto")).startswith("fp8")


@_rule("info", "", f"{_BEST_PRACTICES}, case 6")
def kv_cache_fp8(facts: Facts) -> str | None:
    """half the memory a token, so twice the streams; but it lost some requests/s against auto with a BF16
    Llama-3.1-70B. "GPT-OSS 120B on one MI300X: every flag and variable" expects the opposite: measure both"""
    return f"kv-cache-dtype = {facts.args['kv-cache-dtype']}" if _fp8_cache(facts) else None


@_rule("info", 'kv-cache-dtype = "fp8", if the engine reports preemptions', _FLAGS)
def kv_cache_wide(facts: Facts) -> str | None:
    """FP8 would hold twice the sequences; without it, long streams at this number are preempted and begin anew"""
    seqs = facts.number("max-num-seqs") or 0
    wide = facts.on_gpu and seqs >= 512 and not _fp8_cache(facts)
    return f"max-num-seqs = {seqs} with a KV cache in the model's own precision" if wide else None


def _chunked(facts: Facts) -> bool:
    return facts.args.get("enable-chunked-prefill") is not False


@_rule("warns", "take it out", _FLAGS)
def chunked_prefill_off_cuda(facts: Facts) -> str | None:
    """this is advice for AMD; on NVIDIA the default balances latency and throughput"""
    return "enable-chunked-prefill = false on NVIDIA" if facts.platform == "cuda" and not _chunked(facts) else None


@_rule("info", "enable-chunked-prefill = false", _FLAGS)
def chunked_prefill_on_rocm(facts: Facts) -> str | None:
    """AITER's prefill kernels want whole prompts: 10 to 20 % of prefill throughput; "Serving LLMs on AMD MI300X: Best
    Practices", case 1, found the same of vLLM 0.6"""
    on = facts.platform == "rocm" and _chunked(facts) and facts.longest_prompt <= _LONG_PROMPT
    return "enable-chunked-prefill is on, which is the default" if on else None


@_rule("info", "enable-chunked-prefill = true", _FLAGS)
def chunked_prefill_off_long(facts: Facts) -> str | None:
    """above 16384 tokens chunks help: the decoding of other streams goes on between them"""
    off = not _chunked(facts) and facts.longest_prompt > _LONG_PROMPT
    return f"enable-chunked-prefill = false with prompts of {facts.longest_prompt} tokens" if off else None


@_rule("info", "enable-prefix-caching = false", f"{_BEST_PRACTICES}, case 3")
def prefix_caching_random(facts: Facts) -> str | None:
    """no prompt has been seen before, so the cache cannot hit; the publications turn it off, and figures are comparable
    only like with like"""
    on = facts.random_prompts and facts.args.get("enable-prefix-caching") is not False
    return "enable-prefix-caching is on, which is the default, and every prompt is random" if on else None


@_rule("info", "a lower tensor-parallel-size, and more instances", f"{_BEST_PRACTICES}, case 7")
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


@_rule("info", "tensor-parallel-size = the number of GPUs", f"{_BEST_PRACTICES}, case 7")
def tensor_parallel_latency(facts: Facts) -> str | None:
    """the lowest latency comes from splitting each layer over all GPUs of the box"""
    used = facts.tensor_parallel * (facts.number("pipeline-parallel-size") or 1) * facts.instances
    idle = facts.goal == "latency" and facts.devices is not None and used < facts.devices
    return f"one stream on {used} of {facts.devices} GPUs" if idle else None


@_rule("warns", "take it out", _BENCHMARKS)
def eager(facts: Facts) -> str | None:
    """without captured graphs every decode step pays for launching its kernels one by one"""
    eager = facts.on_gpu and facts.args.get("enforce-eager") is True
    return "enforce-eager = true" if eager else None


@_rule("info", 'dtype = "bfloat16"', _FLAGS)
def precision(facts: Facts) -> str | None:
    """float16 may overflow in large models, float32 halves throughput; these GPUs run bfloat16 at full rate"""
    dtype = facts.args.get("dtype")
    other = facts.on_gpu and dtype in ("float16", "half", "float32", "float")
    return f"dtype = {dtype}" if other else None


@_rule("info", "take it out, unless the model fails to load", _FLAGS)
def remote_code(facts: Facts) -> str | None:
    """Python code from the model's repository will run with your rights; vLLM has models such as gpt-oss built in"""
    return "trust-remote-code = true" if facts.args.get("trust-remote-code") is True else None


@_rule("warns", "raise max-num-seqs, or lower the concurrency", f"{_BEST_PRACTICES}, case 8")
def streams_queue(facts: Facts) -> str | None:
    """what exceeds it waits inside the engine: TTFT will measure the queue"""
    seqs = facts.number("max-num-seqs")
    if seqs is None or facts.peak_streams is None:
        return None
    engines = facts.instances * (facts.number("data-parallel-size") or 1)
    counted = f"{engines} x {seqs}" if engines > 1 else str(seqs)
    return f"max-num-seqs = {counted} for {facts.peak_streams} streams" if seqs * engines < facts.peak_streams else None


@_rule("blocks", "raise max-model-len, or shorten isl or osl", _FLAGS)
def stream_too_long(facts: Facts) -> str | None:
    """the server refuses such requests"""
    limit = facts.number("max-model-len")
    short = limit is not None and limit < facts.longest_stream
    return f"max-model-len = {limit} for {facts.longest_stream} tokens of prompt and answer" if short else None


@_rule("blocks", "lower max-model-len, or shorten isl or osl", _ENGINE)
def beyond_model(facts: Facts) -> str | None:
    """vLLM does not go beyond the length in the model's config.json"""
    limit = facts.model.max_model_len if facts.model is not None else None
    wanted = facts.number("max-model-len", facts.longest_stream) or 0
    free = facts.on("VLLM_ALLOW_LONG_MAX_MODEL_LEN") or "hf-overrides" in facts.args
    return f"{wanted} tokens, and the model was made for {limit}" if limit and not free and wanted > limit else None


@_rule("blocks", "take out max-num-batched-tokens, or lower max-model-len", _ENGINE)
def batch_below_length(facts: Facts) -> str | None:
    """without chunks a whole prompt must fit into one step, and vLLM refuses to start"""
    batch = facts.number("max-num-batched-tokens")
    length = facts.number("max-model-len", facts.model.max_model_len if facts.model is not None else None)
    short = not _chunked(facts) and batch is not None and length is not None and batch < length
    return f"max-num-batched-tokens = {batch} below max-model-len = {length}, unchunked" if short else None


@_rule("blocks", "raise max-num-batched-tokens, or lower max-num-seqs", _ENGINE)
def batch_below_seqs(facts: Facts) -> str | None:
    """every sequence needs a token in each step, and vLLM refuses to start"""
    batch, seqs = facts.number("max-num-batched-tokens"), facts.number("max-num-seqs")
    short = batch is not None and seqs is not None and batch < seqs
    return f"max-num-batched-tokens = {batch} below max-num-seqs = {seqs}" if short else None


@_rule("blocks", "raise tensor-parallel-size", _FLAGS)
def weights_too_large(facts: Facts) -> str | None:
    """the model does not fit into the memory that vLLM may use"""
    weights = facts.model.weight_bytes if facts.model is not None else None
    shrunk = any("offload" in flag or flag in ("quantization", "enable-expert-parallel") for flag in facts.args)
    if weights is None or facts.hbm_bytes is None or shrunk:
        return None
    shards = facts.tensor_parallel * (facts.number("pipeline-parallel-size") or 1)
    room = facts.fraction("gpu-memory-utilization", _DEFAULT_UTILIZATION) * facts.hbm_bytes
    needed = weights / shards
    return f"{memory(needed)} of weights a GPU in {memory(room)}" if needed > room else None
