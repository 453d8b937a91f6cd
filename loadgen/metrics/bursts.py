"""Whether bursts, reads with several output events of a stream, were caused by the client or by what lies before it.

The read lag of a burst does not tell: it is that of the last event only. But a worker that is idle reads whatever
arrives at once, so a stream's output can only have waited for the client while that was busy or had no core. If the
streams' output was overdue for a much larger share of their time, then it was held back before it reached this machine:
by a proxy, a gateway, or the server's own front end. This needs no timestamps of the kernel, and holds under TLS.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from loadgen.schema.result import Bursts

MIN_MOMENTS = 3
"""Bursts at fewer moments may have been caused by as many interruptions that nothing accounts for."""
MIN_SHARE = 0.1  # of the output events: a few bursts say little of the other events
MIN_FIRST_SHARE = 0.5  # of the first tokens, which do not arrive alone
MIN_OF_BUSY = 1.5
"""How many times the busy share the overdue share must be: what is overdue is an estimate, see `_overdue_ns`."""
MIN_FULL_TIME = MIN_SHARE
"""How much of its time the host must have been full to have caused that share of bursts.

An engine or a proxy on it waits for a core as well, and then emits at once what has gathered. How many events that are
does not tell the two apart: nginx without buffering gathered from 12 to 99.98 % of vLLM's on two cores.
"""
MAX_TOKEN_NS = 50_000_000
"""The time between tokens that is taken for a stream's first burst, at most: before it lies the prompt's processing."""


def bursts_of(
    counts: Mapping[str, int], *, output_events: int, first_tokens: int, ttft_ns: float, busy_share: float | None
) -> Bursts | None:
    """The bursts of a stage with these counters; None if there were none.

    `ttft_ns` is summed over its `first_tokens`; `busy_share` is how long the workers were busy or waited for a core,
    None if unknown.
    """
    bursts, events, stream_ns = counts["bursts"], counts["burst_events"], counts["held_area_ns"]
    if not bursts or not output_events or stream_ns <= 0:
        return None
    share = min(1.0, events / output_events)
    first_share = min(1.0, counts["first_bursts"] / first_tokens) if first_tokens else 0.0
    first_overdue_ns, later_overdue_ns = _overdue_ns(counts)
    overdue = (first_overdue_ns + later_overdue_ns) / stream_ns if share >= MIN_SHARE else 0.0
    if ttft_ns and first_share >= MIN_FIRST_SHARE:
        overdue = max(overdue, first_overdue_ns / ttft_ns)
    held_back: bool | None = None
    if busy_share is not None and overdue <= MIN_OF_BUSY * busy_share:
        held_back = False
    elif busy_share is not None and counts["burst_moments"] >= MIN_MOMENTS:
        held_back = True
    return Bursts(
        share=share,
        first_share=first_share,
        events_at_once=events / bursts,
        gap_ms=counts["burst_gap_ns"] / bursts / 1e6,
        overdue=min(1.0, overdue),
        client_busy=busy_share,
        held_back=held_back,
    )


def _overdue_ns(counts: Mapping[str, int]) -> tuple[float, float]:
    """How long output was overdue, summed over streams: in bursts with a stream's first token, and in all others.

    With k events after a gap, spaced evenly if nobody had held them back, all but one of them were overdue.
    """
    first_bursts, first_events = counts["first_bursts"], counts["first_burst_events"]
    later_bursts, later_events = counts["bursts"] - first_bursts, counts["burst_events"] - first_events
    first_ns = later_ns = 0.0
    if first_events:
        waited_ns = counts["first_burst_gap_ns"] * (1 - first_bursts / first_events)
        first_ns = min(waited_ns, (first_events - first_bursts) * MAX_TOKEN_NS)
    if later_events:
        later_ns = (counts["burst_gap_ns"] - counts["first_burst_gap_ns"]) * (1 - later_bursts / later_events)
    return first_ns, later_ns


def on_host(bursts: Bursts | None, full_share: float | None) -> Bursts | None:
    """The same bursts, put down to nobody unless the host is known to have had a core to spare for an engine on it.

    `full_share` is the share of the time in which it had none; None if unknown.
    """
    if bursts is None or not bursts.held_back or (full_share is not None and full_share < MIN_FULL_TIME):
        return bursts
    return msgspec.structs.replace(bursts, held_back=None)


def buffered_words(bursts: Bursts | None) -> str | None:
    """The verdict's message; None if nothing held the output back, or it is not known."""
    if bursts is None or not bursts.held_back:
        return None
    busy = "" if bursts.client_busy is None else f"; vramp was busy {bursts.client_busy:.0%} of it"
    return (
        f"{bursts.share:.0%} of the output events came several at a time, {bursts.events_at_once:.0f} together after "
        f"{bursts.gap_ms:.0f} ms on average; output was overdue {bursts.overdue:.0%} of the time{busy}: something "
        "between the engine and vramp gathers the stream, so TTFT, TPOT and ITL are those of the path, not the "
        "engine's; turn buffering off there (nginx: proxy_buffering off, or the header X-Accel-Buffering: no; HAProxy: "
        "option http-no-delay; a CDN or gateway: neither buffering nor compression of text/event-stream)"
    )
