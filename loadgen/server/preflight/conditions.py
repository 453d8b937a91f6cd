"""What the rules see in the facts of a run: each function says it in words, or None where its rule is silent."""

from __future__ import annotations

from loadgen.server.preflight.facts import Facts

LONG_PROMPT = 16_384  # tokens from which chunked prefill pays on AMD too, by the publication
AITER_MEMORY = 0.95
WEIGHT_SHARE = 0.6  # the share of HBM that weights may take and still leave room for context and activations
DEFAULT_UTILIZATION = 0.92
QUICK_REDUCE = "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"
_QUICK_REDUCE_GROUPS = (2, 4, 8)


def aiter_unused(facts: Facts) -> str | None:
    """AITER's master switch is off on AMD."""
    return "VLLM_ROCM_USE_AITER is not 1" if facts.platform == "rocm" and not facts.aiter else None


def aiter_parts_alone(facts: Facts) -> str | None:
    """Switches for single kernels of AITER without the master switch."""
    parts = [name for name in facts.env if name.startswith(("VLLM_ROCM_USE_AITER_", "VLLM_USE_AITER_"))]
    on = [name for name in parts if facts.on(name)]
    alone = facts.platform == "rocm" and on and not facts.aiter
    return f"{', '.join(on)} without VLLM_ROCM_USE_AITER=1" if alone else None


def aiter_attention_grouped(facts: Facts) -> str | None:
    """AITER's attention, set or by default, with a model of grouped queries."""
    model = facts.model
    if not facts.aiter or model is None or not model.grouped_queries:
        return None
    if facts.env.get("VLLM_ROCM_USE_AITER_MHA", "1").lower() not in ("1", "true"):
        return None
    said = "=1" if "VLLM_ROCM_USE_AITER_MHA" in facts.env else " is not 0"
    return f"VLLM_ROCM_USE_AITER_MHA{said}; {model.attention_heads} attention heads share {model.kv_heads} KV heads"


def rocm_variables_elsewhere(facts: Facts) -> str | None:
    """Variables for AMD's kernels on a box that has none."""
    if facts.platform in (None, "rocm"):
        return None
    ours = [name for name in facts.env if name.startswith(("VLLM_ROCM_", "VLLM_USE_AITER_"))]
    named = [name for name in ours if facts.env[name].lower() not in ("", "0", "false", "none")]
    return f"{', '.join(named)} on platform {facts.platform}" if named else None


def _quick_reduce(facts: Facts) -> str | None:
    value = facts.env.get(QUICK_REDUCE, "NONE") or "NONE"
    return None if facts.platform != "rocm" or value.upper() == "NONE" else f"{QUICK_REDUCE}={value}"


def quick_reduce_without_aiter(facts: Facts) -> str | None:
    seen = _quick_reduce(facts)
    return f"{seen} without VLLM_ROCM_USE_AITER=1" if seen and not facts.aiter else None


def quick_reduce_nothing(facts: Facts) -> str | None:
    """Quantised all-reduce where there is nothing to reduce, or too many to do it."""
    seen = _quick_reduce(facts)
    idle = seen and facts.tensor_parallel not in _QUICK_REDUCE_GROUPS
    return f"{seen} with tensor-parallel-size = {facts.tensor_parallel}" if idle else None


def quick_reduce_off(facts: Facts) -> str | None:
    """All-reduce in full precision beside AITER's kernels."""
    usable = facts.aiter and facts.tensor_parallel in _QUICK_REDUCE_GROUPS
    return f"{QUICK_REDUCE} is not set" if usable and QUICK_REDUCE not in facts.env else None


def memory_above_aiter(facts: Facts) -> str | None:
    """Next to no memory left for AITER's workspace."""
    share = facts.fraction("gpu-memory-utilization", DEFAULT_UTILIZATION)
    return f"gpu-memory-utilization = {share:g} with AITER" if facts.aiter and share >= AITER_MEMORY else None


def kernel_arguments(facts: Facts) -> str | None:
    """Kernel arguments in the host's memory, on AMD."""
    unset = facts.platform == "rocm" and not facts.on("HIP_FORCE_DEV_KERNARG")
    return "HIP_FORCE_DEV_KERNARG is not 1" if unset else None


def nccl_channels(facts: Facts) -> str | None:
    """The default number of channels between AMD's GPUs."""
    unset = facts.platform == "rocm" and facts.tensor_parallel > 1 and "NCCL_MIN_NCHANNELS" not in facts.env
    return f"NCCL_MIN_NCHANNELS is not set, tensor-parallel-size = {facts.tensor_parallel}" if unset else None


def _fp8_cache(facts: Facts) -> bool:
    return str(facts.args.get("kv-cache-dtype", "auto")).startswith("fp8")


def kv_cache_fp8(facts: Facts) -> str | None:
    return f"kv-cache-dtype = {facts.args['kv-cache-dtype']}" if _fp8_cache(facts) else None


def kv_cache_wide(facts: Facts) -> str | None:
    """A KV cache in 16 bits for very many sequences."""
    seqs = facts.number("max-num-seqs") or 0
    wide = facts.platform in ("rocm", "cuda") and seqs >= 512 and not _fp8_cache(facts)
    return f"max-num-seqs = {seqs} with a KV cache in the model's own precision" if wide else None


def _chunked(facts: Facts) -> bool:
    return facts.args.get("enable-chunked-prefill") is not False


def chunked_prefill_off_cuda(facts: Facts) -> str | None:
    return "enable-chunked-prefill = false on NVIDIA" if facts.platform == "cuda" and not _chunked(facts) else None


