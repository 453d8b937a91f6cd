import time
from itertools import pairwise

import pytest

from loadgen.simulator.history import Served
from loadgen.simulator.truth import Samples, Truth
from tests.simulator.conftest import Running, body_of, events_of, request

MS = 1_000_000


def served(stamps: list[int], tokens: list[int] | None = None) -> Served:
    stream = Served(received_ns=0)
    stream.stamps.extend(stamps)
    stream.tokens = tokens
    return stream


def test_percentiles_are_nearest_rank() -> None:
    samples = Samples()
    samples.add([value * MS for value in range(1, 101)])
    assert samples.summary() == {"count": 100, "mean": 50.5, "p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}


def test_nothing_is_none() -> None:
    assert Samples().summary() == {"count": 0, "mean": None, "p50": None, "p90": None, "p99": None, "max": None}


def test_memory_is_bounded_and_totals_stay_exact() -> None:
    samples = Samples(exact=100)
    for start in range(0, 10_000, 10):
        samples.add([value * MS for value in range(start, start + 10)])
    summary = samples.summary()
    assert len(samples._kept) <= 100
    assert (summary["count"], summary["mean"], summary["max"]) == (10_000, 4999.5, 9999.0)
    assert summary["p50"] == pytest.approx(5000, rel=0.03)
    assert {b - a for a, b in pairwise(samples._kept)} == {samples._stride * MS}


def test_tokens_of_the_first_event_are_not_time_per_output_token() -> None:
    truth = Truth()
    truth.streamed(served([10 * MS, 30 * MS, 50 * MS], [3, 4, 1]))
    latency = truth.report(late_steps=0, steps=0)["latency_ms"]
    assert latency["ttft"]["mean"] == 10
    assert latency["tpot"]["mean"] == 8
    assert latency["itl"]["max"] == 20
    assert latency["itl"]["mean"] == 12.5
    assert latency["chunk_gap"]["mean"] == 20
    assert latency["e2e"]["mean"] == 50


def test_a_single_token_has_no_time_per_output_token() -> None:
    truth = Truth()
    truth.streamed(served([10 * MS]))
    assert truth.report(late_steps=0, steps=0)["latency_ms"]["tpot"]["count"] == 0


def test_agrees_with_what_a_raw_client_sees(server: Running) -> None:
    # The client's clock starts before and stops after the server's: it can only have seen more time pass.
    with server.connect() as sock:
        sent = time.time_ns()
        sock.sendall(request(40))
        data, stamps = b"", []
        while not data.endswith(b"0\r\n\r\n"):
            data += sock.recv(65536)
            stamps.append(time.time_ns())
    assert len(events_of(body_of(data))) == 41
    truth = server.truth()
    assert truth["requests"] == {"received": 1, "completed": 1, "aborted": 0, "failed": 0, "rejected": 0, "open": 0}
    assert truth["tokens"] == {"input": 20, "output": 40}
    assert truth["latency_ms"]["itl"]["count"] == 39
    assert 0 < truth["latency_ms"]["ttft"]["max"] < truth["latency_ms"]["e2e"]["max"] <= (stamps[-1] - sent) / 1e6
    assert truth["span_s"] * 1e3 == pytest.approx(truth["latency_ms"]["e2e"]["max"])
    assert truth["peak_concurrency"] == 1
    assert truth["latency_ms"]["tpot"]["max"] == pytest.approx(truth["latency_ms"]["itl"]["mean"], rel=1e-3)
    assert sum(truth["timestamps"].values()) == 1


def test_counts_streams_that_are_open_at_once(server: Running) -> None:
    server.faults("stall:after=0")
    socks = [server.connect() for _ in range(5)]
    for sock in socks:
        sock.sendall(request(3))
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
    assert server.truth()["peak_concurrency"] == server.truth()["requests"]["open"] == 5
    for sock in socks:
        sock.close()
    while server.truth()["requests"]["open"]:
        pass
    assert server.truth()["peak_concurrency"] == 5
    assert server.truth()["requests"]["aborted"] == 5
