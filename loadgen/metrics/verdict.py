"""Whose fault is it: the rules that say whether the client or the engine was the limit.

Pure functions of numbers, tested as tables. A verdict names the number that broke a rule.
"""

from __future__ import annotations

import msgspec

from loadgen.metrics.snapshot import EngineView

MOST_READ_LAG_MS = 25.0
"""Read lag at p99 that kernel timestamps still make harmless; beyond it, refills come late."""
MOST_CPU_SHARE = 0.9
"""Of one core, per worker."""
MOST_COALESCED = 0.05
"""Share of reads whose earlier events were stamped with the time of the last."""
LEAST_HELD = 0.97
"""Of the streams that a closed loop asked for."""
MOST_REFILL_SHARE = 0.02
"""Send lag, as a share of the streams' time: how much load a late refill has cost."""
MOST_SEND_LAG_MS = 5.0
"""Send lag at p99 in open loop: half a step of a fast engine. With more, arrivals fall into steps they were not meant
for, and a TTFT from the intended time is in part the client's."""
MOST_LAG_OF_GAP = 0.5
"""Mean send lag in open loop, as a share of the mean gap between requests: with more, they leave in bunches, and the
arrivals are no longer Poisson's (or whatever was asked for)."""
KV_FULL = 0.95


class ClientFacts(msgspec.Struct, frozen=True):
    """What the verdict about the client is made of; None is unknown and breaks no rule."""

    cpu_share: float | None = None
    """CPU of all workers over the time of all workers."""
    realtime_share: float | None = None
    """Of that time, how much the workers ran before all other processes."""
    read_lag_p99_ms: float | None = None
    coalesced_share: float | None = None
    held_mean: float | None = None
    wanted: float | None = None
    send_lag_mean_ms: float | None = None
    e2e_mean_ms: float | None = None
    send_lag_p99_ms: float | None = None
    """Of an open loop, whose requests have times of their own; `mean_gap_ms` too."""
    mean_gap_ms: float | None = None


def client_limit(facts: ClientFacts) -> str | None:
    """The first rule that says the client could not keep up, in words; None when it could."""
    if facts.cpu_share is not None and facts.cpu_share > MOST_CPU_SHARE:
        return f"workers used {facts.cpu_share:.0%} of their cores; give them more with --workers"
    if facts.read_lag_p99_ms is not None and facts.read_lag_p99_ms > MOST_READ_LAG_MS:
        advice = " (load.realtime helps; it needs root or CAP_SYS_NICE)" if facts.realtime_share == 0 else ""
        return f"read lag p99 {facts.read_lag_p99_ms:.1f} ms: the client read late{advice}"
    if facts.coalesced_share is not None and facts.coalesced_share > MOST_COALESCED:
        return f"{facts.coalesced_share:.1%} of the reads carried several events"
    if facts.held_mean is not None and facts.wanted is not None and facts.held_mean < LEAST_HELD * facts.wanted:
        return f"held {facts.held_mean:.1f} of {facts.wanted:g} streams"
    if facts.send_lag_mean_ms is not None and facts.e2e_mean_ms:
        share = facts.send_lag_mean_ms / facts.e2e_mean_ms
        if share > MOST_REFILL_SHARE:
            return f"requests were sent {facts.send_lag_mean_ms:.1f} ms late on average, {share:.1%} of their time"
    return _schedule_limit(facts)


def _schedule_limit(facts: ClientFacts) -> str | None:
    """Whether an open loop's requests left when its schedule wanted them."""
    if facts.send_lag_p99_ms is not None and facts.send_lag_p99_ms > MOST_SEND_LAG_MS:
        return f"send lag p99 {facts.send_lag_p99_ms:.1f} ms: the client did not keep the schedule"
    if facts.send_lag_mean_ms is not None and facts.mean_gap_ms is not None:
        share = facts.send_lag_mean_ms / facts.mean_gap_ms
        if share > MOST_LAG_OF_GAP:
            return (
                f"requests were sent {facts.send_lag_mean_ms:.2f} ms late on average, {share:.0%} of the mean gap "
                "between them: the client did not keep the schedule"
            )
    return None


def engine_limit(engine: EngineView | None) -> str | None:
    """What the engine is short of, in words; None when nothing shows."""
    if engine is None or not engine.waiting:
        return None
    if engine.kv_usage is not None and engine.kv_usage >= KV_FULL:
        return f"KV-limited: {engine.waiting:.0f} waiting, KV cache {engine.kv_usage:.0%} full"
    return f"engine-limited: queueing, {engine.waiting:.0f} waiting"
