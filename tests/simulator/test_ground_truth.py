import time
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.simulator.ground_truth import GroundTruth, Samples, ServedHistory, ServedStream
from tests.simulator.conftest import Running, body_of, events_of, read_all, request

MS = 1_000_000


def served(stamps: list[int], tokens: list[int] | None = None) -> ServedStream:
    stream = ServedStream(received_ns=0)
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
    truth = GroundTruth()
    truth.streamed(served([10 * MS, 30 * MS, 50 * MS], [3, 4, 1]))
    latency = truth.report(late_steps=0, steps=0)["latency_ms"]
    assert latency["ttft"]["mean"] == 10
    assert latency["tpot"]["mean"] == 8
    assert latency["itl"]["max"] == 20
    assert latency["itl"]["mean"] == 12.5
    assert latency["chunk_gap"]["mean"] == 20
    assert latency["e2e"]["mean"] == 50


def test_a_single_token_has_no_time_per_output_token() -> None:
    truth = GroundTruth()
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


def test_how_long_a_request_took_to_come_is_apart_from_its_ttft(server: Running) -> None:
    head, _, body = request(2, close=True).partition(b"\r\n\r\n")
    began_ns = time.time_ns()
    with server.connect() as sock:
        sock.sendall(head + b"\r\nexpect: 100-continue\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 100")
        between_ns = time.time_ns()
        sock.sendall(body)
        sent_ns = time.time_ns()
        assert len(events_of(body_of(read_all(sock)))) == 3
        over_ns = time.time_ns()
    latency = server.truth()["latency_ms"]
    assert 0 < latency["receive"]["max"] <= (sent_ns - began_ns) / 1e6
    assert latency["ttft"]["max"] <= (over_ns - between_ns) / 1e6


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


Stream = tuple[int, list[tuple[int, int]], bool]
"""When it came, its events as (stamp, tokens), and whether it completed."""


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    received = draw(st.integers(0, 200))
    gaps = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=6))
    events, at = [], received
    for gap, tokens in gaps:
        at += gap
        events.append((at, tokens))
    return received, events, draw(st.booleans())


def history_of(served: list[Stream], steps: dict[int, int]) -> ServedHistory:
    history = ServedHistory()
    for at, load in sorted(steps.items()):
        history.step(at, load)
    for received, events, completed in served:
        stream = history.arrived(received)
        stream.stamps.extend(at for at, _ in events)
        stream.tokens = [tokens for _, tokens in events]
        if completed:
            history.ended(stream, completed=True)
            stream.ended_ns = events[-1][0] if events else received
    return history


