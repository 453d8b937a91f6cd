"""Ask the attention selector of the vLLM that this Python has, as if it were on an MI300X; run by `test_attention`.

    python selector.py FOLDER      # lines of JSON: the variables and the model, and the backend that vLLM takes

A CPU build has the ROCm platform's code, but not what it imports: a stub of amdsmi and an empty aiter are written to
FOLDER, and the compiled extensions, which belong to another platform, are kept from loading.
"""

# mypy: ignore-errors
import itertools
import json
import os
import sys
from pathlib import Path

STUB = """
class AmdSmiException(Exception): pass
class AmdSmiMemoryType: VRAM = 0
def amdsmi_init(): pass
def amdsmi_shut_down(): pass
def amdsmi_get_processor_handles(): return [0]
def amdsmi_get_gpu_asic_info(handle): return {"target_graphics_version": "gfx942"}
amdsmi_get_gpu_device_uuid = amdsmi_get_gpu_memory_total = amdsmi_topo_get_link_type = None
amdsmi_topo_get_numa_node_number = None
"""
ENVIRONMENT = {
    "VLLM_ROCM_USE_AITER": ("0", "1"),
    "VLLM_ROCM_USE_AITER_MHA": ("0", "1", None),
    "VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION": ("0", "1"),
}


def prepare(folder: Path) -> None:
    (folder / "aiter").mkdir()
    (folder / "aiter/__init__.py").touch()
    (folder / "amdsmi.py").write_text(STUB)
    sys.path.insert(0, str(folder))
    for extension in ("vllm._C", "vllm._C_stable_libtorch", "vllm._rocm_C"):
        sys.modules[extension] = None


def answers():
    import torch
    import triton
    import vllm.platforms
    from vllm.platforms.rocm import RocmPlatform

    vllm.platforms._current_platform = RocmPlatform()
    import vllm.triton_utils

    # Without a GPU vLLM replaces Triton by a placeholder, with which its ROCm backends cannot be imported.
    vllm.triton_utils.triton, vllm.triton_utils.tl = triton, triton.language
    from vllm._aiter_ops import rocm_aiter_ops
    from vllm.v1.attention.selector import AttentionSelectorConfig

    fixed = {"head_size": 64, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": 16, "use_mla": False}
    fixed |= {"use_sparse": False, "use_mm_prefix": False, "use_per_head_quant_scales": False, "attn_type": "decoder"}
    for values in itertools.product(*ENVIRONMENT.values(), (False, True), (False, True)):
        *variables, sinks, connector = values
        env = {name: value for name, value in zip(ENVIRONMENT, variables, strict=True) if value is not None}
        for name in ENVIRONMENT:
            os.environ.pop(name, None)
        os.environ.update(env)
        rocm_aiter_ops.refresh_env_variables()
        config = AttentionSelectorConfig(**fixed, has_sink=sinks, use_kv_connector=connector)
        path = RocmPlatform.get_attn_backend_cls(None, config)
        yield {"env": env, "sinks": sinks, "connector": connector, "backend": path.rpartition(".")[2]}


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
    for answer in answers():
        print("selected", json.dumps(answer))
