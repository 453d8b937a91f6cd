"""Several levels of service from one run: for each the highest load that meets it, of all that were measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from loadgen.schema.result import StageResult, TierCheck, TierResult

By = Literal["concurrency", "rate", "sessions"]


def tier_results(stages: Iterable[StageResult]) -> tuple[TierResult, ...]:
    """For each tier what the stages found; of a load that was measured again, the latest."""
    checks: dict[tuple[str, By], dict[float, TierCheck]] = {}
    for stage in stages:
        by: By = "concurrency" if stage.sessions is None else "sessions"
        for check in stage.tiers:
            checks.setdefault((check.tier, "rate" if stage.target.rate is not None else by), {})[check.load] = check
    return tuple(_found(tier, by, list(of_tier.values())) for (tier, by), of_tier in checks.items())


def _found(tier: str, by: By, checks: Sequence[TierCheck]) -> TierResult:
    missed = min((one.load for one in checks if not one.met), default=None)
    met = [one.load for one in checks if one.met and (missed is None or one.load < missed)]
    found = max(met, default=None)
    low = [one.load for one in checks if one.verdict == "met" and found is not None and one.load <= found]
    high = [one.load for one in checks if one.verdict == "missed" and (found is None or one.load > found)]
    above = max((one.load for one in checks if one.met and missed is not None and one.load > missed), default=None)
    return TierResult(tier, by, found, max(low, default=None), min(high, default=None), missed, above)
