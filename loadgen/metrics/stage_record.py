"""One stage of a record: what it asked for, its numbers so far, and what they say about the client."""

from __future__ import annotations

from loadgen.metrics.blocks import Blocks
from loadgen.metrics.gpu_stage import GpuLooks
from loadgen.metrics.histogram import Histogram, Summary
from loadgen.metrics.journal import EngineStage, StageEnded, StageSettled, StageStarted
from loadgen.metrics.snapshot import EngineView
from loadgen.metrics.stage import ClientMetrics, StageMetrics
from loadgen.metrics.verdict import ClientFacts, client_limit


class EngineGauges:
    """The engine's gauges over the ticks of a stage."""

    def __init__(self) -> None:
        self._waiting = 0.0
        self._ticks = 0
        self.kv_usage_max: float | None = None

    def add(self, view: EngineView | None) -> None:
        """Take a tick; one without the engine's word changes nothing."""
        if view is None or view.waiting is None:
            return
        self._waiting += view.waiting
        self._ticks += 1
        if view.kv_usage is not None:
            self.kv_usage_max = max(view.kv_usage, self.kv_usage_max or 0.0)

    @property
    def waiting_mean(self) -> float | None:
        """Requests that waited, on average."""
        return self._waiting / self._ticks if self._ticks else None


class StageRecord:
    """One stage, or one server's part in it: what it asked for, its numbers so far, how it ended."""

    def __init__(self, started: StageStarted, whole: StageRecord | None = None) -> None:
        """`whole` is the stage that this is a part of: rates are over its window, so that the parts add up."""
        self.started = started
        self.metrics = StageMetrics()
        self.blocks = Blocks()
        self.parts: list[StageRecord] = []
        """By server, where there are several."""
        self._whole = whole
        self.client = ClientMetrics()
        self.client_span_ns = 0
        self.settled: StageSettled | None = None
        self.ended: StageEnded | None = None
        self.engine: EngineStage | None = None
        self.alone = True
        """No stream of an earlier stage was open when it began."""
        self.looks = GpuLooks({})
        self.gauges = EngineGauges()

    @property
    def counters(self) -> dict[str, int]:
        """The counts of `StageMetrics`."""
        return self.metrics.counters

    @property
    def window_s(self) -> float:
        """Length of the measured window in seconds, 0 before it has begun."""
        return (self._whole or self).metrics.window_s

    def part(self, number: int) -> StageRecord:
        """The part of one of several servers."""
        while len(self.parts) <= number:
            self.parts.append(StageRecord(self.started, self))
        return self.parts[number]

    def pack(self) -> None:
        """Take less memory: it is long over."""
        for each in (self, *self.parts):
            each.metrics.pack()
            each.client.pack()

    def per_second(self, *counters: str) -> float | None:
        """Counts of the window over its length; None before it has one."""
        window_s = self.window_s
        return sum(self.counters[name] for name in counters) / window_s if window_s else None

    @property
    def held_mean(self) -> float | None:
        """Mean number of open streams in the window."""
        window_s = self.window_s
        return self.counters["held_area_ns"] / 1e9 / window_s if window_s else None

    def summaries(self, *names: str, with_hdr: bool = False) -> dict[str, Summary]:
        """The statistics of the named latencies, in milliseconds."""
        empty = Histogram()
        return {name: self.metrics.latency.get(name, empty).summary(with_hdr=with_hdr) for name in names}

    def limit(self) -> str | None:
        """Why the client could not keep up in this stage; None when it could."""
        started, window_s = self.started, self.window_s
        bounded_by_time = started.requests is None
        e2e = self.metrics.latency.get("e2e", Histogram())
        # With a limit to the streams at once requests are late as the operator wants it.
        scheduled = started.rate is not None and started.most is None
        facts = ClientFacts(
            cpu_share=self.client.cpu_ns / self.client_span_ns if self.client_span_ns else None,
            realtime_share=self.client.realtime_ns / self.client_span_ns if self.client_span_ns else None,
            read_lag_p99_ms=self.client.read_lag.percentile_ms(99),
            coalesced_share=self.client.coalesced_share,
            # A stage that counts requests runs empty at its end, whoever is to blame.
            held_mean=self.held_mean if bounded_by_time and window_s > 1 else None,
            wanted=started.concurrency,
            send_lag_mean_ms=self.client.send_lag.mean_ms(),
            e2e_mean_ms=e2e.mean_ms(),
            send_lag_p99_ms=self.client.send_lag.percentile_ms(99) if scheduled else None,
            mean_gap_ms=1000 / started.rate if started.rate and scheduled else None,
        )
        return client_limit(facts)

    @property
    def settled_s(self) -> float | None:
        """How long the transient took, in seconds; None for a stage that does not wait for its end."""
        return None if self.settled is None else round(self.settled.t_s - self.started.t_s, 3)

    @property
    def inconclusive(self) -> str | None:
        """Why a stage that waits for its transient says too little; None if it does not, or while it runs."""
        waits = self.started.settle_s or self.started.sheds
        if not waits or self.ended is None:
            return None
        if self.settled is None:
            return "it ended before its transient was over"
        problems = []
        if not self.settled.settled:
            problems.append(f"its transient was not over within {self.started.settle_s:g} s")
        if self.counters["completed"] < self.started.completed:
            problems.append(f"{self.counters['completed']} of at least {self.started.completed} streams completed")
        return "; ".join(problems) or None
