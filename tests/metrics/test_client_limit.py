"""Whether the client was the limit, as tables."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.client_limit import ClientFacts, cap_held_back, client_limit
from tests.metrics.served import served

SEEN = ClientFacts(span_s=10.0, lags=5000, reads=5000, sends=500)
"""Enough for every rule."""


def facts(**known: float) -> ClientFacts:
    return msgspec.structs.replace(SEEN, **known)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (ClientFacts(), None),
        (facts(), None),
        (facts(cpu_share=0.5, read_lag_p99_ms=3.0, coalesced_share=0.01, held_mean=63.9, wanted=64), None),
        (facts(workers_lost=1), "a worker died, and a part of the load with it"),
        (facts(workers_lost=2, cpu_share=0.95), "2 workers died"),
        (facts(stood_still_s=4.8), "stood still for at least 4.8 s"),
        (facts(cpu_share=0.95), "95% of their cores"),
        (facts(read_lag_p99_ms=60.0), "read lag p99 60.0 ms: the client read late"),
        (facts(coalesced_share=0.2), "20.0% of the reads"),
        (facts(ttfts=500, unsure_ttfts=2), None),
        (facts(ttfts=500, unsure_ttfts=3), "3 of 500 TTFTs may be too long because of the client"),
        (facts(ttfts=99, unsure_ttfts=9), None),
        # A host's part of a stage has few: one of them proves nothing.
        (facts(ttfts=124, unsure_ttfts=1), None),
        (facts(ttfts=124, unsure_ttfts=2), "2 of 124 TTFTs may be too long because of the client"),
        (facts(ttfts=124, resent_requests=1), "1 of 124 requests had to be sent again"),
        (facts(ttfts=500, resent_requests=2), None),
        (facts(ttfts=500, resent_requests=2), None),
        (facts(ttfts=500, resent_requests=3), "3 of 500 requests had to be sent again on new connections"),
        (facts(held_mean=50.0, wanted=64), "held 50.0 of 64"),
        (facts(send_lag_mean_ms=10.0, e2e_mean_ms=100.0), "10.0 ms late on average, 10.0%"),
        (facts(send_lag_mean_ms=1.0, e2e_mean_ms=100.0), None),
        (facts(send_lag_p99_ms=12.0, mean_gap_ms=1000.0), "send lag p99 12.0 ms: the client did not keep"),
        (facts(send_lag_mean_ms=0.6, send_lag_p99_ms=2.0, mean_gap_ms=1.0), "0.60 ms late on average, 60% of"),
        (facts(send_lag_mean_ms=0.1, send_lag_p99_ms=2.0, mean_gap_ms=2.0), None),
        (facts(send_lag_mean_ms=0.6), None),
        (facts(unsent=4), None),
        (facts(unsent=100), "100 arrivals were not sent in time"),
        (ClientFacts(sends=2, unsent=2), None),
    ],
)
def test_what_limits_the_client(facts: ClientFacts, words: str | None) -> None:
    verdict = client_limit(facts)
    assert (verdict is None) == (words is None)
    assert words is None or words in (verdict or "")


BROKEN = facts(
    cpu_share=1.0,
    read_lag_p99_ms=900.0,
    coalesced_share=1.0,
    send_lag_mean_ms=90.0,
    e2e_mean_ms=100.0,
    send_lag_p99_ms=900.0,
    mean_gap_ms=1.0,
)


@given(st.floats(0, 1.99), st.integers(0, 99), st.integers(0, 29))
def test_too_little_is_no_verdict(span_s: float, reads: int, sends: int) -> None:
    assert client_limit(msgspec.structs.replace(BROKEN, span_s=span_s, lags=reads, reads=reads, sends=sends)) is None


@pytest.mark.parametrize(
    ("enough", "words"),
    [
        ({"span_s": 2.0}, "of their cores"),
        ({"lags": 100}, "read lag"),
        ({"reads": 100}, "of the reads"),
        ({"sends": 30}, "late on average"),
    ],
)
def test_each_rule_asks_for_its_own_evidence(enough: dict[str, float], words: str) -> None:
    nothing = {"span_s": 0.0, "lags": 0, "reads": 0, "sends": 0}
    assert words in (client_limit(msgspec.structs.replace(BROKEN, **{**nothing, **enough})) or "")


def test_a_p99_of_few_requests_is_none_and_their_mean_is_one() -> None:
    few = facts(sends=99, send_lag_p99_ms=900.0, send_lag_mean_ms=0.1, mean_gap_ms=1.0)
    assert client_limit(few) is None
    assert client_limit(msgspec.structs.replace(few, sends=100)) is not None


@pytest.mark.parametrize(
    ("known", "named"),
    [
        ({}, False),
        ({"waited_share": 0.01, "realtime_share": 0.0}, False),
        ({"waited_share": 0.2, "realtime_share": 0.0}, True),
        ({"waited_share": 0.2, "realtime_share": 0.4}, False),
    ],
)
def test_the_switch_is_named_where_the_cores_are_full_and_it_is_off(known: dict[str, float], named: bool) -> None:
    verdict = client_limit(facts(read_lag_p99_ms=60.0, **known)) or ""
    assert ("load.realtime = true lets them go first (needs root or CAP_SYS_NICE)" in verdict) == named
    assert ("waited for one 20% of the time" in verdict) == (known.get("waited_share") == 0.2)


@pytest.mark.parametrize(
    ("rate", "most", "unsent", "waited_ms", "words"),
    [
        (None, None, 0, None, None),
        (200.0, None, 900, 500.0, None),
        (200.0, 20, 0, None, None),
        (200.0, 20, 0, 0.3, None),
        (
            *(200.0, 20, 900, 500.0),
            "target rate 200/s, 20 streams at most: 900 arrivals were not sent, as max_concurrency asks",
        ),
        (
            *(200.0, 20, 0, 312.4),
            "target rate 200/s, 20 streams at most: requests waited 312 ms for a slot on average, "
            "as max_concurrency asks",
        ),
    ],
)
def test_what_a_cap_held_back(
    rate: float | None, most: int | None, unsent: int, waited_ms: float | None, words: str | None
) -> None:
    assert cap_held_back(rate, most, unsent=unsent, waited_mean_ms=waited_ms) == words


@pytest.mark.parametrize(("changes", "failed"), [({"thinks": True}, 0), ({}, 100)])
def test_conversations_that_pause_and_streams_that_fail_hold_less(changes: dict[str, Any], failed: int) -> None:
    stage = served(1, concurrency=64, **changes)
    stage.counters["held_area_ns"] = round(36 * stage.window_s * 1e9)
    stage.counters["failed"] = failed
    assert stage.limit() is None


def test_a_load_that_moves_is_not_held_to_where_it_began() -> None:
    standing, moving = served(1, concurrency=64), served(1, concurrency=64, steps=((0.0, 64.0), (15.0, 8.0)))
    for stage in (standing, moving):
        stage.counters["held_area_ns"] = round(36 * stage.window_s * 1e9)
    assert standing.limit() == "held 36.0 of 64 streams"
    assert moving.limit() is None
