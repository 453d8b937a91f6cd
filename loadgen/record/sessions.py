"""The figures of a stage whose load is sessions: how many lived and how they ended, and whether their
contexts fit into the KV cache.
"""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.format import counted, number
from loadgen.record.stage import StageRecord
from loadgen.schema.finding import Verdict
from loadgen.schema.result import SessionsResult

MIN_REQUESTS_A_SESSION = 2  # before its second request, no context has come back
MIN_LOST = 0.1  # of the prompt tokens, which a cache without limit would have held: less may be the cache's granularity


def sessions_result(stage: StageRecord) -> SessionsResult | None:
    """What became of its sessions; None for another load."""
    counts, window_s = stage.metrics.sessions, stage.window_s
    if counts is None or not stage.started.in_sessions:
        return None
    per_token_ms = stage.histogram("e2e_per_token").percentile_ms(90)
    return SessionsResult(
        live=counts["live_ms"] / 1000 / window_s if window_s else None,
        context_tokens=counts["context_ms"] / 1000 / window_s if window_s else None,
        skipped_s=counts["skipped_ms"] / 1000,
        e2e_interactivity=1000 / per_token_ms if per_token_ms else None,
        **{name: counts[name] for name in _COUNTS},
    )


_COUNTS = "begun begun_inside finished cut over_context failed lost primed gaps_cut".split()


def session_verdicts(stage: StageRecord) -> Iterator[Verdict]:
    """That the contexts of the live sessions exceed the KV cache, where the hits show it."""
    found, hits = sessions_result(stage), stage.hits
    if found is None or hits is None or found.context_tokens is None or hits.pool_tokens is None:
        return
    actual = hits.measured  # the engine's counters have the requests that prime, too, which hit nothing
    if actual is None or hits.infinite is None or found.context_tokens <= hits.pool_tokens:
        return
    if hits.infinite - actual < MIN_LOST or stage.counters["completed"] < MIN_REQUESTS_A_SESSION * (found.live or 0):
        return
    live = counted(round(found.live or 0), "live context")
    needs = f"{live} need {number(found.context_tokens)} tokens, the KV cache has {number(hits.pool_tokens)}"
    text = f"{needs}: {actual:.0%} of the prompt tokens hit it, without its limit {hits.infinite:.0%} would"
    yield Verdict("contexts-exceed-cache", stage.subject, text)
