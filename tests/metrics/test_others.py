"""Others' traffic is what the engine served beyond our own, whenever the two were looked at."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadgen.metrics.others import LAG_S, OwnTraffic, others_now, others_of
from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.schema.engine import EngineStage, EngineView, OthersTraffic, OwnRequests
from loadgen.schema.journal import EngineMeasured, StageEnded, Ticked
from tests.journal import record_of
from tests.metrics.served import started

RUN_S, TICK_S, PROMPT = 60.0, 0.25, 512
moments = st.floats(0.0, RUN_S, allow_nan=False)
bursts = st.lists(st.tuples(moments, st.integers(1, 64)), max_size=30)


@dataclass
class Requests:
    """When requests ended, and how many at once; each has a prompt of 512 tokens and an answer of 10."""

    ends: list[tuple[float, int]]

    def within(self, since_s: float, until_s: float) -> int:
        return sum(many for t_s, many in self.ends if since_s < t_s <= until_s)


def reported(own: Requests, lag_s: float, until_s: float = RUN_S + 2.0) -> OwnTraffic:
    """Ours as ticks tell it, each so much later."""
    traffic = OwnTraffic()
    ticks = [number * TICK_S for number in range(int(until_s / TICK_S) + 1)]
    for before_s, t_s in pairwise([-1.0, *ticks]):
        ended = own.within(before_s - lag_s, t_s - lag_s)
        traffic.add(t_s, requests=ended, prompt_tokens=PROMPT * ended, generation_tokens=10 * ended, held=0)
    return traffic


def reported_late(own: Requests, lateness: list[float]) -> OwnTraffic:
    """Ours as a busy machine tells it: each tick is of its quarter, and comes when it comes, never before another."""
    traffic, t_s = OwnTraffic(), 0.0
    for number in range(int((RUN_S + 10.0) / TICK_S)):
        due_s = number * TICK_S
        t_s = max(t_s + 0.001, due_s + lateness[number % len(lateness)])
        ended = own.within(due_s - TICK_S - 0.3, due_s - 0.3)
        traffic.add(
            t_s,
            requests=ended,
            prompt_tokens=PROMPT * ended,
            generation_tokens=10 * ended,
            held=own.within(due_s, RUN_S),
            behind_s=t_s - due_s,
        )
    return traffic


def view(served: int, since_s: float, until_s: float) -> EngineView:
    """Rates as they are shown: rounded."""
    span_s = until_s - since_s
    return EngineView(
        running=0.0,
        waiting=0.0,
        requests_per_s=round(served / span_s, 1),
        prompt_tokens_per_s=round(PROMPT * served / span_s, 1),
        generation_tokens_per_s=round(10 * served / span_s, 1),
        between_s=(since_s, until_s),
        span_s=span_s,
    )


@given(bursts, st.floats(0.0, LAG_S - TICK_S), moments)
def test_without_other_traffic_none_is_seen(ends: list[tuple[float, int]], lag_s: float, until_s: float) -> None:
    own, since_s = Requests(ends), max(0.0, until_s - 5.0)
    if until_s - since_s < 0.5:
        return
    seen = others_now(view(own.within(since_s, until_s), since_s, until_s), reported(own, lag_s))
    assert seen == OthersTraffic(0.0, 0.0, 0.0, 0.0)
    assert not seen.seen


@given(bursts, st.lists(st.floats(0.0, 3.0), min_size=1, max_size=40), moments, st.floats(0.0, 3.0))
@example(ends=[(10.0, 8)], lateness=[0.0], until_s=12.0, reading_s=3.0)
def test_late_ticks_and_long_readings_do_not_look_like_other_traffic(
    ends: list[tuple[float, int]], lateness: list[float], until_s: float, reading_s: float
) -> None:
    """The engine's gauges are of the beginning of a reading, when what has ended by now was open."""
    own, since_s = Requests(ends), max(0.0, until_s - 5.0)
    if until_s - since_s < 0.5 or until_s < reading_s:
        return
    reported = reported_late(own, lateness)
    engine = replace(
        view(own.within(since_s, until_s), since_s, until_s),
        running=float(own.within(until_s - reading_s, RUN_S)),
        reading_s=reading_s,
    )
    assert reported.reaches(until_s)
    seen = others_now(engine, reported)
    assert seen is not None and not seen.seen, seen


