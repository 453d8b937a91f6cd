"""From the record of a stage to what a plan decides by: its load, and whether and how surely it keeps to the limits."""

from __future__ import annotations

from loadgen.metrics.slo import Limits, judge, met_limits, needed_words
from loadgen.metrics.stage_record import StageRecord
from loadgen.plan import Measured, Stage


def measured_of(stage: Stage, record: StageRecord, limits: Limits) -> Measured:
    """What is known of a stage as it ends."""
    judgement, precision = judge(record, limits), record.blocks.precision()
    return Measured(
        stage=stage,
        held=record.held_mean,
        output_tokens_per_s=record.per_second("window_output_tokens"),
        error_percent=precision.error_percent.get("output_tokens_per_s") if precision is not None else None,
        verdict=judgement.verdict,
        met=met_limits(judgement) or False,
        needs=needed_words(judgement),
        completed=record.counters["completed"],
    )
