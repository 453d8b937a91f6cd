"""What vLLM had once and what took its place: recipes outlive the flags and variables they were written with.

Each was in a release of vLLM and is not in 0.32.0. The text says what to do now. Whether an installation still has a
name is for the installation to say: these tables only explain a name that it does not know.
"""

from __future__ import annotations

_MULTI_STEP = "take it out: multi-step scheduling went with the V0 engine; async-scheduling hides the same cost"
_CAPTURE = "take it out: graphs are captured by batch size, not by sequence length; see max-cudagraph-capture-size"
_SPECULATIVE = (
    'write it as a key of the table speculative-config, such as { model = "...", num_speculative_tokens = 3 }'
)
_STRUCTURED = 'write it as a key of the table structured-outputs-config, such as { backend = "xgrammar" }'
_EPLB = "write it as a key of the table eplb-config"
_V0 = "take it out: it belonged to the V0 engine, which is gone"
_LORA = "take it out: LoRA no longer has this option"

FLAGS: dict[str, str] = {
    "disable-log-requests": "take it out: requests are not logged now, unless enable-log-requests is set",
    "swap-space": "take it out: the V1 engine computes again what it preempts, and swaps nothing to the host",
    "max-seq-len-to-capture": _CAPTURE,
    "max-context-len-to-capture": _CAPTURE,
    "num-scheduler-steps": _MULTI_STEP,
    "num-scheduler-step": _MULTI_STEP,
    "multi-step-stream-outputs": _MULTI_STEP,
    "cuda-graph-sizes": "use cudagraph-capture-sizes",
    "calculate-kv-scales": "take it out: scales come with the checkpoint",
    "quantization-param-path": "take it out: scales come with the checkpoint",
    "device": "take it out: the build of vLLM decides",
    "task": "use runner and convert",
    "enable-reasoning": "take it out: reasoning-parser alone turns it on",
    "override-pooler-config": "use pooler-config",
    "rope-scaling": "write it as a key of the table hf-overrides",
    "rope-theta": "write it as a key of the table hf-overrides",
    "disable-mm-preprocessor-cache": "use mm-processor-cache-gb = 0",
    "enable-microbatching": "use enable-dbo",
    "worker-use-ray": 'use distributed-executor-backend = "ray"',
    "engine-use-ray": 'use distributed-executor-backend = "ray"',
    "speculative-model": _SPECULATIVE,
    "num-speculative-tokens": _SPECULATIVE,
    "speculative-draft-tensor-parallel-size": _SPECULATIVE,
    "ngram-prompt-lookup-max": _SPECULATIVE,
    "ngram-prompt-lookup-min": _SPECULATIVE,
    "spec-decoding-acceptance-method": _SPECULATIVE,
    "disable-logprobs-during-spec-decoding": _SPECULATIVE,
    "guided-decoding-backend": _STRUCTURED,
    "guided-decoding-disable-fallback": _STRUCTURED,
    "guided-decoding-disable-any-whitespace": _STRUCTURED,
    "num-redundant-experts": _EPLB,
    "eplb-window-size": _EPLB,
    "eplb-step-interval": _EPLB,
    "eplb-log-balancedness": _EPLB,
    "lora-extra-vocab-size": _LORA,
    "long-lora-scaling-factors": _LORA,
    "enable-prompt-adapter": "take it out: prompt adapters are gone",
    "max-prompt-adapters": "take it out: prompt adapters are gone",
    "use-v2-block-manager": _V0,
    "preemption-mode": _V0,
    "num-lookahead-slots": _V0,
    "scheduler-delay-factor": _V0,
    "max-num-partial-prefills": _V0,
    "max-long-partial-prefills": _V0,
    "disable-async-output-proc": _V0,
    "disable-frontend-multiprocessing": _V0,
    "tokenizer-pool-size": _V0,
    "tokenizer-pool-type": _V0,
}

JSON_KEYS: dict[str, dict[str, str]] = {
    "compilation-config": {
        "full_cuda_graph": 'use cudagraph_mode = "FULL"',
        "use_cudagraph": 'use cudagraph_mode, "NONE" for no graphs',
        "level": "use mode",
        "max_capture_size": "use max_cudagraph_capture_size",
        "use_inductor": 'use backend, "eager" for no Inductor',
    },
}
"""Keys of a flag's JSON; an unknown one ends the start as an unknown flag does."""

VARIABLES: dict[str, str] = {
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
}

WELL_KNOWN: list[str] = """
    CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_VISIBLE_DEVICES GPU_MAX_HW_QUEUES HF_HOME HF_HUB_CACHE HF_HUB_OFFLINE
    HF_TOKEN HIP_FORCE_DEV_KERNARG HIP_VISIBLE_DEVICES HSA_ENABLE_SDMA HSA_NO_SCRATCH_RECLAIM HSA_OVERRIDE_GFX_VERSION
    MKL_NUM_THREADS NCCL_DEBUG NCCL_IB_DISABLE NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS NCCL_P2P_DISABLE
    NCCL_SOCKET_IFNAME OMP_NUM_THREADS PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF
    PYTORCH_TUNABLEOP_ENABLED RCCL_MSCCL_ENABLE ROCR_VISIBLE_DEVICES SAFETENSORS_FAST_GPU TOKENIZERS_PARALLELISM
    TORCH_BLAS_PREFER_HIPBLASLT TORCH_CUDA_ARCH_LIST TRANSFORMERS_OFFLINE TRITON_CACHE_DIR
""".split()
"""Variables of other libraries that recipes set; a name close to one of them is taken for a slip of the pen."""
