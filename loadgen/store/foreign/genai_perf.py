"""genai-perf's `*_genai_perf.json`: one load, with an object per metric, as in aiperf's file, which followed it.

`input_config` holds the program's arguments (`genai_perf/export_data/json_exporter.py`): flat, and since configuration
files exist with those of perf_analyzer in an object of their own. A request that was not streamed has its whole time as
TTFT there, which is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from loadgen.schema.result import Result, Target
from loadgen.store.foreign.aiperf import Document, stage_of
from loadgen.store.foreign.load import Amount, Count, at, foreign_result

CONFIG_KEYS: frozenset[str] = frozenset(
    {"formatted_model_name", "perf_analyzer"}
)  # of which its configuration has at least one
DEFINITIONS: Mapping[str, str] = {
    "throughput": "from the first request to the last response of perf_analyzer's measurement; output tokens are "
    "counted by the client's tokenizer",
    "ttft": "from perf_analyzer's request to its first response, including the client's own waits",
    "tpot": "genai-perf's inter-token latency, (E2E - TTFT) / (output tokens - 1)",
    "e2e": "to perf_analyzer's last response",
}
_ENDPOINTS = ("chat", "completions", "responses")


class _Stimulus(msgspec.Struct, frozen=True):
    concurrency: Count | None = None
    request_rate: Amount | None = None


class _Endpoint(msgspec.Struct, frozen=True):
    type: str | None = None
    streaming: bool | None = None


class _Config(msgspec.Struct, frozen=True):
    model: list[str] | str | None = None
    model_names: list[str] | None = None
    formatted_model_name: str | None = None
    endpoint_type: str | None = None
    endpoint: _Endpoint | str | None = None
    streaming: bool | None = None
    concurrency: Count | None = None
    request_rate: Amount | None = None


def read(document: bytes, name: str) -> Result:
    """Read genai-perf's file; raises `msgspec.ValidationError` for invalid values."""
    found = msgspec.json.decode(document, type=Document)
    config = msgspec.json.decode(found.input_config, type=_Config)
    endpoint = config.endpoint if isinstance(config.endpoint, _Endpoint) else _Endpoint(config.endpoint_type)
    models = config.model_names or ([config.model] if isinstance(config.model, str) else config.model)
    if False in (config.streaming, endpoint.streaming):
        found = replace(found, time_to_first_token=None, inter_token_latency=None)
    stimulus = at(found.input_config, "perf_analyzer.stimulus", _Stimulus) or _Stimulus()
    rate = config.request_rate or stimulus.request_rate
    held = config.concurrency or stimulus.concurrency or 1
    target = Target(None, rate, "constant") if rate else Target(held, None, None)
    return foreign_result(
        name,
        [stage_of(replace(found, inter_chunk_latency=None), target)],
        tool="genai-perf",
        model=", ".join(models or []) or config.formatted_model_name or "unknown model",
        endpoint=endpoint.type if endpoint.type in _ENDPOINTS else None,
        definitions=DEFINITIONS,
    )
