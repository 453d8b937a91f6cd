"""The order in which vLLM takes attention backends on MI300X, as a table; `tests/vllm` asks the engine itself."""

import pytest

from loadgen.server.preflight.attention import attention_backend
from loadgen.server.preflight.facts import Facts, ModelFacts

PLAIN, GPT_OSS, MLA = ModelFacts(64, 8), ModelFacts(64, 8, attention_sinks=True), ModelFacts(latent_attention=True)
OFF: dict[str, str] = {}
AITER = {"VLLM_ROCM_USE_AITER": "1"}
NO_MHA = AITER | {"VLLM_ROCM_USE_AITER_MHA": "0"}
UNIFIED = AITER | {"VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION": "1"}
NAMED = {"attention-backend": "triton_attn"}


@pytest.mark.parametrize(
    ("vllm", "model", "env", "args", "backend"),
    [
        ("0.33.0", PLAIN, OFF, {}, "ROCM_ATTN"),
        ("0.33.0", PLAIN, AITER, {}, "ROCM_ATTN"),
        ("0.33.0", PLAIN, UNIFIED, {}, "ROCM_ATTN"),
        ("0.32.0", GPT_OSS, AITER, {}, "ROCM_AITER_FA"),
        ("0.19.0", GPT_OSS, UNIFIED, {}, "ROCM_AITER_FA"),
        ("0.33.0", GPT_OSS, NO_MHA, {}, "ROCM_AITER_UNIFIED_ATTN"),
        ("0.33.0", GPT_OSS, OFF, {}, "ROCM_AITER_UNIFIED_ATTN"),
        ("0.18.0", GPT_OSS, AITER, {}, "ROCM_AITER_FA"),
        ("0.18.0", PLAIN, UNIFIED, {}, "ROCM_AITER_UNIFIED_ATTN"),
        ("0.18.0", PLAIN, OFF, {}, "TRITON_ATTN"),
        ("0.33.0", PLAIN, AITER, {"kv-transfer-config": {"kv_connector": "x"}}, "ROCM_AITER_FA"),
        ("0.33.0", GPT_OSS, AITER, NAMED, "TRITON_ATTN"),
        (None, None, OFF, NAMED, "TRITON_ATTN"),
        (None, GPT_OSS, AITER, {}, None),
        ("0.33.0", None, AITER, {}, None),
        ("0.33.0", MLA, AITER, {}, None),
    ],
)
def test_the_first_usable_backend_is_taken(
    vllm: str | None, model: ModelFacts | None, env: dict[str, str], args: dict[str, object], backend: str | None
) -> None:
    assert attention_backend(Facts(vllm=vllm, model=model, env=env, args=args)) == backend