def by_hand(served: list[Stream], since: int, until: int) -> dict[str, list[int]]:
    """Every value of every latency, by the letter of the definitions."""
    found: dict[str, list[int]] = {name: [] for name in ("ttft", "itl", "chunk_gap", "tpot", "e2e")}
    for received, events, completed in served:
        inside = [event for event in events if since <= event[0] <= until]
        wholly = bool(events) and received >= since and events[-1][0] <= until and completed
        if inside and received >= since:
            found["ttft"].append(events[0][0] - received)
        for (before, _), (at, tokens) in pairwise(inside):
            found["chunk_gap"].append(at - before)
            found["itl"].append((at - before) // tokens)
        after_first = sum(tokens for _, tokens in inside[1:])
        if after_first and (wholly or after_first + inside[0][1] >= 8):
            found["tpot"].append((inside[-1][0] - inside[0][0]) // after_first)
        if wholly:
            found["e2e"].append(events[-1][0] - received)
    return found


@given(st.lists(streams(), max_size=5), st.integers(0, 200), st.integers(0, 400))
def test_a_window_has_what_happened_within_it(served: list[Stream], since: int, length: int) -> None:
    window = history_of(served, {0: 1}).window(since, since + length)
    for name, values in by_hand(served, since, since + length).items():
        summary = window["latency_ms"][name]
        assert summary["count"] == len(values)
        assert summary["max"] == (max(values) / 1e6 if values else None)
        assert summary["mean"] == (pytest.approx(sum(values) / len(values) / 1e6) if values else None)
    inside = [tokens for _, events, _ in served for at, tokens in events if since <= at <= since + length]
    assert window["tokens"]["output"] == sum(inside)


@given(st.lists(streams(), max_size=5), st.dictionaries(st.integers(1, 400), st.integers(1, 3)), st.integers(0, 200))
def test_loads_are_parts_of_the_window(served: list[Stream], steps: dict[int, int], since: int) -> None:
    window = history_of(served, {0: 9} | steps).window(since, 500)
    parts = window["by_streams"].values()
    assert sum(part["tokens"] for part in parts) == window["tokens"]["output"]
    for name in ("ttft", "itl", "chunk_gap"):
        assert sum(part[name]["count"] for part in parts) == window["latency_ms"][name]["count"]


def test_the_load_of_an_event_is_that_of_its_step() -> None:
    history = history_of([(0, [(12, 1), (21, 1), (35, 2)], True)], {10: 3, 20: 4, 30: 3})
    loads = history.window()["by_streams"]
    assert {load: part["tokens"] for load, part in loads.items()} == {"3": 3, "4": 1}
    assert loads["3"]["ttft"]["mean"] == 12 / 1e6
    assert (loads["3"]["chunk_gap"]["mean"], loads["3"]["itl"]["mean"]) == (14 / 1e6, 7 / 1e6)
    assert (loads["4"]["ttft"]["count"], loads["4"]["itl"]["mean"]) == (0, 9 / 1e6)


def test_streams_are_carried_in_and_over() -> None:
    served: list[Stream] = [(0, [(5, 1), (15, 1)], True), (12, [(13, 1), (18, 1)], True), (17, [(30, 1)], True)]
    requests = history_of(served, {0: 1}).window(10, 20)["requests"]
    assert requests == {"received": 2, "completed": 2, "carried_in": 1, "carried_over": 1}


def test_a_span_is_from_the_first_request_to_the_last_event_inside() -> None:
    served: list[Stream] = [(0, [(5, 1), (15, 1)], True), (12, [(13, 1), (18, 1)], True), (17, [(30, 1)], True)]
    history = history_of(served, {0: 1})
    assert history.window()["span_s"] == 30 / 1e9
    assert history.window(10, 20)["span_s"] == (18 - 12) / 1e9
    assert history.window(40, 50)["span_s"] == 0


def test_what_is_forgotten_is_said() -> None:
    history = ServedHistory(kept_events=200, kept_steps=10)
    for start in range(0, 1000, 10):
        history.step(start, 1)
        stream: ServedStream = history.arrived(start)
        stream.stamps.extend((start + 1, start + 2))
        history.ended(stream, completed=True)
    assert history.window()["whole"] is False
    assert history.window()["requests"]["received"] == 200 // (32 + 2)
    last_end_ns = stream.ended_ns
    assert history.window(last_end_ns)["whole"] is True
    history.forget()
    assert history.window()["whole"] is True


def test_over_http(server: Running) -> None:
    server.stream(20)
    window: dict[str, Any] = server.client.get("/truth", params={"since": 1}).json()
    assert window["whole"] is True
    assert window["requests"] == {"received": 1, "completed": 1, "carried_in": 0, "carried_over": 0}
    assert window["latency_ms"]["itl"]["count"] == 19
    assert window["by_streams"]["1"]["tokens"] == server.truth()["by_streams"]["1"]["tokens"] == 20
    later = server.client.get("/truth", params={"since": window["until_ns"]}).json()
    assert later["requests"]["received"] == later["tokens"]["output"] == 0
    before = server.client.get("/truth?until=1").json()
    assert (before["requests"]["received"], before["by_streams"]) == (0, {})


@pytest.mark.parametrize("query", ["since", "since=x", "from=1", "since=1.5"])
def test_a_window_that_is_none(client: httpx.Client, query: str) -> None:
    response = client.get(f"/truth?{query}")
    assert response.status_code == 400
    assert query in response.json()["error"]["message"]
