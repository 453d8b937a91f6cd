"""What a running stage is watched for: the moment from which it is measured, and a queue that grows without bound.

A stage that time bounds is measured under its own load: once no stream is left of a higher one before, and once the
streams that all begin at once, as into an idle engine, have their first tokens. One that settles waits for the end of
its whole transient.
"""

from __future__ import annotations

from loadgen.fleet.fleet import FleetTick
from loadgen.metrics.stage import StageDelta
from loadgen.metrics.stage_record import StageRecord
from loadgen.plan.stage import Stage
from loadgen.run.saturation import OverloadDetector
from loadgen.run.settling import Transient, ttft_of

_WAVE_SHARE = 0.1  # of the streams that a stage wants: if fewer begin at once, they are requests like any other
LONGEST_FILL_S = 30.0
"""A stage without an end of its own waits no longer for its first wave, any other for as long as it is measured."""


class StageWatch:
    """Watches one stage from its beginning."""

    def __init__(self, stage: Stage, held: int, filled: int) -> None:
        """`held` streams are open when it begins, and `filled` once all workers have filled their shares."""
        self._stage = stage
        self._transient = Transient(stage.concurrency) if stage.settle_s else None
        bounded_by_time = stage.requests is None and not stage.settle_s
        concurrency = stage.concurrency or 0
        self.first_wave_apart = stage.first_wave == "apart" and concurrency - held > _WAVE_SHARE * concurrency
        """Many streams begin at once, and are told apart."""
        self.fills = self.first_wave_apart and bounded_by_time  # it is measured once those have their first tokens
        self.sheds = bounded_by_time and stage.concurrency is not None and filled > concurrency
        """More streams are open than it wants, and it is measured without them."""
        self._ready = False
        self.late = False  # its first wave takes so long that it is measured all the same
        self._flight = OverloadDetector(stage.rate) if stage.rate is not None and not stage.steps else None
        self.saturated: str | None = None  # why it should not go on, once that is known

    def beat(self, tick: FleetTick, record: StageRecord, t_s: float) -> None:
        """Take in a tick, `t_s` after the stage began."""
        index = record.started.index
        delta = tick.stages.get(index)
        if self._transient is not None:
            self._transient.beat(held=tick.held, delta=delta, output_tokens=tick.client.output_tokens)
        elif self.waits and t_s >= self._stage.warmup_s:
            self._look(tick, t_s - self._stage.warmup_s)
        if self._flight is not None and self.saturated is None:
            self.saturated = self._judge(self._flight, tick, record, delta, t_s)

    def _look(self, tick: FleetTick, t_s: float) -> None:
        filled = tick.first_wave_waiting == 0 or not self.fills
        shed = tick.held <= (self._stage.concurrency or 0) or not self.sheds
        self._ready = self._ready or (tick.first_wave_waiting is not None and filled and shed)
        self.late = self.fills and not self._ready and t_s > (self._stage.duration_s or LONGEST_FILL_S)

    @property
    def waits(self) -> bool:
        """It is not measured from a time that is known when it begins."""
        return self.sheds or self.fills or self._transient is not None

    @property
    def settled(self) -> bool:
        """Its transient is over; never true of a stage that does not wait for that."""
        return self._ready or (self._transient is not None and self._transient.over)

    def _judge(
        self, flight: OverloadDetector, tick: FleetTick, record: StageRecord, delta: StageDelta | None, t_s: float
    ) -> str | None:
        still_open = tick.open_stages.get(record.started.index, 0)
        if not flight.beat(t_s, still_open + tick.queued, ttft_of(delta)):
            return None
        ended = record.counters["warmup"] + record.counters["sent"] - still_open
        return flight.verdict(ended=ended, e2e_mean_s=self._e2e_mean_s(record))

    def _e2e_mean_s(self, record: StageRecord) -> float | None:
        """Of the measured streams, or put together from what is known of those of the warm-up."""
        means_ms = {name: record.histogram(name).mean_ms() for name in ("e2e", "warmup_ttft", "warmup_tpot")}
        e2e_ms, ttft_ms, tpot_ms = means_ms.values()
        if e2e_ms is None and ttft_ms is not None and tpot_ms is not None:
            e2e_ms = ttft_ms + tpot_ms * (self._stage.osl - 1)
        return None if e2e_ms is None else e2e_ms / 1000
