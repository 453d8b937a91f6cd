"""Where an engine cannot be believed: its figures over a window must fit each other, its own counts and the clock.

Servers are wrong too. Seen: sums of TTFT beyond all measure at thousands of streams, and a prefix cache with more hits
than look-ups, or more look-ups than there were tokens, because a request that waited was counted each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from loadgen.server.vllm.engine_metrics import EngineHistogram, EngineSample

LATENCIES = ("ttft", "itl", "tpot", "e2e", "queue", "prefill", "decode")
_ROUNDING_S = 1e-6
_STALE_S = 1.0  # gauges are those of the last step: something may have come since


def is_idle(sample: EngineSample) -> bool | None:
    """Nothing runs or waits; None where the server does not say."""
    if sample.running is None or sample.waiting is None:
        return None
    return sample.running + sample.waiting == 0


def engine_doubts(
    before: EngineSample, after: EngineSample, *, span_s: float, oldest_s: float | None = None
) -> dict[str, str]:
    """Which figures of a window of `span_s` cannot be, by name, and why.

    No request that was open in it had begun more than `oldest_s` before its end; None if that is not known.
    """
    found = dict(_latency_doubts(before, after, span_s, oldest_s))
    hits = _hits_doubt(before, after)
    return found | ({"prefix_hit_rate": hits} if hits is not None else {})


def _latency_doubts(
    before: EngineSample, after: EngineSample, span_s: float, oldest_s: float | None
) -> Iterator[tuple[str, str]]:
    open_before = None if before.running is None or before.waiting is None else before.running + before.waiting
    for name in LATENCIES:
        earlier, later = getattr(before, name), getattr(after, name)
        if earlier is None or later is None or later.count <= earlier.count:
            continue
        count = later.count - earlier.count
        mean_s = (later.sum_s - earlier.sum_s) / count
        low_s, high_s = _by_buckets(earlier, later)
        if not low_s - _ROUNDING_S <= mean_s * (1 + _ROUNDING_S) <= high_s * (1 + _ROUNDING_S) + _ROUNDING_S:
            yield name, f"a mean of {mean_s:.3g} s is not of these buckets ({low_s:.3g} to {high_s:.3g} s)"
        elif oldest_s is not None:
            # Of each request that was open at the beginning, at most one observation had begun before.
            older = count if open_before is None else min(count, open_before)
            most_s = (older * oldest_s + (count - older) * span_s) / count + _STALE_S
            if mean_s > most_s:
                yield name, f"a mean of {mean_s:.3g} s, where no more than {most_s:.3g} s can have passed"


def _by_buckets(before: EngineHistogram, after: EngineHistogram) -> tuple[float, float]:
    """Between which means the buckets leave room."""
    earlier = dict(before.buckets)
    if not earlier or earlier.keys() != dict(after.buckets).keys():
        return 0.0, math.inf
    low_s = high_s = 0.0
    total = after.buckets[-1][1] - before.buckets[-1][1]
    grown = [(0.0, 0.0), *((bound, count - earlier[bound]) for bound, count in after.buckets)]
    for (lower_s, below), (bound_s, upto) in pairwise(grown):
        if upto > below:
            low_s += lower_s * (upto - below) / total
            high_s += bound_s * (upto - below) / total
    return low_s, high_s if total else math.inf


def _hits_doubt(before: EngineSample, after: EngineSample) -> str | None:
    hits, queries, tokens = (_grown(before, after, name) for name in ("prefix_hits", "prefix_queries", "prompt_tokens"))
    if after.prompt_tokens_by_source is not None or hits is None or queries is None:
        return None
    if hits > queries:
        return f"{hits:.0f} hits in {queries:.0f} look-ups"
    if tokens is not None and is_idle(before) and is_idle(after) and queries > tokens:
        return f"{queries:.0f} tokens were looked up, and the prompts had {tokens:.0f}"
    return None


def _grown(before: EngineSample, after: EngineSample, name: str) -> float | None:
    earlier, later = getattr(before, name), getattr(after, name)
    return None if earlier is None or later is None else later - earlier