def chunked_prefill_on_rocm(facts: Facts) -> str | None:
    """Chunked prefill of prompts of ordinary length on AMD."""
    on = facts.platform == "rocm" and _chunked(facts) and facts.longest_prompt <= LONG_PROMPT
    return "enable-chunked-prefill is on, which is the default" if on else None


def chunked_prefill_off_long(facts: Facts) -> str | None:
    """Very long prompts in one piece."""
    off = not _chunked(facts) and facts.longest_prompt > LONG_PROMPT
    return f"enable-chunked-prefill = false with prompts of {facts.longest_prompt} tokens" if off else None


def prefix_caching_random(facts: Facts) -> str | None:
    """A prefix cache under prompts that have no common prefix."""
    on = facts.random_prompts and facts.args.get("enable-prefix-caching") is not False
    return "enable-prefix-caching is on, which is the default, and every prompt is random" if on else None


def tensor_parallel_throughput(facts: Facts) -> str | None:
    """Many streams on more GPUs than the weights need."""
    weights = facts.model.weight_bytes if facts.model is not None else None
    if facts.goal != "throughput" or weights is None or facts.hbm_bytes is None:
        return None
    least = next(2**power for power in range(64) if weights / 2**power <= WEIGHT_SHARE * facts.hbm_bytes)
    if least >= facts.tensor_parallel:
        return None
    held = f"{least} of {_gib(facts.hbm_bytes)} hold the {_gib(weights)} of weights"
    return f"tensor-parallel-size = {facts.tensor_parallel} for {facts.peak_streams} streams, where {held}"


def tensor_parallel_latency(facts: Facts) -> str | None:
    """A single stream on fewer GPUs than there are."""
    used = facts.tensor_parallel * (facts.number("pipeline-parallel-size") or 1) * facts.instances
    idle = facts.goal == "latency" and facts.gpus is not None and used < facts.gpus
    return f"one stream on {used} of {facts.gpus} GPUs" if idle else None


def eager(facts: Facts) -> str | None:
    """No captured graphs on a GPU."""
    eager = facts.platform in ("rocm", "cuda") and facts.args.get("enforce-eager") is True
    return "enforce-eager = true" if eager else None


def precision(facts: Facts) -> str | None:
    """A precision other than BF16 on a GPU."""
    dtype = facts.args.get("dtype")
    other = facts.platform in ("rocm", "cuda") and dtype in ("float16", "half", "float32", "float")
    return f"dtype = {dtype}" if other else None


def remote_code(facts: Facts) -> str | None:
    return "trust-remote-code = true" if facts.args.get("trust-remote-code") is True else None


def streams_queue(facts: Facts) -> str | None:
    """More streams than the engines take at a time."""
    seqs = facts.number("max-num-seqs")
    if seqs is None or facts.peak_streams is None:
        return None
    engines = facts.instances * (facts.number("data-parallel-size") or 1)
    counted = f"{engines} x {seqs}" if engines > 1 else str(seqs)
    return f"max-num-seqs = {counted} for {facts.peak_streams} streams" if seqs * engines < facts.peak_streams else None


def stream_too_long(facts: Facts) -> str | None:
    """A stage whose streams exceed the server's limit."""
    limit = facts.number("max-model-len")
    short = limit is not None and limit < facts.longest_stream
    return f"max-model-len = {limit} for {facts.longest_stream} tokens of prompt and answer" if short else None


def beyond_model(facts: Facts) -> str | None:
    """A length beyond the model's own."""
    limit = facts.model.max_model_len if facts.model is not None else None
    wanted = facts.number("max-model-len", facts.longest_stream) or 0
    free = facts.on("VLLM_ALLOW_LONG_MAX_MODEL_LEN") or "hf-overrides" in facts.args
    return f"{wanted} tokens, and the model was made for {limit}" if limit and not free and wanted > limit else None


def batch_below_length(facts: Facts) -> str | None:
    """Unchunked prompts that exceed a step."""
    batch = facts.number("max-num-batched-tokens")
    length = facts.number("max-model-len", facts.model.max_model_len if facts.model is not None else None)
    short = not _chunked(facts) and batch is not None and length is not None and batch < length
    return f"max-num-batched-tokens = {batch} below max-model-len = {length}, unchunked" if short else None


def batch_below_seqs(facts: Facts) -> str | None:
    """Fewer tokens than sequences in a step."""
    batch, seqs = facts.number("max-num-batched-tokens"), facts.number("max-num-seqs")
    short = batch is not None and seqs is not None and batch < seqs
    return f"max-num-batched-tokens = {batch} below max-num-seqs = {seqs}" if short else None


def weights_too_large(facts: Facts) -> str | None:
    """Weights that exceed the memory of the GPUs."""
    weights = facts.model.weight_bytes if facts.model is not None else None
    shrunk = any("offload" in flag or flag in ("quantization", "enable-expert-parallel") for flag in facts.args)
    if weights is None or facts.hbm_bytes is None or shrunk:
        return None
    shards = facts.tensor_parallel * (facts.number("pipeline-parallel-size") or 1)
    room = facts.fraction("gpu-memory-utilization", DEFAULT_UTILIZATION) * facts.hbm_bytes
    needed = weights / shards
    return f"{_gib(needed)} of weights a GPU in {_gib(room)}" if needed > room else None


def _gib(count_bytes: float) -> str:
    return f"{count_bytes / 2**30:.0f} GiB"
