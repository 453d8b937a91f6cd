"""Recognises results of other load generators by their keys."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from loadgen.schema.result import Result
from loadgen.store.foreign import aiperf, genai_perf, guidellm, vllm_bench

TOOLS = "vllm bench serve, guidellm, aiperf or genai-perf"


def read_foreign(document: bytes, name: str) -> Result | None:
    """The result in a file of another tool; None if it does not have the keys of any of them.

    Raises `ValueError` if it has them, but with invalid values.
    """
    try:
        return _read(document, name)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Some tools write NaN, which is not valid JSON.
        return _read(_without_nan(document), name)


def _without_nan(document: bytes) -> bytes:
    """The document with null for NaN and infinity; raises `ValueError`, or `RecursionError` if nested too deeply."""
    values = [json.loads(part, parse_constant=lambda _: None) for part in _parts(document)]
    return b"\n".join(json.dumps(value).encode() for value in values)


def _parts(document: bytes) -> Sequence[bytes]:
    """The document, or one per line as `vllm bench serve --append-result` writes them."""
    lines = [line for line in document.splitlines() if line.strip()]
    each_whole = len(lines) > 1 and all(line.startswith(b"{") and line.rstrip().endswith(b"}") for line in lines)
    return lines if each_whole else [document]


def _read(document: bytes, name: str) -> Result | None:
    parts = _parts(document)
    if len(parts) == 1 and document.lstrip().startswith(b"["):
        # The summary.json of `vllm bench sweep serve`.
        parts = [bytes(part) for part in msgspec.json.decode(document, type=list[msgspec.Raw])]
    keys = [_keys(part) for part in parts]
    if keys and all(found >= vllm_bench.KEYS for found in keys):
        return vllm_bench.read(parts, name)
    if len(keys) != 1:
        return None
    if keys[0] >= guidellm.KEYS:
        return guidellm.read(document, name)
    if not keys[0] >= aiperf.KEYS:
        return None
    # genai-perf and its successor have the same metrics, and differ in what they say of the load.
    config = _keys(msgspec.json.decode(document, type=dict[str, msgspec.Raw])["input_config"])
    if config & genai_perf.CONFIG_KEYS:
        return genai_perf.read(document, name)
    return aiperf.read(document, name) if config & aiperf.CONFIG_KEYS else None


def _keys(document: bytes | msgspec.Raw) -> set[str]:
    """The keys of a JSON object; empty for anything else."""
    if not bytes(document).lstrip().startswith(b"{"):
        return set()
    return set(msgspec.json.decode(document, type=dict[str, msgspec.Raw]))
