"""llm-d's benchmark report 0.2 and 0.2.1, as JSON or YAML: one load a document.

The schema is `br_v0_2_json_schema.json` of llm-d-benchmark. A report is made from the file of another load generator,
which it names, and keeps that one's definitions. Every statistic has its unit and a mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from loadgen.schema.result import Result, StageResult, Target
from loadgen.store.foreign.load import Amount, Count, at, foreign_result, foreign_stage, gpus_of

KEYS: frozenset[str] = frozenset({"version", "run", "results"})
DEFINITIONS: Mapping[str, str] = dict.fromkeys(
    ("throughput", "ttft", "tpot", "itl", "e2e"), "as the load generator that the report names defines it"
)
_VERSIONS = ("0.2", "0.2.1")
_MAX_YAML_BYTES = 8 << 20
_MAX_GPUS = 10_000
_MS = {"ms": 1.0, "s": 1e3, "ms/token": 1.0, "s/token": 1e3}
_STATISTICS = {name: name for name in ("mean", "stddev", "min", "p50", "p90", "p95", "p99", "max")} | {"p999": "p99p9"}
_NAMES = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "itl": "inter_token_latency"}
_NAMES |= {"e2e": "request_latency"}


class _Statistics(msgspec.Struct, frozen=True):
    units: str
    mean: Amount
    stddev: Amount | None = None
    min: Amount | None = None
    p50: Amount | None = None
    p90: Amount | None = None
    p95: Amount | None = None
    p99: Amount | None = None
    p99p9: Amount | None = None
    max: Amount | None = None

    def statistics(self) -> dict[str, float]:
        """In milliseconds; raises `ValueError` for another unit."""
        if self.units not in _MS:
            raise ValueError(f"units of a latency: expected {', '.join(_MS)}, got {self.units:.40}")
        known = {ours: value for ours, theirs in _STATISTICS.items() if (value := getattr(self, theirs)) is not None}
        return {name: value * _MS[self.units] for name, value in known.items()}


class _Requests(msgspec.Struct, frozen=True):
    total: Count
    failures: Count | None = None
    incomplete: Count | None = None
    input_length: _Statistics | None = None
    output_length: _Statistics | None = None


class _Throughput(msgspec.Struct, frozen=True):
    request_rate: _Statistics | None = None
    output_token_rate: _Statistics | None = None
    total_token_rate: _Statistics | None = None


class _Aggregate(msgspec.Struct, frozen=True):
    requests: _Requests | None = None
    latency: dict[str, _Statistics | None] = {}
    throughput: _Throughput = _Throughput()


class _Load(msgspec.Struct, frozen=True):
    tool: str = "an unknown tool"
    tool_version: str = ""
    rate_qps: Amount | None = None
    concurrency: Amount | None = None


class _Accelerator(msgspec.Struct, frozen=True):
    model: str
    count: Count  # of all replicas


class _Component(msgspec.Struct, frozen=True):
    tool: str | None = None
    tool_version: str | None = None
    model: dict[str, Any] | None = None
    accelerator: _Accelerator | None = None


def read(documents: Sequence[bytes], name: str) -> Result:
    """Read reports, each as one load; raises `ValueError` for invalid values and other versions."""
    for document in documents:
        version = at(document, "version", Annotated[str, msgspec.Meta(max_length=20)])
        if version not in _VERSIONS:
            raise ValueError(f"benchmark report {version}: expected version {' or '.join(_VERSIONS)}")
    load = _load_of(documents[0])
    parts = at(documents[0], "scenario.stack", list[msgspec.Raw]) or []
    stack = [(at(part, "standardized", _Component), at(part, "native.args", dict[str, Any])) for part in parts]
    engines = [(part, args) for part, args in stack if part is not None and part.model is not None]
    result = foreign_result(
        name,
        [_stage(document) for document in documents],
        tool=f"llm-d benchmark, {load.tool} {load.tool_version}".rstrip(),
        model=next(filter(None, (at(part, "standardized.model.name", str) for part in parts)), "unknown model"),
        endpoint=None,
        definitions=DEFINITIONS,
    )
    environment = result.environment
    if engines:
        environment = environment | _engine(*engines[0])
    accelerators = [part.accelerator for part, _ in engines if part.accelerator is not None]
    if sum(each.count for each in accelerators) > _MAX_GPUS:
        raise ValueError(f"scenario.stack: more than {_MAX_GPUS:,} accelerators")
    gpus = [gpu for each in accelerators for gpu in gpus_of(each.model, each.count)]
    gpus = [replace(gpu, index=index) for index, gpu in enumerate(gpus)]
    return replace(result, environment=environment, gpus=gpus)


def _engine(engine: _Component, args: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is known of an engine, by the keys of a result; its command is only its flags."""
    flags: list[str] = []
    for name, value in (args or {}).items():
        flags += [f"--{name.lstrip('-')}", *([] if value in ("", True) else [str(value)])]
    known = {"engine": engine.tool, "vllm_version": engine.tool_version, "server_command": flags}
    return {key: value for key, value in known.items() if value and value != "unknown"}