@given(bursts, st.floats(0.0, LAG_S - TICK_S), st.integers(0, 500), st.floats(1.0, RUN_S))
def test_others_are_found_within_what_may_be_ours(
    ends: list[tuple[float, int]], lag_s: float, others: int, until_s: float
) -> None:
    """What is said of others is right but for what of ours lies at one of the edges; and never negative."""
    own, since_s = Requests(ends), max(0.0, until_s - 20.0)
    ours, span_s = own.within(since_s, until_s), until_s - since_s
    around = own.within(since_s - LAG_S, since_s + LAG_S) + own.within(until_s - LAG_S, until_s + LAG_S)
    served = EngineStage(requests=ours + others, between_s=(since_s, until_s))
    seen = others_of(served, reported(own, lag_s), None)
    assert seen is not None
    assert seen.requests_per_s is not None
    found = seen.requests_per_s * span_s
    assert found >= 0
    if found or others > 2 * around + 0.01 * ours + 1:
        assert others - around - 1e-6 <= found <= others + around + 1e-6


@given(bursts, moments)
def test_bounds_are_in_order_and_hold_the_truth(ends: list[tuple[float, int]], since_s: float) -> None:
    own = Requests(ends)
    bounds = reported(own, 0.4).count("requests", since_s, since_s + 5.0)
    assert bounds.least <= bounds.likely <= bounds.most
    assert bounds.least <= own.within(since_s, since_s + 5.0) <= bounds.most


def test_slow_readings_of_a_server_do_not_look_like_other_traffic() -> None:
    """The rates are of the middles of two readings of 2 s each; what they counted is anywhere in those."""
    own = Requests([(t_s / 4, 2) for t_s in range(240)])
    fastest = own.within(10.0, 16.0) / 4.0  # from the beginning of the first reading to the end of the last
    engine = EngineView(requests_per_s=fastest, between_s=(10.0, 16.0), span_s=4.0)
    seen = others_now(engine, reported(own, 0.3))
    assert seen is not None and seen.requests_per_s == 0.0


@pytest.mark.parametrize(("others", "seen"), [(0, 0.0), (3, 5.0)])
def test_streams_shorter_than_a_tick_are_ours(others: int, seen: float) -> None:
    """Two were open while the engine was read, and none at the end of any tick."""
    own = OwnTraffic()
    for number in range(80):
        own.add(number * TICK_S, requests=1, prompt_tokens=10, generation_tokens=4, held=0, most_held=2)
    engine = EngineView(running=2.0 + others, waiting=0.0, between_s=(10.0, 15.0), span_s=5.0)
    assert others_now(engine, own) == OthersTraffic(running=seen)


def test_a_canary_that_ended_and_one_that_began_in_a_tick_are_both_ours() -> None:
    canaries = OwnRequests(open=1, requests=1)
    ticks = [replace(tick(n * TICK_S, engine=engine_at(n * TICK_S, 0.0, 2.0)), own=canaries) for n in range(1, 40)]
    others = record_of([started(), *ticks]).others
    assert others is not None and others.running == 0.0


def test_without_any_of_our_own_everything_is_theirs() -> None:
    own = OwnTraffic()
    own.add(10.0, requests=0, prompt_tokens=0, generation_tokens=0, held=0)
    engine = EngineView(
        running=3.0, waiting=2.0, generation_tokens_per_s=100.0, kind="sglang", between_s=(1.0, 6.0), span_s=5.0
    )
    assert others_now(engine, own) == OthersTraffic(running=5.0, generation_tokens_per_s=100.0)


@pytest.mark.parametrize("silent", [EngineView(), EngineView(running=3.0)])
def test_metrics_without_a_time_say_nothing_about_others(silent: EngineView) -> None:
    assert others_now(silent, OwnTraffic()) is None


def test_tokens_that_one_of_both_tells_at_the_end_only_are_not_distinguished() -> None:
    own = OwnTraffic()
    for number in range(80):
        own.add(number * TICK_S, requests=1, prompt_tokens=100, generation_tokens=40, held=8)
    engine = EngineView(
        running=12.0,
        requests_per_s=9.0,
        prompt_tokens_per_s=9e3,
        generation_tokens_per_s=3e3,
        kind="tgi",
        between_s=(10, 15),
        span_s=5,
    )
    assert others_now(engine, own) == OthersTraffic(running=4.0, requests_per_s=5.0)


def test_a_long_run_takes_bounded_memory_and_still_tells() -> None:
    own = OwnTraffic()
    for number in range(30_000):
        own.add(number * TICK_S, requests=2, prompt_tokens=20, generation_tokens=200, held=4)
    bounds = own.count("requests", 600.0, 7200.0)
    assert bounds.least <= 8 * 6600 <= bounds.most
    assert bounds.most - bounds.least < 0.01 * 8 * 6600


def test_words_say_what_is_known() -> None:
    assert OthersTraffic(running=2.5, requests_per_s=0.0, generation_tokens_per_s=1234.0).words == (
        "2.50 running, 1.23k tok/s out"
    )


