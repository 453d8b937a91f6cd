"""Recognises results of other load generators by their keys.

A file has one document, a list of them, or one a line; all are of one tool. A new tool is a row in `_TOOLS`, and a
module next to this one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from loadgen.schema.result import Result
from loadgen.store.foreign import aiperf, guidellm, inference_perf, inferencex, llm_d, sglang, vllm_bench

TOOLS = "vllm bench serve, SGLang, guidellm, aiperf, genai-perf, inference-perf, InferenceX or llm-d"


class _Tool(NamedTuple):
    name: str
    keys: frozenset[str]  # of which a document has all
    read: Callable[[Sequence[bytes], str], Result]
    config_keys: frozenset[str] = frozenset()  # at least one of them in `input_config`
    several: bool = False  # whether a file may have several loads as documents


def _one(read: Callable[[bytes, str], Result]) -> Callable[[Sequence[bytes], str], Result]:
    return lambda parts, name: read(parts[0], name)


_TOOLS = (
    _Tool("SGLang's bench_serving", sglang.KEYS, sglang.read, several=True),  # before vLLM, whose keys it has, too
    _Tool("vllm bench serve", vllm_bench.KEYS, vllm_bench.read, several=True),
    _Tool("guidellm", guidellm.KEYS, _one(guidellm.read)),
    _Tool("genai-perf", aiperf.KEYS, _one(aiperf.read_genai), config_keys=aiperf.GENAI_CONFIG_KEYS),
    _Tool("aiperf", aiperf.KEYS, _one(aiperf.read), config_keys=aiperf.CONFIG_KEYS),
    _Tool("inference-perf", inference_perf.KEYS, _one(inference_perf.read)),
    _Tool("InferenceX", inferencex.KEYS, inferencex.read, several=True),
    _Tool("llm-d", llm_d.KEYS, llm_d.read, several=True),
)


def read_foreign(document: bytes, name: str) -> Result | None:
    """The result in a file of another tool; None if it does not have the keys of any of them.

    Raises `ValueError` if it has them, but with invalid values.
    """
    if not document.strip():
        raise ValueError("the file is empty")
    if document.startswith(b"\x1f\x8b"):
        raise ValueError("it is compressed; unpack it with gunzip")
    encoding = json.detect_encoding(document)
    if encoding != "utf-8":  # with a byte order mark, or UTF-16 or UTF-32
        document = document.decode(encoding).encode()
    try:
        return _read(llm_d.as_json(document) or document, name)
    except msgspec.DecodeError as error:
        try:
            # Some tools write NaN, which is not valid JSON: null in its place.
            values = [json.loads(part, parse_constant=lambda _: None) for part in _parts(document)]
        except ValueError:
            raise error from None
        return _read(b"\n".join(json.dumps(value).encode() for value in values), name)


def _parts(document: bytes) -> Sequence[bytes]:
    """The document, or one per line as `vllm bench serve --append-result` writes them."""
    lines = [line for line in document.splitlines() if line.strip()]
    each_whole = len(lines) > 1 and all(line.startswith(b"{") and line.rstrip().endswith(b"}") for line in lines)
    return lines if each_whole else [document]


def records_of(document: bytes) -> Sequence[bytes]:
    """The documents in a file: of a list, which `vllm bench sweep serve` and InferenceX write, of lines, or the one."""
    parts = _parts(document)
    if len(parts) == 1 and document.lstrip().startswith(b"["):
        return [bytes(part) for part in msgspec.json.decode(document, type=list[msgspec.Raw])]
    return parts


def _read(document: bytes, name: str) -> Result | None:
    parts = records_of(document)
    found = [_tool_of(part) for part in parts]
    known = [tool for tool in found if tool is not None]
    if not known or len(known) < len(found):
        return None
    first = known[0]
    if any(tool is not first for tool in known):
        raise ValueError(f"results of several tools in one file: {', '.join(sorted({tool.name for tool in known}))}")
    if not first.several and len(parts) > 1:
        return None
    try:
        return first.read(parts, name)
    except ValueError as error:
        raise ValueError(f"as one of {first.name}: {error}") from error


def _tool_of(part: bytes) -> _Tool | None:
    table = _table(part)
    config = _table(table.get("input_config", b""))
    for tool in _TOOLS:
        if table.keys() >= tool.keys and (not tool.config_keys or config.keys() & tool.config_keys):
            return tool
    return None


def _table(document: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """A JSON object's values; empty for anything else."""
    if not bytes(document).lstrip().startswith(b"{"):
        return {}
    return msgspec.json.decode(document, type=dict[str, msgspec.Raw])
