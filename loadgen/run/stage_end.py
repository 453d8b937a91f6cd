"""When a stage should end, or its measurement begin: judgements on what has been measured of it so far.

The transient of a stage that settles is over (`Transient`); it was measured for long enough (`enough`); or the queue of
an open loop grows without bound (`OverloadDetector`).
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from loadgen.plan.stage import Measured, Stage
from loadgen.record.slo import judge, needed_words, still_needed, tier_checks
from loadgen.record.stage import StageRecord
from loadgen.schema.deltas import StageDelta
from loadgen.schema.result import Judgement, Limits, met_limits

JUDGED_AFTER_S = 10.0  # no stage is judged earlier
MIN_ENDED = 20
UNSERVED = 0.05  # the least share of unanswered arrivals
READING_S = 1.0
_SURE = 4.0  # student's t beyond 99.9 % with ten increments, with few false alarms even if tested every second
_MIN_INCREMENTS = 5
_RISEN = 1.5
MIN_TICKS = 12
_HELD_SHARE = 0.02
_KEPT = 4  # the rule needs so many points to the right of a cut
INTERIM = 0.9973  # the confidence of three standard deviations
_MIN_PROBE_S = 2.0


class OverloadDetector:
    """Finds an open loop beyond the server's capacity: its number of streams in flight grows without bound.

    At capacity, that number wanders like a random walk; beyond it, it drifts. So the test is a t-test of its increments
    over the latter half of a stage: their mean must be significantly above zero, and exceed a share of the arrivals,
    which are the ones never served. TTFT itself is no criterion, so a chat server that answers in milliseconds is
    judged like any other.

    At first, every stage fills up. How much growth that explains follows from the mean duration of its streams, but the
    mean covers only those that have ended: the longest answers are missing from it at first. So the growth must be due
    to waiting: TTFT has risen, or arrivals queue in the client, which has reached its cap.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._times_s: list[float] = []
        self._in_flight: list[int] = []
        self._queued = 0
        self._ttft_ms: list[float] = []

    def observe(self, t_s: float, still_open: int, queued: int, ttft_ms: float | None) -> bool:
        """Add the streams and the waiting arrivals `t_s` after the stage began, and the TTFT since the last call.

        About once a second, a reading is kept and the result is True.
        """
        if self._times_s and t_s < self._times_s[-1] + READING_S:
            return False
        self._times_s.append(t_s)
        self._in_flight.append(still_open + queued)
        self._queued = queued
        self._ttft_ms.append(ttft_ms if ttft_ms is not None else self._ttft_ms[-1] if self._ttft_ms else 0.0)
        return True

    def verdict(self, *, ended: int, e2e_mean_s: float | None) -> str | None:
        """Why the stage should end: its queue grows without bound; None if it does not."""
        half = len(self._times_s) // 2
        times_s, values = self._times_s[half:], self._in_flight[half:]
        if len(values) <= _MIN_INCREMENTS or times_s[-1] < JUDGED_AFTER_S or ended < MIN_ENDED or not e2e_mean_s:
            return None
        span_s = times_s[-1] - times_s[0]
        unserved = (values[-1] - values[0]) / span_s / self._rate
        filling = filling_share(times_s[0], times_s[-1], e2e_mean_s)
        if unserved < UNSERVED + 2 * filling or drift(values) < _SURE:
            return None
        quarter = len(self._ttft_ms) // 4
        has_risen = fmean(self._ttft_ms[-quarter:]) > _RISEN * fmean(self._ttft_ms[quarter : 2 * quarter])
        if not self._queued and not has_risen:
            return None
        grown = f"{values[0]} to {values[-1]} in {span_s:.0f} s"
        return (
            f"over-saturated: streams in flight grow without bound, {grown}; {unserved:.0%} of arrivals are not served"
        )


def drift(values: list[int]) -> float:
    """Student's t of the increments of a series: how significantly it rises, compared with a random walk."""
    increments = [after - before for before, after in pairwise(values)]
    spread = max(stdev(increments), 0.5)
    return fmean(increments) / spread * math.sqrt(len(increments))


def filling_share(from_s: float, to_s: float, mean_s: float) -> float:
    """The growth still due to the filling of an empty server, as a share of the rate.

    For streams of exponentially distributed duration: after t, 1 - exp(-t/mean) of the final number are there.
    """
    return mean_s / (to_s - from_s) * (math.exp(-from_s / mean_s) - math.exp(-to_s / mean_s))


