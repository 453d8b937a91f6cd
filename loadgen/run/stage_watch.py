"""Watches a running stage: when its measurement begins, when it is enough, and what ends it early.

A stage bounded by time is measured under its own load: once streams of a higher load before it have ended, and once
streams that all begin at once, as into an idle engine, have their first tokens. One that settles waits for the end of
its whole transient (`Transient`). It ends early when the queue of an open loop grows without bound
(`OverloadDetector`) or when everything fails (`CircuitBreaker`).
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from loadgen.distributions import REPLAY
from loadgen.fleet.fleet import FleetTick
from loadgen.plan.stage import Measured, Stage
from loadgen.record.record import Record
from loadgen.record.slo import Judgement, judge, needed_words, still_needed
from loadgen.record.stage import StageRecord
from loadgen.schema.deltas import StageDelta
from loadgen.schema.journal import StageLoad, StageStarted
from loadgen.schema.result import Limits, met_limits

_WAVE_SHARE = 0.1  # of a stage's streams: if fewer begin at once, they are ordinary requests
MAX_FILL_S = 30.0
"""How long a stage without an end waits for its first wave at most; any other waits for as long as it is measured."""
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
_QUIET_S = 2.0
_MIN_FAILURES = 10
_MAX_FAILURES = 200


class StageWatch:
    """Watches one stage from its beginning."""

    def __init__(self, stage: Stage, held: int, filled: int) -> None:
        """`held` streams are open when it begins, and `filled` once all workers have filled their shares."""
        self._stage = stage
        self._transient = Transient(stage.concurrency) if stage.settle_s else None
        bounded_by_time = stage.requests is None and not stage.settle_s
        concurrency = stage.concurrency or 0
        self.first_wave_apart = stage.first_wave == "apart" and concurrency - held > _WAVE_SHARE * concurrency
        """Whether many streams begin at once, whose figures are kept apart."""
        self.waits_for_first_wave = self.first_wave_apart and bounded_by_time
        """Whether its measurement begins only after their first tokens."""
        self.waits_for_drain = bounded_by_time and stage.concurrency is not None and filled > concurrency
        """Whether its measurement begins only once streams beyond its concurrency have ended."""
        self._ready = False
        self.late = False  # its first wave takes so long that measurement began without it
        moves = stage.steps or stage.rate_points or stage.arrival == REPLAY
        self._flight = OverloadDetector(stage.rate) if stage.rate is not None and not moves else None
        self.saturated: str | None = None  # why it should not continue, once that is known

    def started(self, index: int, t_s: float, *, manual: bool, variant: str | None) -> StageStarted:
        """The line that begins it; `manual` if the operator asked for it."""
        stage = self._stage
        requested = {name: getattr(stage, name) for name in StageLoad.__struct_fields__}
        return StageStarted(
            **requested | {"label": stage.title},
            t_s=t_s,
            index=index,
            manual=manual,
            waits_for_drain=self.waits_for_drain,
            awaits_first_wave=self.waits_for_first_wave,
            variant=variant,
            thinks=stage.work.think_s > 0,
            random_prompts=stage.work.random_prompts and not stage.no_load,
            # Passes after the first repeat their prompts on purpose; without load, others' intentions are unknown.
            meant_hits=1.0 if stage.no_load or (stage.pass_number or 1) > 1 else stage.work.meant_hits,
        )

    def observe(self, tick: FleetTick, record: StageRecord, t_s: float) -> None:
        """Process a tick, `t_s` after the stage began."""
        index = record.started.index
        delta = tick.stages.get(index)
        if self._transient is not None:
            self._transient.observe(held=tick.held, delta=delta, output_tokens=tick.client.output_tokens)
        elif self.waits and t_s >= self._stage.warmup_s:
            self._look(tick, t_s - self._stage.warmup_s)
        if self._flight is not None and self.saturated is None:
            self.saturated = self._judge(self._flight, tick, record, delta, t_s)

    def _look(self, tick: FleetTick, t_s: float) -> None:
        filled = tick.first_wave_waiting == 0 or not self.waits_for_first_wave
        drained = tick.held <= (self._stage.concurrency or 0) or not self.waits_for_drain
        self._ready = self._ready or (tick.first_wave_waiting is not None and filled and drained)
        self.late = self.waits_for_first_wave and not self._ready and t_s > (self._stage.duration_s or MAX_FILL_S)

    @property
    def waits(self) -> bool:
        """Whether the start of its measurement is not known in advance."""
        return self.waits_for_drain or self.waits_for_first_wave or self._transient is not None

    @property
    def settled(self) -> bool:
        """Whether its transient is over; never true for a stage that does not wait for that."""
        return self._ready or (self._transient is not None and self._transient.over)

    def _judge(
        self, detector: OverloadDetector, tick: FleetTick, record: StageRecord, delta: StageDelta | None, t_s: float
    ) -> str | None:
        still_open = tick.open_stages.get(record.started.index, 0)
        if not detector.observe(t_s, still_open, tick.queued, ttft_of(delta)):
            return None
        ended = record.counters["warmup"] + record.counters["sent"] - still_open
        return detector.verdict(ended=ended, e2e_mean_s=self._e2e_mean_s(record))

    def _e2e_mean_s(self, record: StageRecord) -> float | None:
        """Mean E2E of measured streams, or an estimate from the warm-up's."""
        means_ms = {name: record.histogram(name).mean_ms() for name in ("e2e", "warmup_ttft", "warmup_tpot")}
        e2e_ms, ttft_ms, tpot_ms = means_ms.values()
        if e2e_ms is None and ttft_ms is not None and tpot_ms is not None:
            e2e_ms = ttft_ms + tpot_ms * (self._stage.osl - 1)
        return None if e2e_ms is None else e2e_ms / 1000


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
        if not self._queued and not self._ttft_has_risen():
            return None
        grown = f"{values[0]} to {values[-1]} in {span_s:.0f} s"
        return (
            f"over-saturated: streams in flight grow without bound, {grown}; {unserved:.0%} of arrivals are not served"
        )

    def _ttft_has_risen(self) -> bool:
        quarter = len(self._ttft_ms) // 4
        return fmean(self._ttft_ms[-quarter:]) > _RISEN * fmean(self._ttft_ms[quarter : 2 * quarter])


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


