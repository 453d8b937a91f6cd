"""Several levels of service from one run: for each the highest load that meets it, of all that were measured.

Stages are judged by a tier's limits as by those of an SLO. The steps of a moving load have no TPOT, which belongs to
whole streams: the mean of their ITL takes its place, and without confidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from loadgen.metrics.stage import LoadSum
from loadgen.profile.values import limit_of
from loadgen.record.slo import judge
from loadgen.record.stage import StageRecord
from loadgen.schema.result import Limits, StageResult, Tier, TierCheck, TierResult, met_limits

By = Literal["concurrency", "rate", "sessions"]


def tier_checks(stage: StageRecord, tiers: Sequence[Tier]) -> tuple[TierCheck, ...]:
    """Whether a stage, or each step of it, meets the tiers; nothing for what was not measured."""
    return tuple(check for tier in tiers for check in _checks(stage, tier))


def _checks(stage: StageRecord, tier: Tier) -> Iterator[TierCheck]:
    started = stage.started
    if started.steps:
        for step, part in sorted(stage.metrics.bins.items()):
            met = _met_by_step(part, tier)
            if met is not None and step < len(started.steps):
                yield TierCheck(tier.title, started.steps[step][1], met, "unresolved")
    elif stage.counters["completed"] and not started.no_load:
        judgement = judge(stage, Limits(tier.latency_ms, failed=tier.failed))
        load = started.rate if started.rate is not None else float(started.concurrency or 0)
        yield TierCheck(tier.title, load, met_limits(judgement) or False, judgement.verdict)


def _met_by_step(part: LoadSum, tier: Tier) -> bool | None:
    """Whether a step of a moving load meets the limits; None where one of them is not measured."""
    met = True
    for name, limit_ms in tier.latency_ms.items():
        metric, percent = limit_of(name)
        histogram = {"ttft": part.ttft, "itl": part.itl, "tpot": part.itl}.get(metric)
        if histogram is None:
            return None
        is_mean = percent is None or metric == "tpot"
        measured_ms = histogram.mean_ms() if is_mean else histogram.percentile_ms(percent or 0.0)
        if measured_ms is None:
            return None
        met = met and measured_ms <= limit_ms
    return met


def tier_results(stages: Iterable[StageResult]) -> tuple[TierResult, ...]:
    """For each tier what the stages found; of a load that was measured again, the latest."""
    checks: dict[tuple[str, By], dict[float, TierCheck]] = {}
    for stage in stages:
        for check in stage.tiers:
            checks.setdefault((check.tier, _by(stage)), {})[check.load] = check
    return tuple(_found(tier, by, list(of_tier.values())) for (tier, by), of_tier in checks.items())


def _by(stage: StageResult) -> By:
    if stage.target.rate is not None:
        return "rate"
    return "concurrency" if stage.sessions is None else "sessions"


def _found(tier: str, by: By, checks: Sequence[TierCheck]) -> TierResult:
    missed = min((one.load for one in checks if not one.met), default=None)
    met = [one.load for one in checks if one.met and (missed is None or one.load < missed)]
    found = max(met, default=None)
    low = [one.load for one in checks if one.verdict == "met" and found is not None and one.load <= found]
    high = [one.load for one in checks if one.verdict == "missed" and (found is None or one.load > found)]
    return TierResult(tier, by, found, max(low, default=None), min(high, default=None), missed)
