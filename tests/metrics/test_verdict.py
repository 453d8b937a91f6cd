"""Whose fault is it, as a table."""

import pytest

from loadgen.metrics.snapshot import EngineView
from loadgen.metrics.verdict import ClientFacts, client_limit, engine_limit


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (ClientFacts(), None),
        (ClientFacts(cpu_share=0.5, read_lag_p99_ms=3.0, coalesced_share=0.01, held_mean=63.9, wanted=64), None),
        (ClientFacts(cpu_share=0.95), "95% of their cores"),
        (ClientFacts(read_lag_p99_ms=60.0), "read lag p99 60.0 ms"),
        (ClientFacts(read_lag_p99_ms=60.0, realtime_share=0.0), "read late (load.realtime helps; it needs root or CAP"),
        (ClientFacts(coalesced_share=0.2), "20.0% of the reads"),
        (ClientFacts(held_mean=50.0, wanted=64), "held 50.0 of 64"),
        (ClientFacts(send_lag_mean_ms=10.0, e2e_mean_ms=100.0), "10.0 ms late on average, 10.0%"),
        (ClientFacts(send_lag_mean_ms=1.0, e2e_mean_ms=100.0), None),
        (ClientFacts(send_lag_p99_ms=12.0, mean_gap_ms=1000.0), "send lag p99 12.0 ms: the client did not keep"),
        (ClientFacts(send_lag_mean_ms=0.6, send_lag_p99_ms=2.0, mean_gap_ms=1.0), "0.60 ms late on average, 60% of"),
        (ClientFacts(send_lag_mean_ms=0.1, send_lag_p99_ms=2.0, mean_gap_ms=2.0), None),
        (ClientFacts(send_lag_mean_ms=0.6), None),
    ],
)
def test_the_client(facts: ClientFacts, words: str | None) -> None:
    verdict = client_limit(facts)
    assert (verdict is None) == (words is None)
    assert words is None or words in (verdict or "")


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (None, None),
        (EngineView(), None),
        (EngineView(running=8, waiting=0, kv_usage=0.99), None),
        (EngineView(running=8, waiting=3, kv_usage=0.2), "engine-limited: queueing, 3 waiting"),
        (EngineView(running=8, waiting=3), "engine-limited"),
        (EngineView(running=8, waiting=3, kv_usage=0.97), "KV-limited: 3 waiting, KV cache 97% full"),
    ],
)
def test_the_engine(engine: EngineView | None, words: str | None) -> None:
    verdict = engine_limit(engine)
    assert (verdict is None) == (words is None)
    assert words is None or words in (verdict or "")
