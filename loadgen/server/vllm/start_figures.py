"""The figures of a vLLM start, from its log (0.10 to 0.33) and `vllm:cache_config_info`.

A figure is a row of `_FIGURES`, which also says which of several workers' values counts. Nothing depends on any one
line, and a line of another version or language only adds nothing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from loadgen.format import harmless
from loadgen.schema.start import ServerStart

_MATCHED_CHARS = 4000
"""The line with the whole configuration is long; beyond this, a hostile line would cost too much."""
MAX_NAMES = 8  # of each kind of backend
_MAX_NAME = 120


def _first(before: object, now: object) -> object:
    return before


def _added(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*before, *now)))[:MAX_NAMES]


def _integer(text: str) -> int:
    return int(text.replace(",", ""))


def _name(text: str) -> tuple[str, ...]:
    return (harmless(text.replace("'", "").strip(' ".,:'))[:_MAX_NAME],)


_GIB = r"([\d.]+) ?Gi?B"
_FIGURES: tuple[tuple[str, str, Callable[[str], Any], Callable[[Any, Any], Any]], ...] = (
    ("version", r"\b(?:vLLM\b[\w ]*version|LLM engine \() ?v?(\d+\.\d[\w.+-]*)", harmless, _first),
    ("kv_cache_tokens", r"(?:GPU|CPU|GPU \+ host) KV cache size: ([\d,]+) tokens", _integer, _first),
    ("kv_cache_blocks", r"# (?!CPU)\w+ blocks: (\d+)", _integer, _first),
    ("kv_cache_gib", rf"(?:Available KV cache memory:|memory reserved for KV Cache is) {_GIB}", float, min),
    ("max_length_tokens", r"Maximum concurrency for ([\d,]+) tokens per request", _integer, _first),
    ("full_length_streams", r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", float, _first),
    ("weights_gib", rf"(?:Model loading|Loading model weights) took {_GIB}", float, max),
    ("weights_s", r"Model loading took [\d.]+ GiB (?:memory )?and ([\d.]+) s", float, max),
    ("graphs_s", r"(?<!Encoder )Graph capturing finished in ([\d.]+) s", float, max),
    ("graphs_gib", rf"(?<!Encoder )Graph capturing finished in [\d.]+ secs?, took {_GIB}", float, max),
    ("compile_s", r"torch\.compile (?:takes|took) ([\d.]+) s", float, max),
    ("compile_cache_hit", r"Directly load (?:the compiled graph|AOT compilation)()", lambda text: True, _first),
    ("engine_s", r"init engine \([^)]*\) took ([\d.]+) s", float, _first),
    ("attention", r"Using ([\w-]+(?: Attention)?) (?:attention )?backend on V1 engine", _name, _added),
    ("attention", r"Using ([\w-]+) (?:attention )?backend out of potential backends", _name, _added),
    ("attention", r"Using (Triton) Attention backend\.", _name, _added),
    ("attention", r"Using (\S+) MLA prefill backend", _name, _added),
    ("attention", r"incompatible backend\(s\).*Overriding with (\S+)", _name, _added),
    ("attention", r"Using ([A-Z][A-Z0-9_]{3,}) backend(?:\.| \(selected)", _name, _added),
    ("moe", r"Using (['\w. -]{1,60}?) MoE backend", _name, _added),
    ("gemm", r"Using (\S+ for (?:MXFP4|NVFP4|MXFP8)) GEMM", _name, _added),
    ("emulated", r"\b(\w*Emulation\w*Experts)\b", _name, _added),
    ("emulated", r"(Using emulation mode[^.]{0,60})", _name, _added),
    ("slow", r"([^.\]]{0,100}Performance might be sub-optimal[^.]{0,40})", _name, _added),
    ("quantization", r"LLM engine .*\bquantization=(?!None)([\w-]+)", harmless, _first),
    ("kv_cache_dtype", r"LLM engine .*\bkv_cache_dtype=([\w-]+)", harmless, _first),
)
"""The field of `ServerStart`, its pattern, how it is read, and what is kept of an earlier value and a later one."""
_WORTH = re.compile(
    r"Using|Overriding|took|takes|KV |blocks:|Maximum concurrency|Graph capturing|Directly load|Emulation"
    r"|emulation|sub-optimal|LLM engine|version"
)
"""A word of every pattern; most lines have none, and are not searched for each."""


def read_line(start: ServerStart, line: str) -> ServerStart:
    """The figures of a start after one more line of its log."""
    text = line[:_MATCHED_CHARS]
    for field, pattern, read, kept in _FIGURES if _WORTH.search(text) is not None else ():
        match = re.search(pattern, text)
        if match is None:
            continue
        with contextlib.suppress(ValueError, OverflowError):  # such as 1.2.3
            now, before = read(match[1]), getattr(start, field)
            value = now if before in (None, ()) else kept(before, now)
            start = msgspec.structs.replace(start, **{field: value})
    return start


def cache_config(page: str) -> dict[str, str]:
    """The labels of `vllm:cache_config_info` on the text of `/metrics`, of the first engine; empty without it."""
    lines = [line for line in page.splitlines() if line.startswith("vllm:cache_config_info")]
    # Imported late: it loads web servers, and no page is read before the cockpit is shown.
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families("\n".join([*lines[:1], ""])):
            for sample in family.samples:
                return sample.labels
    except (ValueError, IndexError, KeyError):
        pass
    return {}


def with_cache_config(start: ServerStart, labels: Mapping[str, str]) -> ServerStart:
    """The figures with those of `vllm:cache_config_info`, whose labels are texts; the log's stay where it has them."""
    blocks, block_tokens = _label(labels, "num_gpu_blocks"), _label(labels, "block_size")
    said = _label(labels, "kv_cache_size_tokens")
    tokens = said if said is not None else blocks * block_tokens if blocks and block_tokens else None
    dtype = labels.get("cache_dtype")
    return msgspec.structs.replace(
        start,
        kv_cache_blocks=start.kv_cache_blocks if start.kv_cache_blocks is not None else blocks,
        kv_block_tokens=block_tokens,
        kv_cache_tokens=start.kv_cache_tokens if start.kv_cache_tokens is not None else tokens,
        kv_cache_dtype=start.kv_cache_dtype or (harmless(dtype)[:_MAX_NAME] if dtype else None),
    )


def _label(labels: Mapping[str, str], name: str) -> int | None:
    """The number in a label; None if it is absent, `None` or not a number."""
    text = labels.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None
