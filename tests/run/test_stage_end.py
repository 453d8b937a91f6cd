"""Over-saturation, on queues whose load is known."""

import heapq
import math
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.fleet.fleet import FleetTick
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage import StageMetrics
from loadgen.plan.stage import Measured, Stage
from loadgen.record.record import Record
from loadgen.record.slo import judge
from loadgen.record.stage import StageRecord
from loadgen.run.running_stage import RunningStage
from loadgen.run.session import CircuitBreaker
from loadgen.run.stage_end import (
    MIN_TICKS,
    OverloadDetector,
    Transient,
    at_rest,
    cut_errors,
    drift,
    enough,
    filling_share,
    measured_of,
    ttft_of,
)
from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.schema.journal import StageEnded, StageSettled, StageStarted, Ticked
from loadgen.schema.result import Limits
from tests.metrics.served import served
from tests.plan.probing import search

STAGE = Stage(concurrency=8, rate=None, isl=1, osl=1, settle_s=5.0, min_completed=100)


def alarm_s(rate: float, servers: int, service_s: float, *, seed: int, until_s: int = 60) -> int | None:
    """When the guard speaks up about a queue with Poisson arrivals and nearly equal services; None if never."""
    random = Random(seed)
    free = [0.0] * servers
    arrivals: list[float] = []
    streams: list[tuple[float, float, float]] = []
    now_s = random.expovariate(rate)
    while now_s < until_s:
        start_s = max(now_s, heapq.heappop(free))
        end_s = start_s + service_s * random.uniform(0.9, 1.1)
        heapq.heappush(free, end_s)
        arrivals.append(now_s)
        streams.append((now_s, start_s + 0.05, end_s))
        now_s += random.expovariate(rate)
    return _first_alarm(rate, streams, until_s)


def _first_alarm(rate: float, streams: list[tuple[float, float, float]], until_s: int) -> int | None:
    detector = OverloadDetector(rate)
    for t_s in range(1, until_s):
        sent = [stream for stream in streams if stream[0] <= t_s]
        times_s = [end_s - sent_s for sent_s, _, end_s in sent if end_s <= t_s]
        first_s = [first_s - sent_s for sent_s, first_s, _ in sent if t_s - 1 < first_s <= t_s]
        ttft_ms = 1000 * sum(first_s) / len(first_s) if first_s else None
        detector.observe(t_s, len(sent) - len(times_s), 0, ttft_ms)
        mean_s = sum(times_s) / len(times_s) if times_s else None
        if detector.verdict(ended=len(times_s), e2e_mean_s=mean_s) is not None:
            return t_s
    return None


@pytest.mark.parametrize(
    ("rate", "servers", "service_s"), [(10, 10, 0.5), (10, 30, 2), (10, 10, 0.9), (50, 20, 0.35), (5, 400, 60)]
)
def test_a_load_that_is_served_raises_no_alarm(rate: float, servers: int, service_s: float) -> None:
    alarms = [alarm_s(rate, servers, service_s, seed=seed) for seed in range(10)]
    assert sum(alarm is not None for alarm in alarms) <= 1


@pytest.mark.parametrize(
    ("rate", "servers", "service_s"),
    [(10, 30, 6), (50, 20, 0.6), (100, 10, 1.0), pytest.param(20, 2, 0.2, id="a chat server with short answers")],
)
def test_a_load_beyond_the_server_does(rate: float, servers: int, service_s: float) -> None:
    for seed in range(5):
        assert alarm_s(rate, servers, service_s, seed=seed) is not None


@pytest.mark.parametrize("seed", range(5))
def test_answers_of_very_different_lengths_fill_a_server_slowly(seed: int) -> None:
    random = Random(seed)
    streams, now_s = [], 0.0
    while (now_s := now_s + random.expovariate(50)) < 60:
        streams.append((now_s, now_s + 0.05, now_s + (40 if random.random() < 0.1 else 0.6)))
    assert _first_alarm(50, streams, 60) is None


def test_arrivals_beyond_the_cap_of_the_client_wait_there() -> None:
    detector = OverloadDetector(10)
    for t_s in range(1, 13):
        detector.observe(t_s, 20, 5 * t_s, 100.0)
    words = detector.verdict(ended=60, e2e_mean_s=0.1)
    assert words is not None and "55 to 80 in 5 s" in words


