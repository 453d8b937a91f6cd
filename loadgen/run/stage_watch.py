"""What a running stage is watched for: the end of its transient, and a queue that grows without bound.

The least of a transient are streams of a higher load before: their tokens would be counted as those of the lower one.
"""

from __future__ import annotations

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage import StageDelta
from loadgen.metrics.stage_record import StageRecord
from loadgen.plan import Stage
from loadgen.run.saturation import Flight
from loadgen.run.settling import Transient, ttft_of
from loadgen.worker.fleet import FleetTick


class StageWatch:
    """Watches one stage from its beginning."""

    def __init__(self, stage: Stage, held: int) -> None:
        """`held` streams are open when it begins."""
        self._stage = stage
        self._transient = Transient(stage.concurrency) if stage.settle_s else None
        bounded_by_time = stage.requests is None and not stage.settle_s
        self.sheds = stage.sheds and bounded_by_time and stage.concurrency is not None and held > stage.concurrency
        """More streams are open than it wants, and it is measured without them."""
        self._shed = False
        self._flight = Flight(stage.rate) if stage.rate is not None else None
        self.saturated: str | None = None
        """Why it should not go on, once that is known."""

    def beat(self, tick: FleetTick, record: StageRecord, t_s: float) -> None:
        """Take in a tick, `t_s` after the stage began."""
        index = record.started.index
        delta = tick.stages.get(index)
        if self._transient is not None:
            self._transient.beat(held=tick.held, delta=delta, output_tokens=tick.client.output_tokens)
        if self.sheds and t_s >= self._stage.warmup_s:
            self._shed = self._shed or tick.held <= (self._stage.concurrency or 0)
        if self._flight is not None and self.saturated is None:
            self.saturated = self._judge(self._flight, tick, record, delta, t_s)

    @property
    def waits(self) -> bool:
        """It is not measured from a time that is known when it begins."""
        return self.sheds or self._transient is not None

    @property
    def settled(self) -> bool:
        """Its transient is over; never true of a stage that does not wait for that."""
        return self._shed or (self._transient is not None and self._transient.over)

    def _judge(
        self, flight: Flight, tick: FleetTick, record: StageRecord, delta: StageDelta | None, t_s: float
    ) -> str | None:
        still_open = tick.open_stages.get(record.started.index, 0)
        if not flight.beat(t_s, still_open + tick.queued, ttft_of(delta)):
            return None
        ended = record.counters["warmup"] + record.counters["sent"] - still_open
        return flight.verdict(ended=ended, e2e_mean_s=self._e2e_mean_s(record))

    def _e2e_mean_s(self, record: StageRecord) -> float | None:
        """Of the measured streams, or put together from what is known of those of the warm-up."""
        means_ms = {
            name: record.metrics.latency.get(name, Histogram()).mean_ms()
            for name in ("e2e", "warmup_ttft", "warmup_tpot")
        }
        e2e_ms, ttft_ms, tpot_ms = means_ms.values()
        if e2e_ms is None and ttft_ms is not None and tpot_ms is not None:
            e2e_ms = ttft_ms + tpot_ms * (self._stage.osl - 1)
        return None if e2e_ms is None else e2e_ms / 1000
