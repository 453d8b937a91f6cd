"""Whether two starts of a server with the same flags were alike: KV cache, backends, time."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.schema.finding import Verdict
from loadgen.schema.start import ServerStart, StartDifference

MIN_KV_LOSS = 0.03
"""A pool this much smaller is another start: vLLM's profiling varies by less with nothing changed."""
MIN_SLOWER = 2.0  # times as long, and
MIN_SLOWER_S = 30.0  # this much longer

_COMPARED = {
    "attention": "attention backend",
    "moe": "MoE backend",
    "gemm": "GEMM backend",
    "emulated": "emulated formats",
    "quantization": "quantization",
    "kv_cache_dtype": "KV cache type",
    "kv_block_tokens": "KV block size",
    "max_length_tokens": "longest context",
    "version": "vLLM",
}


def differences(before: ServerStart, now: ServerStart) -> list[StartDifference]:
    """What differs between two starts with the same flags, and should not; unknown is no difference."""
    found = []
    for field, words in _COMPARED.items():
        old, new = getattr(before, field), getattr(now, field)
        if old and new and old != new:
            found.append(StartDifference(words, _words(old), _words(new)))
    old_tokens, new_tokens = before.kv_cache_tokens, now.kv_cache_tokens
    if old_tokens and new_tokens and abs(new_tokens - old_tokens) >= MIN_KV_LOSS * old_tokens:
        found.append(StartDifference("KV cache", f"{old_tokens:,} tokens", f"{new_tokens:,} tokens"))
    before_s, now_s = before.total_s, now.total_s
    if before_s and now_s and now_s >= MIN_SLOWER * before_s and now_s - before_s >= MIN_SLOWER_S:
        cold = " without a compile cache" if before.compile_cache_hit and not now.compile_cache_hit else ""
        found.append(StartDifference("start", f"{before_s:.0f} s", f"{now_s:.0f} s{cold}"))
    return found


def _words(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def start_verdicts(found: Sequence[StartDifference]) -> list[Verdict]:
    """The verdict on a start that differs from the last one with the same flags on this box.

    Another version of vLLM explains the rest, and a longer start alone harms no figure: neither is bad.
    """
    if not found:
        return []
    explained = any(one.what == "vLLM" for one in found) or all(one.what == "start" for one in found)
    words = "; ".join(one.words for one in found)
    return [Verdict("other-start", "server", f"same flags, other start: {words}", bad=not explained)]
