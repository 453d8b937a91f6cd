"""What the publications know of flags and variables that work together, or against each other: one table to read.

A rule sees something in the facts of a run, or nothing. It never blocks for taste: `blocks` is said only where vLLM
itself refuses to start or to answer. What the rules see is in `conditions`; what vLLM no longer has, in `removed`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from loadgen.metrics.journal import Finding, Severity
from loadgen.server.preflight import conditions
from loadgen.server.preflight.facts import Facts
from loadgen.text import harmless

BENCHMARKS = "GPT-OSS 120B on one MI300X: launch and three benchmarks"
FLAGS = "GPT-OSS 120B on one MI300X: every flag and variable"
MI355X = "Scaling AI Inference Performance with vLLM on AMD Instinct MI355X GPUs"
BEST_PRACTICES = "Serving LLMs on AMD MI300X: Best Practices"
ENGINE = "vLLM 0.32.0"


class Rule(msgspec.Struct, frozen=True):
    """One rule: what it sees in the facts, as text, or None; and what is to be said about it."""

    id: str
    severity: Severity
    sees: Callable[[Facts], str | None]
    why: str
    fix: str
    source: str


def rule_findings(facts: Facts) -> list[Finding]:
    """Every rule that sees something, in the order of the table."""
    return [
        Finding(id=rule.id, severity=rule.severity, seen=harmless(seen), why=rule.why, fix=rule.fix, source=rule.source)
        for rule in RULES
        if (seen := rule.sees(facts)) is not None
    ]


RULES: list[Rule] = [
    Rule(
        "aiter-unused",
        "warns",
        conditions.aiter_unused,
        "without AITER's kernels vLLM falls back to generic attention on MI300X and later: 30 to 50 % less throughput",
        'VLLM_ROCM_USE_AITER = "1"',
        FLAGS,
    ),
    Rule(
        "aiter-part-alone",
        "warns",
        conditions.aiter_parts_alone,
        "AITER's switches for single kernels do nothing without the master switch",
        'VLLM_ROCM_USE_AITER = "1"',
        FLAGS,
    ),
    Rule(
        "aiter-mha-grouped",
        "warns",
        conditions.aiter_attention_grouped,
        "AITER's MHA kernel is on by default; with grouped-query attention it may give wrong results or fail at some "
        f'lengths. "{MI355X}" leaves it on for Qwen3-235B and Llama-3.3-70B',
        'VLLM_ROCM_USE_AITER_MHA = "0", or compare the answers',
        FLAGS,
    ),
    Rule(
        "rocm-variable-elsewhere",
        "warns",
        conditions.rocm_variables_elsewhere,
        "these variables steer AMD's kernels only: this recipe is for another box",
        "take them out",
        FLAGS,
    ),
    Rule(
        "quick-reduce-without-aiter",
        "info",
        conditions.quick_reduce_without_aiter,
        "the publication makes AITER its condition; vLLM 0.32.0 itself asks only for a group of 2, 4 or 8 GPUs",
        'VLLM_ROCM_USE_AITER = "1"',
        FLAGS,
    ),
    Rule(
        "quick-reduce-nothing",
        "info",
        conditions.quick_reduce_nothing,
        "quantised all-reduce works between 2, 4 or 8 tensor-parallel GPUs; here it has nothing to do",
        "",
        ENGINE,
    ),
    Rule(
        "quick-reduce-off",
        "info",
        conditions.quick_reduce_off,
        "all-reduce moves 16-bit activations; INT4 moves a quarter of the bytes, and costs some accuracy",
        f'{conditions.QUICK_REDUCE} = "INT4"',
        FLAGS,
    ),
    Rule(
        "memory-above-aiter",
        "warns",
        conditions.memory_above_aiter,
        "AITER's workspace grows for a moment when large prefills meet: out of memory under load",
        "gpu-memory-utilization = 0.92",
        FLAGS,
    ),
    Rule(
        "kernel-arguments",
        "info",
        conditions.kernel_arguments,
        "kernel arguments come from host memory: 5 to 10 us a launch, hundreds of launches a step",
        'HIP_FORCE_DEV_KERNARG = "1"',
        FLAGS,
    ),
    Rule(
        "nccl-channels",
        "info",
        conditions.nccl_channels,
        "on MI300X, 112 channels gave a slight gain in communication between GPUs",
        'NCCL_MIN_NCHANNELS = "112"',
        f"{BEST_PRACTICES}, case 5",
    ),
    Rule(
        "kv-cache-fp8",
        "info",
        conditions.kv_cache_fp8,
        "half the memory a token, so twice the streams; but it lost some requests/s against auto with a BF16 "
        f'Llama-3.1-70B. "{FLAGS}" expects the opposite: measure both',
        "",
        f"{BEST_PRACTICES}, case 6",
    ),
    Rule(
        "kv-cache-wide",
        "info",
        conditions.kv_cache_wide,
        "FP8 would hold twice the sequences; without it, long streams at this number are preempted and begin anew",
        'kv-cache-dtype = "fp8", if the engine reports preemptions',
        FLAGS,
    ),
    Rule(
        "chunked-prefill-off-cuda",
        "warns",
        conditions.chunked_prefill_off_cuda,
        "this is advice for AMD; on NVIDIA the default balances latency and throughput",
        "take it out",
        FLAGS,
    ),
    Rule(
        "chunked-prefill-on-rocm",
        "info",
        conditions.chunked_prefill_on_rocm,
        "AITER's prefill kernels want whole prompts: 10 to 20 % of prefill throughput; "
        f'"{BEST_PRACTICES}", case 1, found the same of vLLM 0.6',
        "enable-chunked-prefill = false",
        FLAGS,
    ),
    Rule(
        "chunked-prefill-off-long",
        "info",
        conditions.chunked_prefill_off_long,
        f"above {conditions.LONG_PROMPT} tokens chunks help: the decoding of other streams goes on between them",
        "enable-chunked-prefill = true",
        FLAGS,
    ),
    Rule(
        "prefix-caching-random",
        "info",
        conditions.prefix_caching_random,
        "no prompt has been seen before, so the cache cannot hit; the publications turn it off, and figures are "
        "comparable only like with like",
        "enable-prefix-caching = false",
        f"{BEST_PRACTICES}, case 3",
    ),
    Rule(
        "tensor-parallel-throughput",
        "info",
        conditions.tensor_parallel_throughput,
        "communication grows and each GPU has less to do: several instances give more throughput",
        "a lower tensor-parallel-size, and more instances",
        f"{BEST_PRACTICES}, case 7",
    ),
    Rule(
        "tensor-parallel-latency",
        "info",
        conditions.tensor_parallel_latency,
        "the lowest latency comes from splitting each layer over all GPUs of the box",
        "tensor-parallel-size = the number of GPUs",
        f"{BEST_PRACTICES}, case 7",
    ),
    Rule(
        "eager",
        "warns",
        conditions.eager,
        "without captured graphs every decode step pays for launching its kernels one by one",
        "take it out",
        BENCHMARKS,
    ),
    Rule(
        "precision",
        "info",
        conditions.precision,
        "float16 may overflow in large models, float32 halves throughput; these GPUs run bfloat16 at full rate",
        'dtype = "bfloat16"',
        FLAGS,
    ),
    Rule(
        "remote-code",
        "info",
        conditions.remote_code,
        "Python code from the model's repository will run with your rights; vLLM has models such as gpt-oss built in",
        "take it out, unless the model fails to load",
        FLAGS,
    ),
    Rule(
        "streams-queue",
        "warns",
        conditions.streams_queue,
        "what exceeds it waits inside the engine: TTFT will measure the queue",
        "raise max-num-seqs, or lower the concurrency",
        f"{BEST_PRACTICES}, case 8",
    ),
    Rule(
        "stream-too-long",
        "blocks",
        conditions.stream_too_long,
        "the server refuses such requests",
        "raise max-model-len, or shorten isl or osl",
        FLAGS,
    ),
    Rule(
        "beyond-model",
        "blocks",
        conditions.beyond_model,
        "vLLM does not go beyond the length in the model's config.json",
        "lower max-model-len, or shorten isl or osl",
        ENGINE,
    ),
    Rule(
        "batch-below-length",
        "blocks",
        conditions.batch_below_length,
        "without chunks a whole prompt must fit into one step, and vLLM refuses to start",
        "take out max-num-batched-tokens, or lower max-model-len",
        ENGINE,
    ),
    Rule(
        "batch-below-seqs",
        "blocks",
        conditions.batch_below_seqs,
        "every sequence needs a token in each step, and vLLM refuses to start",
        "raise max-num-batched-tokens, or lower max-num-seqs",
        ENGINE,
    ),
    Rule(
        "weights-too-large",
        "blocks",
        conditions.weights_too_large,
        "the model does not fit into the memory that vLLM may use",
        "raise tensor-parallel-size",
        FLAGS,
    ),
]
