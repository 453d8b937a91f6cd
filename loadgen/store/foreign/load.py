"""The result that vramp makes of what another load generator measured.

The readers next to this module take a file's values and compute nothing but sums. A figure that a tool defines
differently keeps its value and gets the tool's definition, which every table shows next to it: `DEFINITIONS` there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

import loadgen
from loadgen.format import target as target_words
from loadgen.schema.deltas import LATENCIES, Summary
from loadgen.schema.result import ClientResult, Concurrency, Requests, Result, StageResult, Target, Throughput, Tokens
from loadgen.schema.samples import GpuStatic
from loadgen.schema.shared import RunState
from loadgen.vendors import VendorName

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
Count = Annotated[int, msgspec.Meta(ge=0, le=10**18)]
_MIN_HELD = 1e-6  # fewer streams count as none
_MIN_S = 1e-6  # a shorter load counts as none
_LAST_UNIX_S = 2.5e11  # the year 9892
_STATISTICS = {"mean": "mean", "stddev": "std", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_STATISTICS |= {"p999": "p99.9", "max": "max"}

# Definitions that several tools have in common.
OVER_ALL_TIME = "of all requests over the whole time, including ramp-in and tail"
TPOT = "(E2E - TTFT) / (output tokens - 1) of each request, from the same times"


def foreign_result(
    name: str,
    stages: Sequence[StageResult],
    *,
    tool: str,
    model: str,
    endpoint: str | None,
    definitions: Mapping[str, str],
    state: RunState = "complete",
    reason: str = "",
) -> Result:
    """The result of a file; `tool` has its version, if known, and `endpoint` is in the profile's terms.

    Its client, server, GPUs and engine are unknown.
    """
    began_s = [datetime.fromisoformat(stage.started_at).timestamp() for stage in stages]
    ended_s = [began + stage.duration_s for began, stage in zip(began_s, stages, strict=True)]
    nothing = Summary(count=0)
    return Result(
        vramp_version=loadgen.__version__,
        run_id=name,
        started_at=_iso(min(began_s)),
        finished_at=_iso(max(ended_s)),
        state=state,
        reason=reason,
        profile={"name": tool, "load": {"endpoint": endpoint} if endpoint is not None else {}},
        environment={"model": model, "engine": "attach"},
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
        stages=[replace(stage, index=index) for index, stage in enumerate(stages)],
        series={},
        events=[],
        measured_by=tool,
        definitions=dict(definitions),
    )


def foreign_stage(
    target: Target,
    *,
    start_unix_s: float = 0.0,
    duration_s: float,
    completed: int,
    failed: int = 0,
    unfinished: int = 0,
    input_tokens: int,
    output_tokens: int,
    requests_per_s: float | None,
    output_tokens_per_s: float | None,
    total_tokens_per_s: float | None,
    held_mean: float | None = None,
    peak: int = 0,
    latency_ms: Mapping[str, Mapping[str, float]],
) -> StageResult:
    """One load and what was measured: tokens of completed requests, and latencies by vramp's nearest names.

    The statistics of a latency have their `count` if it is not one per request, or one gap per token after the first.
    If the tool was asked for neither concurrency nor rate, the target's `arrival` describes the load. Raises
    `ValueError` for an impossible time.
    """
    if not 0 <= start_unix_s <= start_unix_s + duration_s < _LAST_UNIX_S:
        raise ValueError("an impossible time")
    summaries = dict.fromkeys(LATENCIES, Summary(count=0))
    for name, statistics in latency_ms.items():
        known = {"count": max(0, output_tokens - completed) if name == "itl" else completed, **statistics}
        if known["count"]:
            summaries[name] = msgspec.convert(known, Summary)
    e2e_ms = summaries["e2e"].mean
    if held_mean is None and e2e_ms is not None and duration_s >= _MIN_S:
        held_mean = completed * e2e_ms / 1000 / duration_s  # Little's law
    input_mean, output_mean = (tokens / completed if completed else None for tokens in (input_tokens, output_tokens))
    known_load = target_words(target.concurrency, target.rate) if target.concurrency or target.rate else None
    output, total = output_tokens_per_s, total_tokens_per_s
    sent = completed + failed + unfinished
    return StageResult(
        index=0,
        label=known_load or target.arrival or "unknown load",
        target=target,
        # The file does not have the requested lengths: these are the measured means.
        isl=round(input_mean or 0),
        osl=round(output_mean or 0),
        started_at=_iso(start_unix_s),
        duration_s=duration_s,
        measured_s=duration_s,
        stop_reason="all requests",
        requests=Requests(
            sent=sent,
            completed=completed,
            failed=failed,
            unfinished=unfinished,
            warmup=0,
            retried=0,
            clock_steps=0,
            errors={"other": failed} if failed else {},
            messages={},
            scheduled=sent,
            unsent=0,
        ),
        concurrency=Concurrency(held_mean, peak),
        tokens=Tokens(input_tokens, output_tokens, "usage", input_mean, output_mean),
        throughput=Throughput(
            requests_per_s=requests_per_s,
            input_tokens_per_s=total - output if total is not None and output is not None else None,
            output_tokens_per_s=output,
            total_tokens_per_s=total,
            output_tokens_per_s_per_user=output / held_mean
            if output is not None and held_mean is not None and held_mean > _MIN_HELD
            else None,
        ),
        latency_ms=summaries,
        slo={},
        engine=None,
        limited=False,
        why=None,
    )


def at(document: bytes | msgspec.Raw, path: str, kind: Any) -> Any:  # noqa: ANN401 - of that kind
    """What a document has at a path such as `config.backend.model`; None if nothing is there.

    Raises `msgspec.ValidationError` if it is of another kind.
    """
    try:
        for key in path.split("."):
            table = msgspec.json.decode(document, type=dict[str, msgspec.Raw] | None)
            document = (table or {}).get(key, b"null")
        return msgspec.json.decode(document, type=kind | None)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        raise msgspec.ValidationError(f"{what} - at `$.{path}{place or '`'}") from None


def gpus_of(name: str, count: int) -> list[GpuStatic]:
    """The GPUs that a file names; the vendor is concluded from the name."""
    vendor: VendorName = "amd" if re.search(r"\b(AMD|Instinct|MI)", name, re.IGNORECASE) else "nvidia"
    return [GpuStatic(index=index, vendor=vendor, name=name) for index in range(count)]


def reported_ms(
    figures: Mapping[str, msgspec.Raw], *, key: str = "{}_{}_ms", e2e: str = "e2el", unit_ms: float = 1.0
) -> dict[str, dict[str, float]]:
    """The latencies in a file in which the names of vLLM's statistics and latencies make the keys; `e2e` is its E2E."""
    found: dict[str, dict[str, float]] = {}
    for latency in ("ttft", "tpot", "itl", "e2e"):
        for ours, theirs in _STATISTICS.items():
            name = key.format(theirs, e2e if latency == "e2e" else latency)
            try:
                value = msgspec.json.decode(figures.get(name, b"null"), type=Amount | None)
            except msgspec.ValidationError as error:
                raise ValueError(f"{name}: {error}") from None
            if value is not None:
                found.setdefault(latency, {})[ours] = value * unit_ms
    return found


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
