"""The fold of a run's ticks into a time axis: points four times a second, and the latencies of the latest seconds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.hits import NO_HITS, hits_of
from loadgen.metrics.series import TimeSeries
from loadgen.metrics.stage import StageMetrics
from loadgen.record.stage import StageRecord
from loadgen.schema.deltas import HIT_COUNTS, MAIN_LATENCIES, Summary
from loadgen.schema.engine import EngineView, OthersTraffic
from loadgen.schema.journal import Ticked
from loadgen.schema.snapshot import RECENT_S, SNAPSHOT_S, WINDOW_S, SeriesPoint

_COLUMNS = tuple(name for name in SeriesPoint.__struct_fields__ if name != "t_s")
_CAPACITY = 6_000
_KEPT_RAW = 1_200  # five minutes at four points a second
_POINTS_KEPT = 31
_MAX_RECENT = int(2 * RECENT_S / SNAPSHOT_S)  # a damaged or foreign journal may have any number of ticks at one moment


class _Tick(NamedTuple):
    t_s: float
    latency: dict[str, list[Histogram]]  # including warm-up
    hits: Counter[str]
    failed: int
    completed: int


class RunTimeline:
    """A run over time, in bounded memory."""

    def __init__(self) -> None:
        self.points: list[SeriesPoint] = []  # the newest; `series` has all of them
        self.series = TimeSeries(_COLUMNS, capacity=_CAPACITY, kept_raw=_KEPT_RAW)
        self._recent: deque[_Tick] = deque(maxlen=_MAX_RECENT)  # of the last `RECENT_S` seconds
        self._heard_s: float | None = None

    def add(
        self,
        line: Ticked,
        metrics: Iterable[StageMetrics],
        *,
        running: StageRecord | None,
        others: OthersTraffic | None,
    ) -> None:
        """Add a tick, with its figures for each stage and others' traffic at the time."""
        if line.has_output or not line.held or self._heard_s is None:
            self._heard_s = line.t_s
        latency: dict[str, list[Histogram]] = {name: [] for name in MAIN_LATENCIES}
        hits = Counter[str]()
        for one in metrics:
            hits.update({name: one.counters[name] for name in HIT_COUNTS})
            for name, histograms in latency.items():
                histograms += [one.latency[key] for key in (name, f"warmup_{name}") if key in one.latency]
        self._recent.append(_Tick(line.t_s, latency, hits, line.failed, line.client.requests))
        while self._recent[0].t_s <= line.t_s - RECENT_S:
            self._recent.popleft()
        point = self._point(line, running, others)
        self.points = [*self.points[-_POINTS_KEPT:], point]
        self.series.add(point.t_s, {name: getattr(point, name) for name in _COLUMNS})

    @property
    def quiet_s(self) -> float:
        """How long no output has arrived although streams are open; 0 otherwise."""
        return self.points[-1].t_s - self._heard_s if self._heard_s is not None else 0.0

    def recent(self) -> dict[str, Summary]:
        """The statistics of the last `RECENT_S` seconds, in milliseconds: ttft, tpot, itl, e2e."""
        return {name: self._over(name, -inf).summary() for name in MAIN_LATENCIES}

    def recent_ends(self) -> tuple[int, int]:
        """How many streams failed and how many completed in the last `RECENT_S` seconds, including warm-up."""
        return sum(tick.failed for tick in self._recent), sum(tick.completed for tick in self._recent)

    def _point(self, line: Ticked, running: StageRecord | None, others: OthersTraffic | None) -> SeriesPoint:
        ttft, tpot = self._over("ttft", line.t_s - WINDOW_S), self._over("tpot", line.t_s - WINDOW_S)
        engine, sessions = line.engine or EngineView(), line.sessions
        kv_tokens = running.kv_tokens if running is not None else None
        recent = sum((tick.hits for tick in self._recent), Counter[str]())
        hits = hits_of(recent, pool_tokens=kv_tokens) or NO_HITS
        is_seen = others is not None and (others.seen or (running is not None and running.started.no_load))
        return SeriesPoint(
            t_s=round(line.t_s, 3),
            held=line.held,
            target=None if running is None else running.started.load_at(running.measured_s(line.t_s)),
            output_tokens_per_s=round(line.client.output_tokens / line.span_s, 2) if line.span_s else None,
            requests_per_s=round(line.client.requests / line.span_s, 2) if line.span_s else None,
            ttft_p50_ms=ttft.percentile_ms(50),
            ttft_p99_ms=ttft.percentile_ms(99),
            tpot_p50_ms=tpot.percentile_ms(50),
            tpot_p99_ms=tpot.percentile_ms(99),
            errors=line.failed,
            engine_running=engine.running,
            engine_waiting=engine.waiting,
            kv_usage=engine.kv_usage,
            live_sessions=None if sessions is None else sessions.live,
            pausing_sessions=None if sessions is None else sessions.pausing,
            due_requests=None if sessions is None else sessions.due,
            context_tokens=None if sessions is None else sessions.context_tokens,
            hit_percent=_percent(hits.measured),
            infinite_hit_percent=_percent(hits.infinite),
            pool_hit_percent=_percent(hits.pool),
            others_tokens_per_s=others.generation_tokens_per_s if others is not None and is_seen else None,
            read_lag_p99_ms=Histogram.decode(line.client.read_lag).percentile_ms(99),
            client_rss_mb=round(line.rss_bytes / 1e6, 1) if line.rss_bytes else None,
            client_cpu_percent=round(100 * line.client.cpu_ns / 1e9 / line.span_s, 1) if line.span_s else None,
        )

    def _over(self, name: str, after_s: float) -> Histogram:
        """A latency over the ticks after a moment."""
        total = Histogram()
        for tick in self._recent:
            for histogram in tick.latency[name] if tick.t_s > after_s else ():
                total.add(histogram)
        return total


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)
