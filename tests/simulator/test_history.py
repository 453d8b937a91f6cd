"""The truth of a window and of a load, against the definitions written out stream by stream."""

from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.simulator.history import History, Served
from tests.simulator.conftest import Running

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


def history_of(served: list[Stream], steps: dict[int, int]) -> History:
    history = History()
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


def test_what_is_forgotten_is_said() -> None:
    history = History(kept_events=200, kept_steps=10)
    for start in range(0, 1000, 10):
        history.step(start, 1)
        stream: Served = history.arrived(start)
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
