"""From the record of a stage to what a plan decides by, and when a stage has told enough of it.

A probe is looked at again and again while it runs, and in one of many looks chance makes it seem sure. So it is broken
off only for what three standard deviations say, which leaves the 95 % of the last look what they are (Haybittle 1971;
Peto and others 1976). Where it goes on until it is sure, 95 % are enough to say that it meets its limits: for a
percentile that takes hundreds of streams, more for each that misses, so that there are few moments at which it can be.
"""

from __future__ import annotations

from loadgen.metrics.slo import Judgement, Limits, judge, met_limits, needed_words, still_needed
from loadgen.metrics.stage_record import StageRecord
from loadgen.plan.stage import Measured, Stage

INTERIM = 0.9973  # the confidence of three standard deviations
_SHORTEST_S = 2.0


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


def enough(stage: Stage, record: StageRecord, measured_s: float, longest_s: float) -> str | None:
    """Why a settled stage, measured for so long, should end; None while it should go on."""
    if stage.duration_s is None:
        return None
    if stage.judged is not None and measured_s >= min(_SHORTEST_S, stage.duration_s):
        verdict = judge(record, stage.judged, INTERIM).verdict
        if verdict != "unresolved":
            return f"it is sure: the limits are {verdict}"
    if measured_s < stage.duration_s:
        return None
    if record.counters["completed"] < stage.completed:
        return f"too few streams completed in {longest_s:g} s" if measured_s >= longest_s else None
    if stage.judged is None or not stage.certain:
        return "its time was up"
    return _certain(judge(record, stage.judged), record, measured_s, longest_s)


def _certain(judgement: Judgement, record: StageRecord, measured_s: float, longest_s: float) -> str | None:
    if judgement.verdict == "met":
        return "it is sure: the limits are met"
    if measured_s >= longest_s:
        return f"it was not sure within {longest_s:g} s"
    per_s = record.counters["completed"] / measured_s
    if still_needed(judgement) > per_s * (longest_s - measured_s):
        return f"it cannot be sure within {longest_s:g} s: {needed_words(judgement)}"
    return None
