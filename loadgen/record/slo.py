"""Whether a stage meets its limits: the one judgement used by searches, tables, screens, reports and exit codes.

A limit on a percentile is a limit on a share: p99 <= 2 s requires that 99 % of the streams are within 2 s. Among the
scheduled requests, failures and arrivals that were never sent are misses; so is a stream that was already beyond the
limit when the stage ended or the client hung up. One that was within it then is left out: its outcome is unknown.

Confidence: streams of one engine are not independent, so not their number counts but their effective sample size from
`batch_means`, with Student's t for few blocks (like Korn and Graubard, Survey Methodology 24, 1998, for shares in
clustered samples). In a stage too short for blocks, concurrent streams count as one: the worst case.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from loadgen.format import percent, setting
from loadgen.metrics.batch_means import MIN_BLOCKS, PERCENTS
from loadgen.metrics.client_limit import MAX_SEND_LAG_MS
from loadgen.metrics.difference import (
    SLO_CONFIDENCE,
    chance_of_misses,
    effective_sample_size,
    mean_estimate,
    normal_quantile,
    share_interval,
    streams_needed,
)
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage import LoadSum
from loadgen.profile.values import limit_of, per_stream_limits_ms, stage_limits_ms
from loadgen.record.stage import StageRecord
from loadgen.schema.result import (
    FailureCheck,
    Goodput,
    Judgement,
    Limits,
    SloCheck,
    StageResult,
    Tier,
    TierCheck,
    TierResult,
    met_limits,
)
from loadgen.schema.shared import LoadKind, SloVerdict

_TELLING = 5  # from so many misses on, their share predicts how it will go on
_MAX_NAMED = 100_000  # further requests: nobody waits for more
_FAR = 10.0  # times below or above its limit: nobody asks how sure that is
_CENSORED = {"ttft": "ttft_censored", "ttft_from_intended": "ttft_censored", "e2e": "e2e_censored"}
"""The histograms of streams that were still open: their times are at least as long as that."""
_FAILED = {"ttft": "ttft_failed", "ttft_from_intended": "ttft_from_intended_failed"}
"""The histograms of streams that failed after their first token: they are misses, however fast it came."""
_ALIKE = {"ttft_from_intended": "ttft"}  # whose effective sample size to use if a latency has none of its own


def limits_of(profile: Mapping[str, Any]) -> Limits:
    """The limits in a profile, as stored in the journal."""
    requested = dict(profile.get("slo") or {})
    return Limits(
        failed=requested.pop("failed", 0.0),
        latency_ms=requested,
        goodput=(profile.get("plan") or {}).get("goodput", 0.95),
        tiers=tuple(map(_tier_of, profile.get("tiers") or ())),
    )


def _tier_of(document: Mapping[str, Any]) -> Tier:
    limits = dict(document)
    failed, speed = limits.pop("failed", 0.0), limits.pop("tokens_per_s", None)
    words = [] if speed is None else [f"{setting(speed)} tok/s"]
    for name, limit_ms in limits.items():
        words.append(f"{name} " + (f"{setting(limit_ms)} ms" if limit_ms < 1000 else f"{setting(limit_ms / 1000)} s"))
    words += [f"failed {percent(failed)}"] if failed else []
    return Tier(", ".join(words), limits | ({} if speed is None else {"tpot_p75": 1000 / speed}), failed)


def needed_words(stage: Judgement | StageResult) -> str:
    """What a sure verdict takes for the most demanding limit: "ttft_p99 needs 120 more requests"; empty if sure.

    Limits that are far away are left out.
    """
    needs = {name: check.needs or 0 for name, check in stage.slo.items() if not _is_far(check)}
    name, most = _most_needed(needs, stage.goodput if needs or not stage.slo else None)
    if most > _MAX_NAMED:
        return f"{name} is too near its limit to be sure of it"
    return f"{name} needs {most:,} more requests" if most else ""


def sure_words(check: SloCheck) -> str:
    """What a sure verdict on a limit takes: "sure with 120 more requests"; empty if it is sure or far from it."""
    if not check.needs or _is_far(check):
        return ""
    if check.needs > _MAX_NAMED:
        return "too near the limit to be sure"
    return f"sure with {check.needs:,} more requests"


def _is_far(check: SloCheck) -> bool:
    measured_ms = check.measured_ms
    return measured_ms is not None and not check.limit_ms / _FAR < measured_ms < check.limit_ms * _FAR


def still_needed(stage: Judgement) -> int:
    """The least number of further streams for a sure verdict on every limit."""
    needs = {name: check.needs or 0 for name, check in stage.slo.items()}
    return _most_needed(needs, stage.goodput)[1]


def _most_needed(needs: Mapping[str, int], goodput: Goodput | None) -> tuple[str, int]:
    of_goodput = goodput.needs if goodput is not None else None
    return max([*needs.items(), ("goodput", of_goodput or 0)], key=lambda item: item[1])


def judge(stage: StageRecord, limits: Limits, confidence: float = SLO_CONFIDENCE) -> Judgement:
    """Judge a stage, as far as it has come, by the limits."""
    checks = {}
    for name, limit_ms in stage_limits_ms(limits.latency_ms).items():
        metric, percent = limit_of(name)
        values = Histogram()
        values.add(stage.histogram(metric))
        values.add(stage.histogram(_CENSORED.get(metric, "")).above(limit_ms))
        if percent is None:
            checks[name] = _mean_check(stage, metric, values, limit_ms, confidence)
        else:
            answered = values.without(stage.histogram(_FAILED.get(metric, "")))
            checks[name] = _percentile_check(stage, metric, answered, limit_ms, percent, confidence)
    return Judgement(checks, _goodput(stage, limits, confidence), _failures(stage, limits.failed, confidence))


def _mean_check(stage: StageRecord, metric: str, values: Histogram, limit_ms: float, confidence: float) -> SloCheck:
    summary = values.summary()
    if summary.mean is None or summary.stddev is None:
        return SloCheck(limit_ms=limit_ms, measured_ms=None, met=False, verdict="unresolved", population=0)
    evidence = _evidence(stage, [metric], "mean", _streams(stage, metric, values), confidence)
    # The standard deviation of two values says nothing.
    estimate = mean_estimate(summary.mean, summary.stddev, evidence.now if evidence.now >= 2 else 0.0, confidence)
    sure: SloVerdict = "met" if estimate.high <= limit_ms else "missed" if estimate.low > limit_ms else "unresolved"
    gap_ms = max(abs(limit_ms - summary.mean), 1e-6)
    needed = (normal_quantile(confidence) * summary.stddev / gap_ms) ** 2
    return SloCheck(
        limit_ms=limit_ms,
        measured_ms=summary.mean,
        met=summary.mean <= limit_ms,
        verdict=_known(stage, metric, sure),
        population=values.count,
        needs=evidence.streams_for(needed) if sure == "unresolved" else None,
    )


def _percentile_check(
    stage: StageRecord, metric: str, values: Histogram, limit_ms: float, percent: float, confidence: float
) -> SloCheck:
    seen, never = _streams(stage, metric, values), _never_answered(stage)
    count, good = seen + never, seen * (1 - values.share_above(limit_ms))
    rank = percent * count / seen if seen else math.inf
    evidence = _evidence(stage, [metric], _nearest(stage, metric, percent), count, confidence)
    verdict = _share_verdict(good, percent / 100, evidence, confidence)
    return SloCheck(
        limit_ms=limit_ms,
        measured_ms=values.percentile_ms(rank) if rank <= 100 else None,
        met=seen > 0 and _enough(good, count, percent / 100),
        verdict=_known(stage, metric, verdict),
        missed=round(count - good),
        population=count,
        needs=_needs(good, percent / 100, evidence, confidence) if verdict == "unresolved" else None,
    )


def _goodput(stage: StageRecord, limits: Limits, confidence: float) -> Goodput | None:
    limits_ms = per_stream_limits_ms(limits.latency_ms)
    if not limits_ms:
        return None
    counters, wanted = stage.counters, limits.goodput
    timed, good = stage.histogram("e2e").count, counters["good"]
    count = timed + _never_answered(stage) + counters["beyond"]
    evidence = _evidence(stage, limits_ms, _nearest(stage, min(limits_ms), 100 * wanted), count, confidence)
    verdict = _share_verdict(good, wanted, evidence, confidence)
    requests_per_s = stage.per_second("window_requests")
    return Goodput(
        limits_ms=limits_ms,
        good=good,
        determined=count,
        share=good / count if count else None,
        requests_per_s=requests_per_s * good / timed if requests_per_s is not None and timed else None,
        wanted=wanted,
        met=count > 0 and _enough(good, count, wanted),
        verdict=_known(stage, "e2e" if "e2e" in limits_ms else "", verdict),
        needs=_needs(good, wanted, evidence, confidence) if verdict == "unresolved" else None,
    )


def _failures(stage: StageRecord, allowed: float, confidence: float) -> FailureCheck:
    """The allowed share is a budget: up to it the limit is met, and it is missed only if surely exceeded."""
    counters = stage.counters
    unsent = _unsent(stage)
    count = counters["failed"] + counters["carried_failed"] + unsent
    scheduled = counters["sent"] + unsent
    met = count <= allowed * scheduled
    total = max(count, scheduled)
    surely = not allowed or _share_verdict(total - count, 1 - allowed, _at_worst(stage, total), confidence) == "missed"
    return FailureCheck(
        count=count,
        unsent=unsent,
        scheduled=scheduled,
        allowed=allowed,
        met=met,
        verdict="met" if met else "missed" if surely else "unresolved",
    )


def _never_answered(stage: StageRecord) -> int:
    return stage.counters["failed"] + _unsent(stage)


def _unsent(stage: StageRecord) -> int:
    """Arrivals that were never sent; one that became due as the stage ended was not late yet."""
    return stage.counters["unsent"] if stage.metrics.unsent_wait_ns > MAX_SEND_LAG_MS * 1e6 else 0


def _streams(stage: StageRecord, metric: str, values: Histogram) -> int:
    """How many streams the values come from: gaps of one stream are alike, so they count as one."""
    if metric != "itl":
        return values.count
    return min(values.count, sum(stage.counters[name] for name in ("completed", "carried_over", "carried_in")))


def _nearest(stage: StageRecord, metric: str, percent: float) -> str:
    """The nearest percentile with a known effective sample size; a maximum says nothing."""
    values = stage.histogram(_ALIKE.get(metric, metric))
    telling = {
        name: known
        for name, known in PERCENTS.items()
        if values.count and values.share_above(values.percentile_ms(known) or 0.0) > 0
    }
    return min(telling, key=lambda name: abs(telling[name] - percent), default="")


class _Evidence(msgspec.Struct, frozen=True):
    """How many independent observations some streams are worth."""

    streams: int
    now: float  # the equivalent number of independent streams
    share: float = 1.0  # the share of further streams that will count
    least: int = 0  # so many streams are needed before the effective sample size is known

    def streams_for(self, needed: float) -> int:
        """How many further streams are needed for so many effective ones."""
        return max(1, self.least - self.streams, math.ceil(needed / self.share - self.streams))


def _evidence(stage: StageRecord, metrics: Iterable[str], statistic: str, count: int, confidence: float) -> _Evidence:
    precision = stage.blocks.precision()
    if precision is None:
        return _at_worst(stage, count)
    shares = [1.0]
    for metric in (_ALIKE.get(name, name) for name in metrics):
        effective = precision.effective.get(metric, {}).get(statistic)
        values = _streams(stage, metric, stage.histogram(metric))
        if effective is not None and values:
            shares.append(effective / values)
    share = min(shares)
    return _Evidence(count, effective_sample_size(count * share, precision.blocks, confidence), share)


def _at_worst(stage: StageRecord, count: int) -> _Evidence:
    """As if all concurrent streams were one, until there are blocks."""
    held = max(1.0, stage.held_mean or float(stage.started.concurrency or 1))
    return _Evidence(count, count / held, least=math.ceil(MIN_BLOCKS * held) if held > 1 else 0)


def _known(stage: StageRecord, metric: str, verdict: SloVerdict) -> SloVerdict:
    """The verdict; but if only short streams ended, a limit on E2E cannot be known to be met."""
    return "unresolved" if metric == "e2e" and verdict == "met" and stage.e2e_needs_s else verdict


def _enough(good: float, count: int, wanted: float) -> bool:
    # A tenth of a percent has no exact binary representation.
    return good >= wanted * count - 1e-9 * count


def _share_verdict(good: float, wanted: float, evidence: _Evidence, confidence: float) -> SloVerdict:
    if not evidence.streams:
        return "unresolved"
    share = good / evidence.streams
    low, _ = share_interval(share, evidence.now, confidence)
    if low >= wanted:
        return "met"
    # Wilson's upper bound is too low if hardly any may miss: one miss of fifteen does not disprove a p99.
    chance = chance_of_misses((1 - share) * evidence.now, evidence.now, 1 - wanted)
    return "missed" if chance <= (1 - confidence) / 2 else "unresolved"


def _needs(good: float, wanted: float, evidence: _Evidence, confidence: float) -> int:
    """How many further streams a sure verdict takes: if all are good, or if misses go on at the present rate."""
    count = evidence.streams
    if count - good < _TELLING and (not count or _enough(good, count, wanted)):
        needed = streams_needed(wanted, (count - good) * evidence.share, confidence)
    else:
        distance = max(abs(good / count - wanted), 1e-6)
        needed = normal_quantile(confidence) ** 2 * wanted * (1 - wanted) / distance**2
    return evidence.streams_for(needed)


def tier_checks(stage: StageRecord, tiers: Sequence[Tier]) -> tuple[TierCheck, ...]:
    """Whether a stage, or each step of it, meets the tiers; nothing for what was not measured.

    The steps of a moving load have no TPOT, which belongs to whole streams: the mean of their ITL takes its place, and
    without confidence.
    """
    started, checks = stage.started, []
    for tier in tiers:
        if started.steps:
            for step, part in sorted(stage.metrics.bins.items()):
                met = _met_by_step(part, tier)
                if met is not None and step < len(started.steps):
                    checks.append(TierCheck(tier.title, started.steps[step][1], met, "unresolved"))
        elif stage.counters["completed"] and not started.no_load:
            judgement = judge(stage, Limits(tier.latency_ms, failed=tier.failed))
            load = started.rate if started.rate is not None else float(started.concurrency or 0)
            checks.append(TierCheck(tier.title, load, met_limits(judgement) or False, judgement.verdict))
    return tuple(checks)


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
    """For each tier the highest load that meets it; of a load that was measured again, the latest counts."""
    checks: dict[tuple[str, LoadKind], dict[float, TierCheck]] = {}
    for stage in stages:
        by: LoadKind = "concurrency" if stage.sessions is None else "sessions"
        for check in stage.tiers:
            checks.setdefault((check.tier, "rate" if stage.target.rate is not None else by), {})[check.load] = check

    results = []
    for (tier, by), of_tier in checks.items():
        loads = list(of_tier.values())
        missed = min((one.load for one in loads if not one.met), default=None)
        met = [one.load for one in loads if one.met and (missed is None or one.load < missed)]
        found = max(met, default=None)
        low = [one.load for one in loads if one.verdict == "met" and found is not None and one.load <= found]
        high = [one.load for one in loads if one.verdict == "missed" and (found is None or one.load > found)]
        above = [one.load for one in loads if one.met and missed is not None and one.load > missed]
        results.append(
            TierResult(
                tier,
                by,
                found,
                low=max(low, default=None),
                high=min(high, default=None),
                missed=missed,
                met_above=max(above, default=None),
            )
        )
    return tuple(results)
