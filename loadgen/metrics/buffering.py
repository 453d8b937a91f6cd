"""Whether something between engine and client holds a stage's streams back, by how the bytes of several tokens arrived.

Events that a client finds together in one read either waited for it, or came together. The read lag decides: see
`Stream.punctual_ns`. What comes together although the client reads in time was gathered before it reached this
machine's kernel: by a proxy, a gateway, or the server's own front end.
"""

from __future__ import annotations

from loadgen.metrics.result import HeldBack
from loadgen.metrics.stage_record import StageRecord

MIN_READS = 10
MIN_SHARE = 0.1  # of the output events; an engine's front end may write some tokens together under load


def held_back(stage: StageRecord) -> HeldBack | None:
    """How the streams of a stage are held back; None if they are not, or too little is known."""
    client = stage.client
    reads, further = client.held
    events = sum(stage.histogram(name).count for name in ("chunk_gap", "ttft", "first_wave_ttft"))
    if reads < MIN_READS or not client.mostly_held or not events:
        return None
    share = min(1.0, (reads + further) / events)
    if share < MIN_SHARE:
        return None
    at_once, between_ms = 1 + further / reads, stage.histogram("tpot").mean_ms()
    return HeldBack(
        share=share,
        events_at_once=at_once,
        delay_ms=None if between_ms is None else (at_once - 1) * between_ms,
        read_lag_ms=client.read_lag.percentile_ms(50),
    )


def buffered(stage: StageRecord) -> str | None:
    """The verdict's message; None if the streams are not held back."""
    held = held_back(stage)
    if held is None:
        return None
    delay = "" if held.delay_ms is None else f", the first of them held back for about {held.delay_ms:.0f} ms"
    lag = "" if held.read_lag_ms is None else f" within {max(0.01, held.read_lag_ms):.2f} ms"
    return (
        f"{held.share:.0%} of the output events came several at a time, {held.events_at_once:.1f} together on average"
        f"{delay}, while vramp read them{lag}: something between the engine and vramp gathers the stream, so TPOT and "
        "ITL are those of the path, not the engine's; in a proxy turn buffering off (nginx: proxy_buffering off, or "
        "the header X-Accel-Buffering: no; HAProxy: option http-no-delay; a CDN or gateway: neither buffering nor "
        "compression of text/event-stream)"
    )
