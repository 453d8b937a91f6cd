"""Decides whether the client was the limit of a stage, and names the first reason in one line.

An unknown fact breaks no rule, and each rule needs its own evidence. Thresholds are named constants.
"""

from __future__ import annotations

import msgspec

MIN_FOR_P99 = 100
MIN_FOR_SHARE = 100
MIN_FOR_MEAN = 30
MIN_S = 2.0  # of the workers' time; rules on shares of it apply only beyond this
MAX_READ_LAG_MS = 25.0  # p99; below it, kernel timestamps make read lag harmless; beyond it, refills come late
MAX_CPU_SHARE = 0.9  # of one core, per worker
MAX_COALESCED = 0.01
"""Share of late reads that returned several events, all stamped with the last one's time: with more, the gaps' p99 is
the client's."""
MAX_UNSURE = 0.005
"""Share of TTFTs that the client may have lengthened: half of those beyond the 99th percentile."""
ONE_IS_CHANCE = 1
"""One TTFT that may be a few ms too long is ignored, however few there are: it moves p99 by at most one rank. A request
that was sent again is at least 200 ms late for certain, so even the first one counts."""
MIN_HELD = 0.97  # of the streams that a closed loop asked for
MAX_REFILL_SHARE = 0.02  # send lag as a share of the streams' time: the load that late refills cost
MAX_SEND_LAG_MS = 5.0
"""Send lag at p99 in open loop: half a step of a fast engine. With more, requests miss the step they were meant for,
and TTFT from intended is partly the client's."""
MAX_LAG_OF_GAP = 0.5
"""Mean send lag in open loop, as a share of the mean gap between requests: with more, they leave in bunches, and
arrivals no longer follow the requested distribution."""
MAX_UNSENT = 0.01  # of the arrivals: the last few of a stage may just miss its end
MAX_WAITED = 0.02
"""Share of their time in which workers were runnable without a core; where cores are free it is a tenth of that."""


class ClientFacts(msgspec.Struct, frozen=True):
    """The input of the verdict; None is unknown and breaks no rule."""

    workers_lost: int = 0
    stood_still_s: float = 0.0
    span_s: float = 0.0  # summed over workers; the next three are shares of it
    cpu_share: float | None = None
    realtime_share: float | None = None  # at realtime priority
    waited_share: float | None = None  # runnable without a core
    lags: int = 0  # reads with a known lag
    read_lag_p99_ms: float | None = None
    reads: int = 0
    coalesced_share: float | None = None  # reads of several output events, if the client caused them
    ttfts: int = 0
    unsure_ttfts: int = 0  # those that may be more than a millisecond too long
    resent_requests: int = 0  # by the kernel, on new connections
    held_mean: float | None = None
    wanted: float | None = None
    sends: int = 0
    """Requests sent; their lag counts from when they could be sent: under max_concurrency, once a slot was free."""
    unsent: int = 0  # arrivals not sent, except those that `max_concurrency` held back
    send_lag_mean_ms: float | None = None
    e2e_mean_ms: float | None = None
    send_lag_p99_ms: float | None = None  # only in open loop, like `mean_gap_ms`
    mean_gap_ms: float | None = None


