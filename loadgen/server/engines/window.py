"""What happened between two samples of one server, and which of its figures are implausible.

A counter that went down means that the server was restarted in between. Servers have bugs, too, so the figures of a
window must be consistent with each other, with the engine's own counts and with the clock. Seen so far: sums of TTFT
far too large at thousands of streams, and more prefix cache hits than look-ups, or more look-ups than tokens, because
a waiting request was counted repeatedly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from loadgen.server.engines.names import COUNTER_FIELDS, LATENCIES, Counters, EngineHistogram, EngineSample

_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_ROUNDING_S = 1e-6
_STALE_S = 1.0  # how old gauges may be: they are set at each step, and requests may have arrived since


def delta(before: EngineSample, after: EngineSample) -> Counters | None:
    """What happened from one sample to the next, latencies only with observations; None if a counter went down."""
    if any(_fell(getattr(before, name), getattr(after, name)) for name in COUNTER_FIELDS):
        return None
    return Counters(**{name: _growth(before, after, name) for name in COUNTER_FIELDS})


def is_restarted(before: EngineSample, after: EngineSample) -> bool:
    """Whether the counters started again from 0; if the engine reports its process's start time, that decides."""
    if before.started_unix_s is not None and after.started_unix_s is not None:
        return before.started_unix_s != after.started_unix_s
    return delta(before, after) is None


def _fell(before: Any, after: Any) -> bool:  # noqa: ANN401 - a number, a mapping or a histogram, as the field is
    if before is None or after is None:
        return False
    if isinstance(before, EngineHistogram):
        earlier = dict(before.buckets)
        return after.count < before.count or any(count < earlier.get(bound, 0.0) for bound, count in after.buckets)
    if isinstance(before, Mapping):
        return any(after.get(name, 0.0) < value for name, value in before.items())
    return bool(after < before)


def _growth(before: EngineSample, after: EngineSample, name: str) -> Any:  # noqa: ANN401 - as the field is
    earlier, later = getattr(before, name), getattr(after, name)
    if name in LATENCIES:
        return _grown(before, after, name)
    if later is None or (earlier is None and not _goes_on(before, after)):
        return None
    if isinstance(later, Mapping):
        return {part: value - (earlier or {}).get(part, 0.0) for part, value in later.items()}
    return later - (earlier or 0.0)


def _goes_on(before: EngineSample, after: EngineSample) -> bool:
    """Whether series that are new on the page count from 0: many appear only once there is something to count."""
    return before.kind is not None and before.kind == after.kind


def _grown(before: EngineSample, after: EngineSample, name: str) -> EngineHistogram | None:
    """The window's observations, None if there are none; without buckets if their bounds changed."""
    old, new = getattr(before, name), getattr(after, name)
    if old is None and new is not None and _goes_on(before, after):
        old = EngineHistogram(0.0, 0.0, tuple((bound, 0.0) for bound, _ in new.buckets))
    if old is None or new is None or new.count <= old.count:
        return None
    earlier = dict(old.buckets)
    same = earlier.keys() == dict(new.buckets).keys()
    buckets = tuple((bound, count - earlier[bound]) for bound, count in new.buckets) if same else ()
    return EngineHistogram(new.sum_s - old.sum_s, new.count - old.count, buckets)


def intervals_s(histogram: EngineHistogram) -> dict[str, tuple[float, float | None]]:
    """The bucket that contains each percentile, by nearest rank."""
    if not histogram.buckets:
        return {}
    bounds_s, counts = zip(*histogram.buckets, strict=True)
    found = {}
    for name, share in _PERCENTILES.items():
        # Counts from outside need not be whole numbers.
        rank = min(math.ceil(share * counts[-1]), counts[-1])
        number = next(number for number, count in enumerate(counts) if count >= rank)
        lower_s = bounds_s[number - 1] if number else 0.0
        found[name] = (lower_s, None if math.isinf(bounds_s[number]) else bounds_s[number])
    return found


def engine_doubts(
    before: EngineSample, after: EngineSample, *, span_s: float, oldest_s: float | None = None
) -> dict[str, str]:
    """Which figures of a window of `span_s` are implausible, by name, and why.

    No request open in the window began more than `oldest_s` before its end; None if unknown.
    """
    grown = {name: _grown(before, after, name) for name in LATENCIES}
    doubts = {
        name: _mean_doubt(histogram, before.open_requests, span_s, oldest_s)
        for name, histogram in grown.items()
        if histogram is not None
    }
    doubts["prefix_hit_rate"] = _hits_doubt(before, after)
    return {name: doubt for name, doubt in doubts.items() if doubt}


def _mean_doubt(grown: EngineHistogram, open_before: float | None, span_s: float, oldest_s: float | None) -> str:
    # The range in which the mean must lie, given the buckets.
    buckets = [(0.0, 0.0), *grown.buckets]
    total = buckets[-1][1]
    low_s = 0.0
    high_s = 0.0 if total else math.inf
    for (lower_s, below), (bound_s, upto) in pairwise(buckets):
        if upto > below:
            low_s += lower_s * (upto - below) / total
            high_s += bound_s * (upto - below) / total

    count, mean_s = grown.count, grown.mean_s
    if not low_s - _ROUNDING_S <= mean_s * (1 + _ROUNDING_S) <= high_s * (1 + _ROUNDING_S) + _ROUNDING_S:
        return f"a mean of {mean_s:.3g} s is outside the buckets' range ({low_s:.3g} to {high_s:.3g} s)"
    if oldest_s is not None:
        # At most one observation per request that was open at the start began before the window.
        older = count if open_before is None else min(count, open_before)
        most_s = (older * oldest_s + (count - older) * span_s) / count + _STALE_S
        if mean_s > most_s:
            return f"a mean of {mean_s:.3g} s, where at most {most_s:.3g} s can have passed"
    return ""


def _hits_doubt(before: EngineSample, after: EngineSample) -> str:
    hits, queries, tokens = (
        _growth(before, after, name) for name in ("prefix_hits", "prefix_queries", "prompt_tokens")
    )
    if after.prompt_tokens_by_source is not None or hits is None or queries is None:
        return ""
    if hits > queries:
        return f"{hits:.0f} hits in {queries:.0f} look-ups"
    if tokens is not None and before.is_idle and after.is_idle and queries > tokens:
        return f"{queries:.0f} tokens were looked up, and the prompts had {tokens:.0f}"
    return ""
