"""From the record of a stage to what a plan decides by: its load, and whether and how surely it keeps to the limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage_record import StageRecord
from loadgen.plan import Measured, Stage
from loadgen.plan.evidence import mean_verdict, share_verdict, together
from loadgen.plan.stage import Verdict
from loadgen.profile.slo import limit_of, per_stream_limits_ms, stage_limits_ms


def measured_of(stage: Stage, record: StageRecord, slo_ms: Mapping[str, float], *, goodput: float) -> Measured:
    """What is known of a stage as it ends."""
    tests = list(_tests(record, slo_ms, goodput))
    return Measured(
        stage=stage,
        held=record.held_mean,
        output_tokens_per_s=record.per_second("window_output_tokens"),
        verdict=together([verdict for verdict, _ in tests]),
        met=bool(tests) and all(met for _, met in tests),
        completed=record.counters["completed"],
    )


def _tests(record: StageRecord, slo_ms: Mapping[str, float], goodput: float) -> Iterator[tuple[Verdict, bool]]:
    """Each limit with confidence, and by the figures as they are."""
    for name, limit_ms in stage_limits_ms(slo_ms).items():
        yield _stage_test(record, name, limit_ms)
    if per_stream_limits_ms(slo_ms):
        yield _share_test(record.counters["good"], record.determined, goodput)


def _stage_test(record: StageRecord, name: str, limit_ms: float) -> tuple[Verdict, bool]:
    metric, percent = limit_of(name)
    latency = record.metrics.latency.get(metric, Histogram())
    if percent is None:
        summary = latency.summary()
        verdict = mean_verdict(summary.mean, summary.stddev, summary.count, limit_ms)
        return verdict, summary.mean is not None and summary.mean <= limit_ms
    # Gaps of one stream are alike: they count as one observation.
    count = min(latency.count, record.counters["completed"]) if metric == "itl" else latency.count
    good = count * (1 - latency.share_above(limit_ms))
    return _share_test(good, count + record.counters["failed"], percent / 100)


def _share_test(good: float, count: int, wanted: float) -> tuple[Verdict, bool]:
    return share_verdict(good, count, wanted), count > 0 and good >= wanted * count