def client_limit(facts: ClientFacts) -> str | None:
    """The first rule broken by a client that did not keep up; None if it did, or too little is known."""
    if facts.workers_lost:
        who = "a worker" if facts.workers_lost == 1 else f"{facts.workers_lost} workers"
        return f"{who} died, and a part of the load with it"
    if facts.stood_still_s:
        still = f"vramp stood still for at least {facts.stood_still_s:.1f} s"
        return f"{still}: it, its container or the machine was stopped or frozen"
    if facts.cpu_share is not None and facts.span_s >= MIN_S and facts.cpu_share > MAX_CPU_SHARE:
        return f"workers used {facts.cpu_share:.0%} of their cores; give them more with --workers"
    if facts.read_lag_p99_ms is not None and facts.lags >= MIN_FOR_P99 and facts.read_lag_p99_ms > MAX_READ_LAG_MS:
        return f"read lag p99 {facts.read_lag_p99_ms:.1f} ms: the client read late{_why_late(facts)}"
    if facts.coalesced_share is not None and facts.reads >= MIN_FOR_SHARE and facts.coalesced_share > MAX_COALESCED:
        return (
            f"{facts.coalesced_share:.1%} of the reads carried several events because they were late{_why_late(facts)}"
        )
    if facts.ttfts >= MIN_FOR_P99 and facts.unsure_ttfts > max(ONE_IS_CHANCE, MAX_UNSURE * facts.ttfts):
        return f"{facts.unsure_ttfts} of {facts.ttfts} TTFTs may be too long because of the client{_why_late(facts)}"
    if facts.ttfts >= MIN_FOR_P99 and facts.resent_requests > MAX_UNSURE * facts.ttfts:
        return (
            f"{facts.resent_requests} of {facts.ttfts} requests had to be sent again on new connections, within their "
            "TTFT: packets were lost, or the server's queue of new connections was full (backlog, net.core.somaxconn)"
        )
    if facts.held_mean is not None and facts.wanted is not None and facts.held_mean < MIN_HELD * facts.wanted:
        return f"held {facts.held_mean:.1f} of {facts.wanted:g} streams"
    return _late_sends(facts)


def _why_late(facts: ClientFacts) -> str:
    """Words that blame full cores, a cause that the operator can remedy; empty if that is not the cause."""
    if facts.waited_share is None or facts.span_s < MIN_S or facts.waited_share <= MAX_WAITED:
        return ""
    advice = "; load.realtime = true lets them go first (needs root or CAP_SYS_NICE)"
    words = f", as the cores are full: its workers waited for one {facts.waited_share:.0%} of the time"
    return words if facts.realtime_share else words + advice


def _late_sends(facts: ClientFacts) -> str | None:
    scheduled = facts.sends + facts.unsent
    if scheduled >= MIN_FOR_SHARE and facts.unsent > MAX_UNSENT * scheduled:
        return f"{facts.unsent} arrivals were not sent in time: the client did not keep the schedule"
    mean_ms = facts.send_lag_mean_ms if facts.sends >= MIN_FOR_MEAN else None
    if mean_ms is not None and facts.e2e_mean_ms:
        share = mean_ms / facts.e2e_mean_ms
        if share > MAX_REFILL_SHARE:
            return f"requests were sent {mean_ms:.1f} ms late on average, {share:.1%} of their time"
    p99_ms = facts.send_lag_p99_ms if facts.sends >= MIN_FOR_P99 else None
    if p99_ms is not None and p99_ms > MAX_SEND_LAG_MS:
        return f"send lag p99 {p99_ms:.1f} ms: the client did not keep the schedule"
    if mean_ms is not None and facts.mean_gap_ms is not None:
        share = mean_ms / facts.mean_gap_ms
        if share > MAX_LAG_OF_GAP:
            return (
                f"requests were sent {mean_ms:.2f} ms late on average, {share:.0%} of the mean gap "
                "between them: the client did not keep the schedule"
            )
    return None


def cap_held_back(rate: float | None, most: int | None, *, unsent: int, waited_mean_ms: float | None) -> str | None:
    """What `max_concurrency` kept from being sent, or sent in time, in words: not the client's fault, but intended."""
    if most is None:
        return None
    load = "live sessions" if rate is None else f"target rate {rate:g}/s"
    requested = f"{load}, {most} streams at most"
    if unsent:
        return f"{requested}: {unsent} arrivals were not sent, as max_concurrency asks"
    if waited_mean_ms is not None and waited_mean_ms > MAX_SEND_LAG_MS:
        return f"{requested}: requests waited {waited_mean_ms:.0f} ms for a slot on average, as max_concurrency asks"
    return None
