"""Stages without load as tables: the engine's figures for what others sent, as there are no client figures.

The engine's percentiles are known only as intervals, bounded by its buckets, and are shown as such in every format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from loadgen.format import counted, interval, memory, number, percent, plain
from loadgen.report.notes import LATENCY_TITLES, Note
from loadgen.report.tabular import Column, Value, figure
from loadgen.schema.engine import EngineLatencyMs, EngineStage
from loadgen.schema.result import StageResult

NO_LOAD_NOTE = (
    "No load was sent in these stages: the figures are the engine's own, of what others sent and of streams that were "
    "still open from the stage before."
)
LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue", "prefill", "decode")
IN_SECONDS = frozenset({"e2e", "decode"})
PERCENTILES = ("p50", "p90", "p99")


def watched(stages: Sequence[StageResult]) -> list[StageResult]:
    """The stages in which nothing was sent."""
    return [stage for stage in stages if stage.target.concurrency == 0]


def latency_title(name: str) -> str:
    return LATENCY_TITLES.get(name, name)


def latency_unit(name: str) -> str:
    return "s" if name in IN_SECONDS else "ms"


def within(latency: EngineLatencyMs | None, name: str, percentile: str) -> str | None:
    """The bounds of a percentile, in the unit of its latency; None if unknown."""
    bounds = latency.within.get(percentile) if latency is not None else None
    if bounds is None:
        return None
    per = 1000.0 if name in IN_SECONDS else 1.0
    low, high = bounds
    return interval((low / per, None if high is None else high / per))


def mean(latency: EngineLatencyMs | None, name: str) -> float | None:
    if latency is None or not latency.count:
        return None
    return latency.mean / 1000 if name in IN_SECONDS else latency.mean


def _within(name: str, percentile: str, stage: StageResult) -> Value:
    return within(stage.engine.latency_ms.get(name) if stage.engine is not None else None, name, percentile)


def _percentile(name: str, percentile: str, width: int) -> Column[StageResult]:
    title, first = latency_title(name), percentile == "p50"
    return Column(
        f"{title} {percentile}, {latency_unit(name)}",
        partial(_within, name, percentile),
        short=f"{title} {percentile}" if first else percentile,
        group=f"{title}, {latency_unit(name)}",
        under=percentile,
        width=width,
        role=percentile,
    )


SERVED: tuple[Column[StageResult], ...] = (
    Column("running", figure("others", "running"), short="run", decimals=1, width=6, role="running"),
    Column("req/s", figure("engine", "requests_per_s"), width=6),
    Column(
        "tok/s in", figure("engine", "prompt_tokens_per_s"), short="in", group="tok/s", under="in", decimals=0, width=6
    ),
    Column(
        "tok/s out",
        figure("engine", "generation_tokens_per_s"),
        short="out",
        group="tok/s",
        under="out",
        decimals=0,
        width=6,
        role="throughput",
    ),
    _percentile("ttft", "p50", 10),
    _percentile("ttft", "p99", 10),
    _percentile("tpot", "p50", 9),
    _percentile("tpot", "p99", 8),
)
"""Others' load, a row per stage; during a load of ours, the engine's figures for everything it served."""


MORE: tuple[Column[StageResult], ...] = (
    _percentile("e2e", "p50", 0),
    _percentile("e2e", "p99", 0),
    Column("requests", figure("engine", "requests"), decimals=0),
    Column("errors", lambda stage: sum(stage.engine.errors.values()) or None if stage.engine else None, alarm=True),
)


def latencies_of(engine: EngineStage | None) -> list[tuple[str, EngineLatencyMs]]:
    found = engine.latency_ms if engine is not None else {}
    return [(name, found[name]) for name in LATENCIES if name in found]


LATENCY: tuple[Column[tuple[str, EngineLatencyMs]], ...] = (
    Column("", lambda row: f"{latency_title(row[0])} ({latency_unit(row[0])})", words=True, width=16),
    Column("count", lambda row: row[1].count, width=10),
    Column("mean", lambda row: mean(row[1], row[0]), width=12),
    *(
        Column(percentile, lambda row, name=percentile: within(row[1], row[0], name), width=14)  # type: ignore[misc]
        for percentile in PERCENTILES
    ),
)


def watched_notes(stages: Sequence[StageResult]) -> dict[int, list[Note]]:
    """Further notes on each stage without load, by index; what the engine lacks, once."""
    found: dict[int, list[Note]] = {}
    reported: dict[str, str] = {}
    for stage in watched(stages):
        engine = stage.engine or EngineStage()
        others = [Note("Of others", stage.others.words or "none seen")] if stage.others is not None else []
        unavailable = engine.unavailable if engine.unavailable != reported else {}
        reported = engine.unavailable
        found[stage.index] = [*others, *served_notes(msgspec.structs.replace(engine, unavailable=unavailable))]
    return found


def served_notes(engine: EngineStage) -> Iterator[Note]:
    """Further figures of the engine over a span, as far as known."""
    found = {
        "Finished": _counts(engine.finished),
        "Errors by status": _counts(engine.errors),
        "Preemptions": str(engine.preemptions) if engine.preemptions else "",
        "Prefix cache hits": _share(engine.prefix_hit_rate),
        "External prefix hits": _share(engine.external_prefix_hit_rate),
        "Prompt tokens from": _counts(engine.prompt_tokens_by_source),
        "KV cache offload": ", ".join(
            f"{name} {memory(size)}" for name, size in engine.kv_offload_bytes.items() if size
        ),
        "Speculative decoding": _spec(engine),
        "Restarts": counted(engine.restarts, "restart") if engine.restarts else "",
        "Not reported": "; ".join(f"{name}: {why}" for name, why in engine.unavailable.items()),
        "Not believed": "; ".join(f"{name}: {why}" for name, why in engine.doubts.items()),
    }
    yield from (Note(subject, text) for subject, text in found.items() if text)


def _counts(counts: dict[str, int]) -> str:
    """Counts by name, sanitised, as the names come from the server."""
    return ", ".join(f"{plain(name).replace('_', ' ')} {count:,}" for name, count in sorted(counts.items()) if count)


def _share(share: float | None) -> str:
    return f"{percent(share)} of the prompt tokens" if share is not None else ""


def _spec(engine: EngineStage) -> str:
    spec = engine.spec
    if spec is None or spec.acceptance is None:
        return ""
    length = f", {number(spec.mean_accepted_length)} tokens a step" if spec.mean_accepted_length else ""
    shares = " ".join(percent(share) for share in spec.acceptance_by_position)
    positions = f"; by position {shares}" if shares else ""
    return f"{percent(spec.acceptance)} of the drafted tokens accepted{length}{positions}"
