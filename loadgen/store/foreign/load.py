"""A load as another load generator measured it, and the result that vramp makes of it.

The readers beside this module take a file's values and compute nothing but sums. A figure that a tool defines
differently keeps its value and gets the tool's definition, which every table shows beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

import loadgen
from loadgen.format import target
from loadgen.schema.deltas import LATENCIES, Summary
from loadgen.schema.journal import RunState
from loadgen.schema.result import (
    ClientResult,
    Concurrency,
    Requests,
    Result,
    StageResult,
    Target,
    Throughput,
    Tokens,
)

_MIN_HELD = 1e-6  # fewer streams count as none
_MIN_S = 1e-6  # a shorter load counts as none
_LAST_UNIX_S = 2.5e11  # the year 9892


class Requested(msgspec.Struct, frozen=True):
    """The load that a tool was asked for; if neither concurrency nor rate, `arrival` describes it."""

    concurrency: int | None = None
    rate: float | None = None
    arrival: str | None = None

    @property
    def words(self) -> str:
        return target(self.concurrency, self.rate) if self.concurrency or self.rate else self.arrival or "unknown load"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One load and what was measured; `latency_ms` uses vramp's names for the nearest equivalents."""

    requested: Requested
    start_unix_s: float
    duration_s: float
    completed: int
    failed: int
    unfinished: int = 0
    input_tokens: int  # of completed requests, like `output_tokens`
    output_tokens: int
    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    held_mean: float | None = None
    peak: int = 0
    latency_ms: dict[str, Summary]


class ForeignRun(msgspec.Struct, frozen=True, kw_only=True):
    """A file of another tool."""

    tool: str  # with its version, if the file has it
    model: str
    endpoint: str | None  # in the profile's terms
    loads: Sequence[Load]
    definitions: Mapping[str, str]  # as in `Result`
    state: RunState = "complete"
    reason: str = ""


def as_result(run: ForeignRun, run_id: str) -> Result:
    """The equivalent result; its client, server, GPUs and engine are unknown.

    Raises `ValueError` for an impossible time.
    """
    began_s = min(load.start_unix_s for load in run.loads)
    ended_s = max(load.start_unix_s + load.duration_s for load in run.loads)
    if not 0 <= began_s <= ended_s < _LAST_UNIX_S:
        raise ValueError("an impossible time")
    nothing = Summary(count=0)
    return Result(
        vramp_version=loadgen.__version__,
        run_id=run_id,
        started_at=_iso(began_s),
        finished_at=_iso(ended_s),
        state=run.state,
        reason=run.reason,
        profile={"name": run.tool, "load": {"endpoint": run.endpoint} if run.endpoint is not None else {}},
        environment={"model": run.model, "engine": "attach"},
        client=ClientResult(
            timestamps=None,
            workers=0,
            cpu_s=0.0,
            read_lag_ms=nothing,
            send_lag_ms=nothing,
            coalesced_reads=None,
            unstamped_reads=0,
            connects=0,
            limited=False,
            why=None,
        ),
        stages=[_stage(index, load) for index, load in enumerate(run.loads)],
        series={},
        events=[],
        measured_by=run.tool,
        definitions=dict(run.definitions),
    )


def _stage(index: int, load: Load) -> StageResult:
    requested, completed = load.requested, load.completed
    input_mean, output_mean = (
        tokens / completed if completed else None for tokens in (load.input_tokens, load.output_tokens)
    )
    return StageResult(
        index=index,
        label=requested.words,
        target=Target(requested.concurrency, requested.rate, requested.arrival),
        # The file does not have the requested lengths: these are the measured means.
        isl=round(input_mean or 0),
        osl=round(output_mean or 0),
        started_at=_iso(load.start_unix_s),
        duration_s=load.duration_s,
        measured_s=load.duration_s,
        stop_reason="all requests",
        requests=_requests(load),
        concurrency=Concurrency(_held(load), load.peak),
        tokens=Tokens(load.input_tokens, load.output_tokens, "usage", input_mean, output_mean),
        throughput=_throughput(load),
        latency_ms={name: load.latency_ms.get(name, Summary(count=0)) for name in LATENCIES},
        slo={},
        engine=None,
        limited=False,
        why=None,
    )


def _requests(load: Load) -> Requests:
    sent = load.completed + load.failed + load.unfinished
    return Requests(
        sent=sent,
        completed=load.completed,
        failed=load.failed,
        unfinished=load.unfinished,
        warmup=0,
        retried=0,
        clock_steps=0,
        errors={"other": load.failed} if load.failed else {},
        messages={},
        scheduled=sent,
        unsent=0,
    )


def _throughput(load: Load) -> Throughput:
    output, total, held = load.output_tokens_per_s, load.total_tokens_per_s, _held(load)
    return Throughput(
        requests_per_s=load.requests_per_s,
        input_tokens_per_s=total - output if total is not None and output is not None else None,
        output_tokens_per_s=output,
        total_tokens_per_s=total,
        output_tokens_per_s_per_user=output / held
        if output is not None and held is not None and held > _MIN_HELD
        else None,
    )


def _held(load: Load) -> float | None:
    """The mean number of open requests; by Little's law if the tool does not report it."""
    e2e_ms = load.latency_ms.get("e2e", Summary(count=0)).mean
    if load.held_mean is not None or e2e_ms is None or load.duration_s < _MIN_S:
        return load.held_mean
    return load.completed * e2e_ms / 1000 / load.duration_s


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