@pytest.mark.parametrize(
    ("moving", "saturated"),
    [({}, True), ({"rate_points": ((0.0, 1.0), (60.0, 10.0))}, False), ({"arrival": "replay"}, False)],
)
async def test_a_rate_that_moves_is_not_held_against_its_mean(moving: dict[str, Any], saturated: bool) -> None:
    stage = Stage(concurrency=None, rate=10.0, isl=1, osl=1, **moving)
    t_s, record = 0, served(1)
    running = RunningStage(
        stage, lambda: t_s, open_streams=0, filled=0, settle_time_over=lambda: None, time_over=lambda: None
    )
    for t_s in range(1, 60):
        tick = FleetTick(
            span_s=1.0,
            stages={0: delta(0, 100.0 * t_s)},
            client=ClientDelta(),
            held=5 * t_s,
            open_stages={0: 5 * t_s},
            first_wave_waiting=0,
            finished=None,
            finished_why="",
            rows={},
        )
        running.observe(tick, record)
    assert (running.saturated is not None) == saturated


def test_what_it_says() -> None:
    detector = OverloadDetector(10)
    for t_s in range(1, 13):
        assert detector.observe(t_s, 5 * t_s, 0, 100.0 * t_s)
        assert not detector.observe(t_s + 0.25, 5 * t_s, 0, None)
    words = detector.verdict(ended=60, e2e_mean_s=0.1)
    assert words is not None
    assert "grow without bound, 35 to 60 in 5 s; 50% of arrivals are not served" in words


def test_nothing_is_said_too_early() -> None:
    detector = OverloadDetector(10)
    assert detector.verdict(ended=100, e2e_mean_s=1.0) is None
    for t_s in range(1, 9):
        detector.observe(t_s, 10 * t_s, 0, 1.0)
    assert detector.verdict(ended=100, e2e_mean_s=0.1) is None


def test_a_walk_that_goes_nowhere_does_not_drift() -> None:
    assert drift([5, 7, 4, 6, 5, 5]) == pytest.approx(0)
    assert drift(list(range(0, 100, 10))) > 10


def test_an_empty_server_fills() -> None:
    assert filling_share(0.0, 1.0, 100.0) == pytest.approx(1, abs=0.01)
    assert filling_share(50.0, 100.0, 5.0) < 1e-4


def noise(count: int, mean: float, seed: int = 1) -> list[float]:
    random = Random(seed)
    return [random.gauss(mean, mean / 20) for _ in range(count)]


def delta(warmup: int, *ttft_ms: float) -> StageDelta:
    histogram = Histogram()
    histogram.record_ns([int(value * 1e6) for value in ttft_ms])
    return StageDelta(warmup=warmup, latency={"warmup_ttft": histogram.encode()} if ttft_ms else {})


def test_noise_around_a_mean_is_at_rest() -> None:
    rested = sum(at_rest(noise(40, 100, seed)) for seed in range(50))
    assert rested >= 40


def test_what_rises_or_falls_is_not() -> None:
    for seed in range(50):
        flat = noise(40, 10, seed)
        assert not at_rest([value + 10 * index for index, value in enumerate(flat)])
        # Still on its way when it is looked at.
        assert not at_rest([value + 500 * math.exp(-index / 15) for index, value in enumerate(flat)])


def test_it_comes_to_rest_once_the_transient_is_a_small_part() -> None:
    series = [1000 - 90 * index for index in range(10)] + noise(60, 100)
    assert not at_rest([float(value) for value in series[:16]])
    assert at_rest([float(value) for value in series])


