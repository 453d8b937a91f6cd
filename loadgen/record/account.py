"""What the client counted of the streams that an engine's figures cover: of a stage, or of several together.

Streams that are open at the end of a stage are in the engine's figures of two stages, and in the client's of one. So a
stage bounded by time is compared together with the others between two readings of an idle engine: before the first
stage, and after the last stream has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadgen.schema.engine import EngineStage, OwnRequests

if TYPE_CHECKING:
    from loadgen.record.stage import StageRecord

FIRST_TOKENS = ("ttft", "first_wave_ttft", "warmup_ttft", "priming_ttft")


@dataclass(frozen=True, slots=True)
class ClientAccount:
    """The client's figures for one or more stages."""

    stages: Sequence[StageRecord]
    engine: EngineStage
    first_tokens: int  # of all streams, measured or not
    ttft_ms: float  # their sum
    counters: Mapping[str, int]  # summed over the stages
    requests: int
    input_tokens: int
    output_tokens: int
    canaries: OwnRequests
    is_span: bool

    @property
    def over(self) -> str:
        """What is compared, in words; empty for the streams of one stage alone."""
        first, last = (stage.started.index + 1 for stage in (self.stages[0], self.stages[-1]))
        together = f"stages {first} to {last} together" if last > first else f"stage {first} until its last answer"
        number = self.canaries.requests
        canaries = f"including {number} {'canary' if number == 1 else 'canaries'}"
        parts = (together if self.is_span else "", canaries if number else "")
        return ", ".join(filter(None, parts))


def account_of_stage(stage: StageRecord, engine: EngineStage) -> ClientAccount:
    """The account of one stage: totals are over its measured streams."""
    counters = stage.counters
    totals = {"requests": counters["completed"]} | {name: counters[name] for name in ("input_tokens", "output_tokens")}
    return account_of([stage], engine, totals, stage.canaries, is_span=False)


def account_of(
    stages: Sequence[StageRecord],
    engine: EngineStage,
    totals: Mapping[str, int],
    canaries: OwnRequests,
    *,
    is_span: bool,
) -> ClientAccount:
    """The account of streams whose `totals` are those of a `ClientDelta`.

    `is_span`: of all streams between two moments at which none was open.
    """
    histograms = [stage.histogram(name) for stage in stages for name in FIRST_TOKENS]
    counters: Counter[str] = Counter()
    for stage in stages:
        counters.update(stage.counters)
    return ClientAccount(
        stages=stages,
        engine=engine,
        first_tokens=sum(one.count for one in histograms),
        ttft_ms=sum(one.count * (one.mean_ms() or 0.0) for one in histograms),
        counters=counters,
        requests=totals["requests"],
        input_tokens=totals["input_tokens"],
        output_tokens=totals["output_tokens"],
        canaries=canaries,
        is_span=is_span,
    )