# In the fold.


def tick(t_s: float, *, output: int = 0, requests: int = 0, held: int = 0, engine: EngineView | None = None) -> Ticked:
    client = ClientDelta(requests=requests, input_tokens=10 * requests, output_tokens=output)
    return Ticked(t_s=t_s, span_s=TICK_S, stages={0: StageDelta()}, client=client, held=held, engine=engine)


def engine_at(t_s: float, tokens_per_s: float, running: float) -> EngineView:
    until_s = float(int(t_s))
    since_s = max(0.0, until_s - 5.0)
    return EngineView(
        running=running,
        waiting=0.0,
        generation_tokens_per_s=tokens_per_s,
        between_s=(since_s, until_s) if until_s else None,
        span_s=until_s - since_s or None,
    )


@pytest.mark.parametrize(
    ("concurrency", "ours", "served", "seen", "verdict"),
    [(4, 100, 400.0, False, False), (4, 100, 1400.0, True, True), (0, 0, 400.0, True, False)],
)
def test_a_stage_says_whether_others_were_there(
    concurrency: int, ours: int, served: float, seen: bool, verdict: bool
) -> None:
    """Beside no load of ours their traffic is what is looked at, and no verdict."""
    running = concurrency + (4.0 if seen else 0.0)
    ticks = [
        tick(
            n * TICK_S,
            output=ours,
            requests=ours // 100,
            held=concurrency,
            engine=engine_at(n * TICK_S, served, running),
        )
        for n in range(1, 81)
    ]
    reported = EngineStage(generation_tokens=int(20 * served), between_s=(0.0, 20.0))
    record = record_of(
        [
            started(concurrency=concurrency, settle_s=0.0),
            *ticks,
            StageEnded(t_s=20.0, index=0, reason="its time was up"),
            EngineMeasured(t_s=20.1, index=0, engine=reported),
            *(tick(20.0 + n * TICK_S) for n in range(1, 9)),
        ]
    )
    stage = record.stages[0]
    assert stage.others is not None
    assert stage.others.seen == seen
    assert (stage.others_meanwhile(stage.others) is not None) == verdict
    if seen:
        assert stage.others.generation_tokens_per_s == pytest.approx(served - 4 * ours, rel=0.1)
        assert stage.others.running == pytest.approx(4.0)


def test_what_late_workers_tell_after_the_engine_is_ours() -> None:
    """On a busy machine they are silent for longer than `LAG_S`; ticks go on without a word of theirs."""
    silent = [replace(tick(20.0 + n * TICK_S, held=4), span_s=0.0, behind_s=n * TICK_S) for n in range(1, 5)]
    record = record_of(
        [
            started(concurrency=4, settle_s=0.0),
            *(tick(n * TICK_S, output=100, requests=1, held=4) for n in range(1, 81)),
            StageEnded(t_s=20.0, index=0, reason="its time was up"),
            EngineMeasured(t_s=20.1, index=0, engine=EngineStage(generation_tokens=8300, between_s=(0.0, 20.1))),
            *silent,
            tick(21.2, output=300, requests=3, held=4),
        ]
    )
    stage = record.stages[0]
    assert stage.others is not None and not stage.others.seen


def test_the_state_of_now_waits_for_ours_and_ends_with_the_engines_word() -> None:
    record = record_of([started(), tick(4.75, held=2), tick(5.0, held=2, engine=engine_at(5.0, 100.0, 6.0))])
    seen = [record.others]
    for n in range(1, 4):
        record.apply(tick(5.0 + n * TICK_S, held=2, engine=engine_at(5.0, 100.0, 6.0)))
    seen.append(record.others)
    record.apply(tick(6.0, held=2))
    assert [*seen, record.others] == [None, OthersTraffic(running=4.0, generation_tokens_per_s=100.0), None]


def test_tokens_of_others_count_while_they_are_watched() -> None:
    """Without load of ours, energy is per token of theirs, and nothing is known of an engine without metrics."""
    watched = record_of(
        [
            started(concurrency=0, settle_s=0.0),
            *(tick(n * TICK_S, engine=engine_at(n * TICK_S, 400.0, 4.0)) for n in range(1, 41)),
        ]
    )
    unseen = record_of([started(concurrency=0, settle_s=0.0), *(tick(n * TICK_S) for n in range(1, 41))])
    assert watched.stages[0].generated_tokens == pytest.approx(4000, abs=100)
    assert unseen.stages[0].generated_tokens is None


def test_our_own_tokens_are_those_of_the_window() -> None:
    loaded = record_of([started(concurrency=4), *(tick(n * TICK_S, held=4) for n in range(1, 9))])
    assert loaded.stages[0].generated_tokens == 0
