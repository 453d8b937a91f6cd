"""Rows of InferenceX: those of a run's `agg_*.json` (`utils/process_result.py`), and those of its public API.

A row is one load of one configuration: throughput per GPU, latencies in seconds, which the API has below `metrics`. It
says neither when nor how long was measured, nor of how many requests: see the definitions. Rows of one file that differ
in model, hardware or software are refused, because they are several runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec.structs import replace

from loadgen.schema.result import Result, StageResult, Target
from loadgen.store.foreign.load import Amount, Count, foreign_result, foreign_stage, gpus_of, reported_ms

KEYS: frozenset[str] = frozenset({"framework", "precision", "isl", "osl", "conc"})
REQUESTS_PER_STREAM = 10  # what the project's scripts send
DEFINITIONS: Mapping[str, str] = {
    "throughput": "tokens of the whole time, including ramp-in and tail, measured per GPU and multiplied by the "
    "row's GPUs; a row does not say how many requests were sent or for how long: ten a stream are assumed, and "
    "ISL and OSL are the most that a request had: each is drawn from a range up to them",
    "ttft": "as `vllm bench serve`, whose client it uses",
    "tpot": "as `vllm bench serve`",
    "itl": "as `vllm bench serve`",
    "e2e": "as `vllm bench serve`",
}
_SAME = ("hw", "hardware", "model", "framework", "precision", "spec_decoding", "spec_method", "image", "tp", "ep")


_Few = Annotated[int, msgspec.Meta(ge=0, le=64)]


class _Row(msgspec.Struct, frozen=True):
    """The keys that are read; the figures are next to them, or in `metrics`."""

    conc: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    isl: Count | None
    osl: Count | None
    framework: str
    precision: str
    model: str = "unknown model"
    hw: str | None = None
    hardware: str | None = None
    tp: _Few | None = None
    pp: _Few = 1
    pcp_size: _Few = 1
    num_prefill_gpu: _Few | None = None
    num_decode_gpu: _Few | None = None
    image: str | None = None
    metrics: dict[str, msgspec.Raw] = {}

    @property
    def gpus(self) -> int | None:
        """The GPUs by which its throughput was divided."""
        if self.num_prefill_gpu is not None or self.num_decode_gpu is not None:
            return (self.num_prefill_gpu or 0) + (self.num_decode_gpu or 0)
        return self.tp * self.pp * self.pcp_size if self.tp else None


def read(rows: Sequence[bytes], name: str) -> Result:
    """Read rows of one configuration, each as one load; raises `ValueError` for others and for invalid values."""
    found = [msgspec.json.decode(row, type=_Row) for row in rows]
    figures = [msgspec.json.decode(row, type=dict[str, msgspec.Raw]) for row in rows]
    for key in _SAME:
        values = {bytes(row[key]).decode() for row in figures if key in row}
        if len(values) > 1:
            raise ValueError(f"rows of several configurations: {key} is {', '.join(sorted(values))[:200]}; keep one")
    first = found[0]
    result = foreign_result(
        name,
        [_stage(row, each | row.metrics) for row, each in zip(found, figures, strict=True)],
        tool="InferenceX",
        model=first.model,
        endpoint=None,
        definitions=DEFINITIONS,
    )
    software = {"engine": first.framework} | ({"image": first.image} if first.image else {})
    hardware = (first.hw or first.hardware or "").partition("-")[0].upper()  # of a runner's name, such as mi300x-amd_0
    gpus = gpus_of(hardware, first.gpus or 1) if hardware else []
    return replace(result, gpus=gpus, environment=result.environment | software)


def _stage(row: _Row, figures: dict[str, msgspec.Raw]) -> StageResult:
    requests, gpus = REQUESTS_PER_STREAM * row.conc, row.gpus
    if row.isl is None or row.osl is None:
        raise ValueError("a row without isl and osl: replays of traces are not read")
    output, total = (
        msgspec.json.decode(figures.get(key, b"null"), type=Amount | None)
        for key in ("output_tput_per_gpu", "tput_per_gpu")
    )
    stage = foreign_stage(
        Target(row.conc, None, None),
        duration_s=0.0,
        completed=requests,
        input_tokens=row.isl * requests,
        output_tokens=row.osl * requests,
        requests_per_s=None,
        output_tokens_per_s=output * gpus if output is not None and gpus else None,
        total_tokens_per_s=total * gpus if total is not None and gpus else None,
        latency_ms=reported_ms(figures, key="{}_{}", unit_ms=1000.0),
    )
    per_gpu = {"output_tokens_per_s_per_gpu": output, "total_tokens_per_s_per_gpu": total}
    return replace(stage, throughput=replace(stage.throughput, **per_gpu))
