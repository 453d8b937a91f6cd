"""Rows of InferenceX: those of a run's `agg_*.json` (`utils/process_result.py`), and those of its public API.

A row is one load of one configuration: throughput per GPU, latencies in seconds, which the API has below `metrics`. It
says neither when nor how long was measured, nor of how many requests: see the definitions. Rows of one file that differ
in model, hardware or software are refused, because they are several runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec.structs import replace

from loadgen.schema.deltas import Summary
from loadgen.schema.result import Result, StageResult, Target
from loadgen.schema.samples import GpuStatic
from loadgen.store.foreign.definitions import DEFINITIONS
from loadgen.store.foreign.load import Amount, Count, foreign_result, foreign_stage, gpus_of, reported_ms, summary_of

KEYS: frozenset[str] = frozenset({"framework", "precision", "isl", "osl", "conc"})
REQUESTS_PER_STREAM = 10  # what the project's scripts send
_NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
_STATISTICS = {
    "mean": "mean",
    "stddev": "std",
    "p50": "median",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "p999": "p99.9",
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
    _require_one_configuration(figures)
    first = found[0]
    result = foreign_result(
        name,
        [_stage(row, each | row.metrics) for row, each in zip(found, figures, strict=True)],
        tool="InferenceX",
        model=first.model,
        endpoint=None,
        definitions=DEFINITIONS["InferenceX"],
    )
    software = {"engine": first.framework} | ({"image": first.image} if first.image else {})
    return replace(result, gpus=_gpus(first), environment=result.environment | software)


def _gpus(row: _Row) -> list[GpuStatic]:
    """The GPUs of a row, whose hardware is a runner's name, such as `mi300x-amd_0`; empty if it names none."""
    hardware = (row.hw or row.hardware or "").partition("-")[0].upper()
    return gpus_of(hardware, row.gpus or 1) if hardware else []


def _require_one_configuration(rows: Sequence[dict[str, msgspec.Raw]]) -> None:
    for key in _SAME:
        values = {bytes(row[key]).decode() for row in rows if key in row}
        if len(values) > 1:
            raise ValueError(f"rows of several configurations: {key} is {', '.join(sorted(values))[:200]}; keep one")


def _stage(row: _Row, figures: dict[str, msgspec.Raw]) -> StageResult:
    requests, gpus = REQUESTS_PER_STREAM * row.conc, row.gpus
    if row.isl is None or row.osl is None:
        raise ValueError("a row without isl and osl: replays of traces are not read")
    output, total = (_number(figures, key) for key in ("output_tput_per_gpu", "tput_per_gpu"))
    stage = foreign_stage(
        Target(row.conc, None, None),
        start_unix_s=0.0,
        duration_s=0.0,
        completed=requests,
        failed=0,
        input_tokens=row.isl * requests,
        output_tokens=row.osl * requests,
        requests_per_s=None,
        output_tokens_per_s=output * gpus if output is not None and gpus else None,
        total_tokens_per_s=total * gpus if total is not None and gpus else None,
        latency_ms=_latencies(figures, requests),
    )
    per_gpu = {"output_tokens_per_s_per_gpu": output, "total_tokens_per_s_per_gpu": total}
    return replace(stage, throughput=replace(stage.throughput, **per_gpu))


def _number(figures: dict[str, msgspec.Raw], key: str) -> float | None:
    return msgspec.json.decode(figures[key], type=Amount | None) if key in figures else None


def _latencies(figures: dict[str, msgspec.Raw], count: int) -> dict[str, Summary]:
    found = {}
    for name, theirs in _NAMES.items():
        if known := reported_ms(figures, _STATISTICS, f"{{}}_{theirs}", 1000.0):
            found[name] = summary_of(count, known)
    return found
