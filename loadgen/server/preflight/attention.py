"""Which attention backend vLLM takes on MI300X and later, in the order of its own selector.

The rows are `_get_backend_priorities` of `vllm/platforms/rocm.py` and what each backend supports, as read in vLLM 0.18,
0.19, 0.25, 0.32 and 0.33; `tests/vllm/test_attention.py` runs the selector of an installation. Models with latent
attention (MLA) have backends of their own, which are not in it.
"""

from __future__ import annotations

from collections.abc import Callable

from loadgen.server.preflight.facts import Facts

FLASH = "ROCM_AITER_FA"
UNIFIED = "ROCM_AITER_UNIFIED_ATTN"
MHA_VARIABLE = "VLLM_ROCM_USE_AITER_MHA"
UNIFIED_VARIABLE = "VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION"


_ORDER: tuple[tuple[str, str, Callable[[Facts], bool]], ...] = (
    (UNIFIED, "<0.19", lambda facts: facts.aiter and facts.on(UNIFIED_VARIABLE)),
    ("ROCM_ATTN", ">=0.19", lambda facts: rules_out_rocm_attn(facts) is None),
    (FLASH, ">=0", lambda facts: facts.aiter and facts.on(MHA_VARIABLE, default=True)),
    (UNIFIED, ">=0.19", lambda facts: True),  # if AITER is installed, whatever the variables say
    ("TRITON_ATTN", ">=0", lambda facts: True),
)
"""Each backend, the versions that try it at this place, and whether it is usable."""


def attention_backend(facts: Facts) -> str | None:
    """The backend that is named, or else the first usable one; None if the version or the model is unknown, or MLA."""
    named = named_backend(facts)
    if named is not None:
        return named
    if not facts.runs(">=0") or facts.model is None or facts.model.latent_attention:
        return None
    return next(backend for backend, vllm, usable in _ORDER if facts.runs(vllm) and usable(facts))


def named_backend(facts: Facts) -> str | None:
    """The backend that the flags name, by its name in vLLM."""
    config = facts.args.get("attention-config")
    nested = config.get("backend") if isinstance(config, dict) else facts.args.get("attention-config.backend")
    named = facts.args.get("attention-backend") or nested
    return str(named).upper() if named and str(named).lower() != "auto" else None


def rules_out_rocm_attn(facts: Facts) -> str | None:
    """Why the backend that vLLM prefers since 0.19 cannot serve this model; None if it can."""
    if facts.model is not None and facts.model.attention_sinks:
        return "the model's attention sinks rule out ROCM_ATTN"
    if "kv-transfer-config" in facts.args and facts.runs(">=0.25"):
        return "a KV connector rules out ROCM_ATTN"
    return None
