"""From the figures of a stage to what a plan decides by."""

import msgspec
import numpy as np
import pytest

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.journal import StageEnded, StageSettled, StageStarted
from loadgen.metrics.slo import Limits, judge
from loadgen.metrics.stage import StageDelta, StageMetrics
from loadgen.metrics.stage_record import StageRecord
from loadgen.plan.stage import Measured, Stage
from loadgen.run.measuring import enough, measured_of
from tests.metrics.served import served
from tests.plan.probing import search

STAGE = Stage(concurrency=8, rate=None, isl=1, osl=1, settle_s=5.0, completed=100)


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
        completed=100,
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
    assert (measured.held, measured.output_tokens_per_s, measured.completed) == (7.0, 40.0, 300)
    # Seven at a time, and nothing said about how they vary: at worst they are 43.
    assert (measured.met, measured.verdict) == (True, "unresolved")
    assert measured.needs == "ttft_p99 needs 81 more streams"
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


TICK_S = 0.5


def probing(
    stage: Stage, median_ms: float, rng: np.random.Generator, longest_s: float = 120.0
) -> tuple[StageRecord, str]:
    """A probe of a server whose streams last a second and come at a rate, ticked until it has told enough."""
    held = stage.concurrency or 0
    probed = StageRecord(record().started)
    for tick in range(1, round(longest_s / TICK_S) + 2):
        part = StageMetrics()
        part.window_start_ns, part.window_end_ns = 0, int(tick * TICK_S * 1e9)
        count = int(rng.poisson(held * TICK_S))
        part.counters |= {"sent": count, "completed": count, "held_area_ns": int(held * TICK_S * 1e9)}
        for name, values_ms in (("ttft", rng.lognormal(np.log(median_ms), 0.3, count)), ("e2e", [1000.0] * count)):
            part.latency[name] = Histogram()
            part.latency[name].record_us((np.array(values_ms) * 1000).astype(np.int64))
        probed.metrics.merge(part)
        probed.blocks.add(part, tick * TICK_S)
        why = enough(stage, probed, tick * TICK_S, longest_s)
        if why is not None:
            return probed, why
    raise AssertionError("it never ends")


LIMIT_MS = 200.0
P99_OF_MEDIAN = float(np.exp(0.3 * 2.326348))
PROBE = Stage(
    concurrency=16, rate=None, isl=1, osl=1, duration_s=5.0, completed=50, judged=Limits({"ttft_p99": LIMIT_MS})
)
CERTAIN = msgspec.structs.replace(PROBE, completed=381, certain=True)


@pytest.mark.parametrize(
    ("stage", "p99_ms", "words", "most_s"),
    [
        (PROBE, 400.0, "it is sure: the limits are missed", 5),
        (PROBE, 100.0, "its time was up", 8),
        (CERTAIN, 100.0, "it is sure: the limits are met", 45),
        (CERTAIN, 400.0, "it is sure: the limits are missed", 10),
    ],
)
def test_a_probe_ends_as_soon_as_it_has_told_enough(stage: Stage, p99_ms: float, words: str, most_s: float) -> None:
    probed, why = probing(stage, p99_ms / P99_OF_MEDIAN, np.random.default_rng(1))
    assert why == words
    assert probed.window_s <= most_s


def test_a_probe_that_cannot_be_sure_in_its_time_is_given_up_early() -> None:
    slow = msgspec.structs.replace(CERTAIN, concurrency=2, completed=50)
    probed, why = probing(slow, LIMIT_MS / P99_OF_MEDIAN, np.random.default_rng(2))
    assert why.startswith("it cannot be sure within 120 s: ttft_p99 needs ")
    assert probed.window_s < 40


def test_too_few_streams() -> None:
    _, why = probing(msgspec.structs.replace(CERTAIN, concurrency=2), 50.0, np.random.default_rng(3), longest_s=20.0)
    assert why == "too few streams completed in 20 s"
    _, why = probing(msgspec.structs.replace(STAGE, duration_s=5.0), 50.0, np.random.default_rng(3))
    assert why == "its time was up"


def test_one_that_the_operator_holds_open_has_no_end() -> None:
    assert enough(msgspec.structs.replace(CERTAIN, duration_s=None), record(), 1e9, 120.0) is None


def test_looking_again_and_again_is_wrong_as_rarely_as_looking_once() -> None:
    # Exactly at the limit, whatever it says is wrong.
    rng, found = np.random.default_rng(5), []
    limits = Limits({"ttft_p99": LIMIT_MS})
    for _ in range(40):
        probed, _ = probing(CERTAIN, LIMIT_MS / P99_OF_MEDIAN, rng)
        found.append(judge(probed, limits).verdict)
    assert found.count("met") <= 5 and found.count("missed") <= 3


@pytest.mark.parametrize("seed", range(5))
def test_a_search_for_a_p99_is_resolved_within_minutes(seed: int) -> None:
    # TTFT grows with the streams: the p99 is at its limit with 40 of them.
    rng, spent_s = np.random.default_rng(seed), 0.0
    limits = Limits({"ttft_p99": LIMIT_MS})

    def measure(stage: Stage) -> Measured:
        nonlocal spent_s
        median_ms = LIMIT_MS / P99_OF_MEDIAN * (stage.concurrency or 0) / 40
        probed, _ = probing(stage, median_ms, rng, stage.longest_s)
        spent_s += probed.window_s
        return measured_of(stage, probed, limits)

    found, _ = search(measure, plan={"search": "slo"}, slo={"ttft_p99": f"{LIMIT_MS}ms"}, load={"duration": "5s"})
    assert found.resolved, found.why
    assert found.low is not None and found.high is not None and found.found is not None
    assert found.low <= 40 <= found.high and 32 <= found.found <= 46
    assert spent_s < 240