class Transient:
    """Finds when the transient of a stage is over: its slots have turned over, and its series are stationary.

    Each series (open streams, TTFT, tokens a second) is judged by MSER, the marginal standard error rule of White
    (1997): of all points at which a series could be cut, the best leaves the mean of the rest with the least standard
    error. During a transient that point moves along with the end; once it stays in the first half, the rest is
    stationary. So no threshold is needed that would have to fit every model and machine.
    """

    def __init__(self, concurrency: int | None) -> None:
        self._concurrency = concurrency
        self._sent = 0
        self._held: list[float] = []
        self._ttft_ms: list[float] = []
        self._tokens: list[float] = []

    def observe(self, *, held: int, delta: StageDelta | None, output_tokens: int) -> None:
        """Add a tick: streams open at its end, the stage's own delta, and all tokens that arrived."""
        self._held.append(held)
        self._tokens.append(output_tokens)
        if delta is None:
            return
        self._sent += delta.warmup + delta.sent
        ttft_ms = ttft_of(delta)
        if ttft_ms is not None:
            self._ttft_ms.append(ttft_ms)

    @property
    def over(self) -> bool:
        """Whether every slot has turned over once, and the series are stationary."""
        if len(self._held) < MIN_TICKS or not self._turned_over():
            return False
        return all(at_rest(series) for series in (self._held, self._ttft_ms, self._tokens))

    def _turned_over(self) -> bool:
        held = self._held[-1]
        wanted = self._concurrency
        if wanted is None:
            # In open loop the initial streams must have ended, whose number is not known in advance.
            return self._sent - held >= max(held, 1)
        return held <= wanted + max(1, _HELD_SHARE * wanted) and self._sent - held >= wanted


def ttft_of(delta: StageDelta | None) -> float | None:
    """The mean TTFT of a tick in milliseconds, measured or not; None if no stream began to answer."""
    if delta is None:
        return None
    ttft = delta.latency.get("warmup_ttft") or delta.latency.get("ttft")
    return ttft.sum_us / ttft.count / 1000 if ttft is not None and ttft.count else None


def at_rest(series: list[float]) -> bool:
    """Whether the best cut of a series lies in its first half; False for one that is too short."""
    if len(series) < MIN_TICKS // 2:
        return False
    return int(np.argmin(cut_errors(series))) <= len(series) // 2


def cut_errors(series: list[float]) -> NDArray[np.float64]:
    """Variance over count of the rest after each cut, which MSER minimises; sums from the end, in one pass."""
    # Relative to the last value, a constant rest has errors of exactly 0, without cancellation.
    values = np.array(series[::-1], dtype=np.float64) - series[-1]
    counts = np.arange(1, len(values) + 1)
    means = np.cumsum(values) / counts
    variances = np.maximum(0.0, np.cumsum(values**2) / counts - means**2)
    return (variances / counts)[: _KEPT - 1 : -1]


def measured_of(stage: Stage, record: StageRecord, limits: Limits) -> Measured:
    """What the plan needs to know about a stage as it ends."""
    judgement, precision = judge(record, limits), record.blocks.precision()
    return Measured(
        stage=stage,
        held=record.held_mean,
        output_tokens_per_s=record.per_second("window_output_tokens"),
        error_percent=precision.error_percent.get("output_tokens_per_s") if precision is not None else None,
        verdict=judgement.verdict,
        met=met_limits(judgement) or False,
        needs=needed_words(judgement),
        tiers=tuple((check.met, check.verdict) for check in tier_checks(record, limits.tiers)),
    )


def enough(stage: Stage, record: StageRecord, measured_s: float, max_duration_s: float) -> str | None:
    """Why a settled stage, measured for so long, should end; None if it should continue.

    A probe is tested repeatedly while it runs, and in one of many tests it may seem sure by chance. So it is stopped
    early only at three standard deviations, which preserves the 95 % of the last test (Haybittle 1971; Peto and others
    1976). A probe that runs until it is sure may stop at 95 % that it meets its limits: for a percentile that takes
    hundreds of streams, more with each miss, so there are few moments at which it can happen.
    """
    if stage.duration_s is None:
        return None
    if stage.judged is not None and measured_s >= min(_MIN_PROBE_S, stage.duration_s):
        verdict = judge(record, stage.judged, INTERIM).verdict
        if verdict != "unresolved":
            return f"it is sure: the limits are {verdict}"
    if measured_s < stage.duration_s:
        return None
    if record.counters["completed"] < stage.min_completed:
        return f"too few streams completed in {max_duration_s:g} s" if measured_s >= max_duration_s else None
    if stage.judged is None or not stage.certain:
        return "its time was up"
    return _certain(judge(record, stage.judged), record, measured_s, max_duration_s)


def _certain(judgement: Judgement, record: StageRecord, measured_s: float, max_duration_s: float) -> str | None:
    if judgement.verdict == "met":
        return "it is sure: the limits are met"
    if measured_s >= max_duration_s:
        return f"it was not sure within {max_duration_s:g} s"
    per_s = record.counters["completed"] / measured_s
    if still_needed(judgement) > per_s * (max_duration_s - measured_s):
        needs = needed_words(judgement)
        return f"it cannot be sure within {max_duration_s:g} s{': ' if needs else ''}{needs}"
    return None