def test_too_few_points_say_nothing() -> None:
    assert not at_rest([1.0] * (MIN_TICKS // 2 - 1))
    assert at_rest([1.0] * MIN_TICKS)


def by_definition(series: list[float]) -> list[float]:
    """MSER as White wrote it: the variance of all that follows a cut, over their number."""
    values = np.array(series)
    return [float(values[cut:].var() / (len(values) - cut)) for cut in range(len(values) - 4)]


COUNTS = st.integers(0, 100_000).map(float)
TIMES = st.floats(0.01, 100_000)


@given(st.lists(COUNTS, min_size=6, max_size=200) | st.lists(TIMES, min_size=6, max_size=200))
def test_the_sums_from_the_end_are_the_definition(series: list[float]) -> None:
    exact = by_definition(series)
    assert np.allclose(cut_errors(series), exact, rtol=1e-6, atol=1e-9 * max(map(abs, series)) ** 2)
    # Of two cuts that are equally good, rounding may choose the other.
    best = min(exact)
    near = {cut <= len(series) // 2 for cut, error in enumerate(exact) if error <= best * (1 + 1e-6) + 1e-9}
    assert at_rest(series) in near


def test_every_slot_must_have_turned_over() -> None:
    transient = Transient(concurrency=8)
    for tick in range(3 * MIN_TICKS):
        transient.observe(held=8, delta=delta(8 if tick == 0 else 0, 50.0), output_tokens=100)
    assert not transient.over
    transient.observe(held=8, delta=delta(8, 50.0), output_tokens=100)
    assert transient.over


def test_streams_of_the_stage_before_must_have_gone() -> None:
    transient = Transient(concurrency=8)
    for _ in range(3 * MIN_TICKS):
        transient.observe(held=32, delta=delta(4, 50.0), output_tokens=100)
    assert not transient.over


def test_open_loop_waits_until_as_many_have_gone_as_are_open() -> None:
    transient = Transient(concurrency=None)
    for _ in range(2 * MIN_TICKS):
        transient.observe(held=20, delta=delta(1, 50.0), output_tokens=100)
    assert not transient.over
    for _ in range(20):
        transient.observe(held=20, delta=delta(1, 50.0), output_tokens=100)
    assert transient.over


def test_the_ttft_of_a_tick() -> None:
    assert ttft_of(delta(1, 10.0, 20.0)) == 15
    assert ttft_of(delta(1)) is None
    assert ttft_of(None) is None


def record(*ttft_ms: float, **counts: int) -> StageRecord:
    started = StageStarted(
        t_s=10.0,
        index=0,
        label="",
        concurrency=8,
        rate=None,
        arrival="",
        isl=1,
        osl=1,
        requests=None,
        duration_s=1.0,
        warmup_requests=0,
        warmup_s=0.0,
        settle_s=5.0,
        min_completed=100,
    )
    stage = StageRecord(started)
    histogram = Histogram()
    histogram.record_ns([int(value * 1e6) for value in ttft_ms])
    window = StageDelta(
        window_start_ns=0, window_end_ns=10**10, held_area_ns=7 * 10**10, window_requests=50, window_output_tokens=400
    )
    delta = msgspec.structs.replace(window, latency={"ttft": histogram.encode()}, **counts)
    stage.metrics.add(delta)
    return stage


def test_what_a_plan_decides_by() -> None:
    measured = measured_of(STAGE, record(*[10] * 300, completed=300), Limits({"ttft_p99": 50.0}))
    assert (measured.held, measured.output_tokens_per_s) == (7.0, 40.0)
    # Seven at a time, and nothing said about how they vary: at worst they are 43.
    assert (measured.met, measured.verdict) == (True, "unresolved")
    assert measured.needs == "ttft_p99 needs 81 more requests"
    assert measured.error_percent is None


def test_how_much_a_throughput_varies_is_known_from_its_blocks() -> None:
    stage = served(1)
    measured, precision = measured_of(STAGE, stage, Limits()), stage.blocks.precision()
    assert precision is not None
    assert measured.error_percent == precision.error_percent["output_tokens_per_s"] > 0


def test_saturated_is_missed_and_no_limit_is_no_verdict() -> None:
    measured = measured_of(STAGE, record(*[10] * 500), Limits({"ttft_p99": 50.0}))
    assert measured.after(saturated=True, abandoned=False).verdict == "missed"
    assert measured.after(saturated=False, abandoned=True).abandoned
    assert measured_of(STAGE, record(*[10] * 500), Limits()).verdict == "unresolved"


def test_when_a_stage_says_too_little() -> None:
    ended = StageEnded(t_s=20.0, index=0, reason="")
    stage, broken_off, enough = record(completed=99), record(completed=99), record(completed=100)
    broken_off.ended = stage.ended = enough.ended = ended
    assert broken_off.inconclusive == "it ended before its transient was over"
    stage.settled = enough.settled = StageSettled(t_s=14.5, index=0, settled=True)
    assert (stage.settled_s, stage.inconclusive) == (4.5, "99 of at least 100 streams completed")
    assert enough.inconclusive is None


def fail(record: Record, t_s: float, failed: int) -> None:
    delta = StageDelta(sent=failed, failed=failed, errors={"http-503": failed})
    record.apply(Ticked(t_s=t_s, span_s=0.25, stages={0: delta}, client=ClientDelta(), held=0))


def test_nothing_but_failures_is_judged_from_the_restart_on() -> None:
    failing = Record()
    failing.apply(StageStarted(t_s=0.0, index=0, concurrency=8, rate=None, isl=1, osl=1))
    first = CircuitBreaker()
    assert first.check(failing, 1.0) is None
    fail(failing, 9.0, 200)
    assert first.check(failing, 9.0) == "nothing but failures: the last 200 requests failed, http-503"
    again = CircuitBreaker()
    assert again.check(failing, 60.0) is None
    fail(failing, 61.0, 15)
    assert again.check(failing, 61.0) is None
    fail(failing, 63.0, 1)
    assert again.check(failing, 63.0) == "nothing but failures: the last 16 requests failed, http-503"


TICK_S = 0.5


def probing(
    stage: Stage, median_ms: float, rng: np.random.Generator, max_duration_s: float = 120.0
) -> tuple[StageRecord, str]:
    """A probe of a server whose streams last a second and come at a rate, ticked until it is enough."""
    held = stage.concurrency or 0
    probed = StageRecord(record().started)
    for tick in range(1, round(max_duration_s / TICK_S) + 2):
        part = StageMetrics()
        part.window_start_ns, part.window_end_ns = 0, int(tick * TICK_S * 1e9)
        count = int(rng.poisson(held * TICK_S))
        part.counters |= {"sent": count, "completed": count, "held_area_ns": int(held * TICK_S * 1e9)}
        for name, values_ms in (("ttft", rng.lognormal(np.log(median_ms), 0.3, count)), ("e2e", [1000.0] * count)):
            part.latency[name] = Histogram()
            part.latency[name].record_us((np.array(values_ms) * 1000).astype(np.int64))
        probed.metrics.merge(part)
        probed.blocks.add(part, tick * TICK_S)
        why = enough(stage, probed, tick * TICK_S, max_duration_s)
        if why is not None:
            return probed, why
    raise AssertionError("it never ends")


LIMIT_MS = 200.0
P99_OF_MEDIAN = float(np.exp(0.3 * 2.326348))
PROBE = Stage(
    concurrency=16, rate=None, isl=1, osl=1, duration_s=5.0, min_completed=50, judged=Limits({"ttft_p99": LIMIT_MS})
)
CERTAIN = msgspec.structs.replace(PROBE, min_completed=381, certain=True)


@pytest.mark.parametrize(
    ("stage", "p99_ms", "words", "most_s"),
    [
        (PROBE, 400.0, "it is sure: the limits are missed", 5),
        (PROBE, 100.0, "its time was up", 8),
        (CERTAIN, 100.0, "it is sure: the limits are met", 45),
        (CERTAIN, 400.0, "it is sure: the limits are missed", 10),
    ],
)
def test_a_probe_ends_as_soon_as_it_has_enough(stage: Stage, p99_ms: float, words: str, most_s: float) -> None:
    probed, why = probing(stage, p99_ms / P99_OF_MEDIAN, np.random.default_rng(1))
    assert why == words
    assert probed.window_s <= most_s


def test_a_probe_that_cannot_be_sure_in_its_time_is_given_up_early() -> None:
    slow = msgspec.structs.replace(CERTAIN, concurrency=2, min_completed=50)
    probed, why = probing(slow, LIMIT_MS / P99_OF_MEDIAN, np.random.default_rng(2))
    assert why.startswith("it cannot be sure within 120 s: ttft_p99 needs ")
    assert probed.window_s < 40


def test_too_few_streams() -> None:
    _, why = probing(
        msgspec.structs.replace(CERTAIN, concurrency=2), 50.0, np.random.default_rng(3), max_duration_s=20.0
    )
    assert why == "too few streams completed in 20 s"
    _, why = probing(msgspec.structs.replace(STAGE, duration_s=5.0), 50.0, np.random.default_rng(3))
    assert why == "its time was up"


def test_one_that_the_operator_holds_open_has_no_end() -> None:
    assert enough(msgspec.structs.replace(CERTAIN, duration_s=None), record(), 1e9, 120.0) is None


def test_looking_again_and_again_is_wrong_as_rarely_as_looking_once() -> None:
    # Exactly at the limit, whatever it says is wrong.
    rng, found = np.random.default_rng(5), []
    limits = Limits({"ttft_p99": LIMIT_MS})
    for _ in range(12):
        probed, _ = probing(CERTAIN, LIMIT_MS / P99_OF_MEDIAN, rng)
        found.append(judge(probed, limits).verdict)
    assert found.count("met") <= 2 and found.count("missed") <= 2


@pytest.mark.parametrize("seed", range(3))
def test_a_search_for_a_p99_is_resolved_within_minutes(seed: int) -> None:
    # TTFT grows with the streams: the p99 is at its limit with 40 of them.
    rng, spent_s = np.random.default_rng(seed), 0.0
    limits = Limits({"ttft_p99": LIMIT_MS})

    def measure(stage: Stage) -> Measured:
        nonlocal spent_s
        median_ms = LIMIT_MS / P99_OF_MEDIAN * (stage.concurrency or 0) / 40
        probed, _ = probing(stage, median_ms, rng, stage.max_duration_s)
        spent_s += probed.window_s
        return measured_of(stage, probed, limits)

    found, _ = search(measure, plan={"search": "slo"}, slo={"ttft_p99": f"{LIMIT_MS}ms"}, load={"duration": "5s"})
    assert found.resolved, found.why
    assert found.low is not None and found.high is not None and found.found is not None
    assert found.low <= 40 <= found.high and 32 <= found.found <= 46
    assert spent_s < 240
