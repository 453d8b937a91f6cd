"""Prefix cache hits as shares of prompt tokens: what the server says, and what a cache could have held.

The ceilings are computed by the workers from the requests of sessions as they are sent, without a limit and at the size
of the engine's KV cache. Answers are not in them, as recorded histories repeat recorded answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.schema.engine import EngineSpan
from loadgen.schema.result import Hits

NO_HITS = Hits(None, None, None, None, None)


def hits_of(counts: Mapping[str, int], *, pool_tokens: int | None, engine: EngineSpan | None = None) -> Hits | None:
    """The hits of a stage or a step; None if nothing is known of them."""
    cached, recorded = counts.get("cached_input_tokens", 0), counts.get("recorded_tokens", 0)
    if not cached and not recorded:
        return None
    of_engine = None
    if engine is not None:
        # By source if the engine has that: lookups are counted again for requests that are scheduled again.
        by_source = engine.prompt_tokens_by_source
        total = sum(by_source.values())
        of_engine = 1 - by_source.get("local_compute", 0) / total if total else engine.prefix_hit_rate
    pool = counts.get("pool_hit_tokens", 0) / recorded if recorded and pool_tokens is not None else None
    return Hits(
        measured=counts.get("cached_tokens", 0) / cached if cached else None,
        engine=of_engine,
        infinite=counts.get("infinite_hit_tokens", 0) / recorded if recorded else None,
        pool=pool,
        pool_tokens=pool_tokens,
    )