class CircuitBreaker:
    """Detects a server that only fails, to stop sending: no table of zeros, and no hammering of a dead server."""

    def __init__(self) -> None:
        self._successes: int | None = None  # at the last check; the first begins with those of an earlier server
        self._failures_then = 0
        self._since_s = 0.0

    def check(self, record: Record, now_s: float) -> str | None:
        """Why the load should end: many failures in a row, for a while, without a success; None if it should not."""
        current = record.current
        failures = record.total.counters["failed"] + record.total.counters["warmup_failed"]
        if current is None or current.started.no_load:
            self._failures_then, self._since_s = failures, now_s
            return None
        successes = record.total.counters["completed"] + record.client.counters["output_tokens"]
        if successes != self._successes:
            self._successes, self._failures_then, self._since_s = successes, failures, now_s
            return None
        row = failures - self._failures_then
        wanted = min(_MAX_FAILURES, max(_MIN_FAILURES, 2 * (current.started.concurrency or 0)))
        if row < wanted or now_s - self._since_s < _QUIET_S:
            return None
        return f"nothing but failures: the last {row} requests failed, {_most_frequent(record)}"


def _most_frequent(record: Record) -> str:
    errors, messages = record.total.errors, record.total.messages
    if not errors:
        return "; ".join(text for texts in messages.values() for text in texts[:1])
    kind = max(errors, key=lambda name: errors[name])
    return ": ".join([kind, *messages.get(kind, [])[:1]])
