"""The verdict on contexts that exceed the KV cache: where the hits show it, and nowhere else."""

import msgspec
import pytest

from loadgen.metrics.histogram import Histogram
from loadgen.record.record import Record
from loadgen.record.verdicts import session_verdicts
from loadgen.schema.deltas import ClientDelta, SessionCounts, StageDelta
from loadgen.schema.journal import ServerChanged, StageStarted, Ticked
from loadgen.schema.start import ServerStart
from tests.journal import STARTED

SECOND = 10**9
POOL = 2_100_000


def found(
    *,
    pool: int | None = POOL,
    contexts: int = 3_900_000,
    cached: int | None = 400,
    infinite: int = 960,
    completed: int = 64,
) -> list[str]:
    """The verdicts on ten seconds of 32 live sessions, whose prompts had 1,000 tokens in all."""
    record = Record()
    record.apply(STARTED)
    start = ServerStart(kv_cache_tokens=pool)
    record.apply(ServerChanged(t_s=0.0, state="ready", engine="attach", url="http://a", start=start))
    record.apply(StageStarted(t_s=0.0, index=0, concurrency=32, rate=None, isl=16, osl=16, in_sessions=True))
    delta = StageDelta(
        window_start_ns=0,
        window_end_ns=10 * SECOND,
        sessions=SessionCounts(live_ms=32 * 10_000, context_ms=contexts * 10_000),
        completed=completed,
        recorded_tokens=1000,
        infinite_hit_tokens=infinite,
    )
    if cached is not None:
        delta = msgspec.structs.replace(delta, cached_input_tokens=1000, cached_tokens=cached)
    record.apply(Ticked(t_s=10.0, span_s=10.0, stages={0: delta}, client=ClientDelta(), held=0))
    return [verdict.text for verdict in session_verdicts(record.stages[0])]


def test_contexts_beyond_the_cache_are_a_verdict() -> None:
    assert found() == [
        "32 live contexts need 3.90M tokens, the KV cache has 2.10M: 40% of the prompt tokens hit it, "
        "without its limit 96% would"
    ]


@pytest.mark.parametrize(
    "facts",
    [
        {"contexts": 2_000_000},  # they fit
        {"cached": 900},  # they do not, but their prompts hit all the same
        {"infinite": 450},  # the sessions share too little for a larger cache to help
        {"pool": None},
        {"cached": None},
        {"completed": 63},  # most contexts have not come back yet
    ],
)
def test_otherwise_there_is_none(facts: dict[str, int | None]) -> None:
    assert found(**facts) == []  # type: ignore[arg-type]  # each fact has its type


def test_what_the_client_delayed_is_a_share_of_requests_without_those_that_prime() -> None:
    record, times = Record(), Histogram()
    record.apply(STARTED)
    record.apply(StageStarted(t_s=0.0, index=0, concurrency=4, rate=None, isl=16, osl=16, in_sessions=True))
    times.record_ns([5_000_000] * 100)
    delta = StageDelta(latency={"ttft": times.encode(), "priming_ttft": times.encode()})
    record.apply(Ticked(t_s=10.0, span_s=10.0, stages={0: delta}, client=ClientDelta(unsure_ttfts=9), held=0))
    assert record.stages[0].limit() == "9 of 100 TTFTs may be too long because of the client"