def as_json(document: bytes) -> bytes | None:
    """A report in YAML as JSON; None if it is neither YAML nor a table. Raises `ValueError` if it is too much."""
    if not document.lstrip().startswith((b"version:", b"run:", b"results:", b"scenario:", b"#", b"---")):
        return None
    if len(document) > _MAX_YAML_BYTES:
        raise ValueError(f"YAML of more than {_MAX_YAML_BYTES >> 20} MiB")
    import yaml  # here, because every run would load it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is eight times as fast
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(document, Loader=loader)):
            raise ValueError("YAML with aliases, which may stand for more than any memory holds")
        found = yaml.load(document, Loader=loader)  # noqa: S506 - it is the safe one
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())[:200]}") from None
    return json.dumps(found, default=str).encode() if isinstance(found, dict) else None


def _load_of(document: bytes) -> _Load:
    return at(document, "scenario.load.standardized", _Load) or _Load()


def _stage(document: bytes) -> StageResult:
    found = at(document, "results.request_performance.aggregate", _Aggregate)
    if found is None or found.requests is None:
        raise ValueError("no results.request_performance.aggregate.requests: there is nothing that vramp reads")
    requests, load, rates = found.requests, _load_of(document), found.throughput
    failed, unfinished = requests.failures or 0, requests.incomplete or 0
    completed = max(0, requests.total - failed - unfinished)
    rate = _mean(rates.request_rate)
    began = at(document, "run.time.start", datetime)
    began_s = began.replace(tzinfo=began.tzinfo or UTC).timestamp() if began is not None else 0.0
    if load.rate_qps is not None:  # with both, concurrency is an upper bound
        target = Target(None, load.rate_qps, None)
    elif load.concurrency is not None:
        target = Target(round(load.concurrency), None, None)
    else:
        target = Target(None, None, "unknown load")
    stage = foreign_stage(
        target,
        start_unix_s=max(0.0, began_s),
        duration_s=completed / rate if rate else 0.0,  # times in the file may include the preparation
        completed=completed,
        failed=failed,
        unfinished=unfinished,
        input_tokens=_tokens(requests.input_length, completed),
        output_tokens=_tokens(requests.output_length, completed),
        requests_per_s=rate,
        output_tokens_per_s=_mean(rates.output_token_rate),
        total_tokens_per_s=_mean(rates.total_token_rate),
        latency_ms={
            ours: latency.statistics()
            for ours, theirs in _NAMES.items()
            if (latency := found.latency.get(theirs)) is not None
        },
    )
    lengths = {
        key: at(document, f"scenario.load.standardized.{name}.value", Amount)
        for key, name in {"isl": "input_seq_len", "osl": "output_seq_len"}.items()
    }
    return replace(stage, **{key: round(length) for key, length in lengths.items() if length is not None})


def _mean(found: _Statistics | None) -> float | None:
    return found.mean if found is not None else None


def _tokens(found: _Statistics | None, completed: int) -> int:
    return round((_mean(found) or 0.0) * completed)
