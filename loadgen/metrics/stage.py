"""The figures of one stage, as a commutative monoid.

Workers send a `StageDelta` each tick; a `StageMetrics` is their sum. Every field merges by addition, minimum or
maximum, so the result is the same for any number of workers and any cut into ticks (property-tested).

A stage contains what happens under its load, and nothing else. Within the window, between
`window_start_ns` and `window_end_ns`:
- ITL and chunk gaps: every gap that began and ended in it, of any stream, also of one sent in an earlier stage;
- TPOT: of the part of each stream within it, if that has at least 8 tokens; a whole stream gives the usual TPOT;
- TTFT: of streams sent and answered in it; E2E, normalized latency and goodput: of streams entirely in it;
- tokens and throughput: what arrived in it, whichever stream carried it.

A stream is counted in the stage in which it was sent: once the stage has ended, `sent` is `completed + failed +
cancelled + unfinished + carried_over`, and the scheduled requests are `sent + unsent`. Streams sent before the window
opened are counted in `warmup`, those open when the stage began in `carried_in`. Times still awaited when the stage
ends, or when a client hangs up before the first token, are in the `censored` latencies, with the time so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Self

import msgspec

from loadgen.metrics.histogram import Histogram
from loadgen.schema.deltas import (
    CLIENT_COUNTERS,
    COUNTERS,
    MESSAGES_KEPT,
    SESSION_COUNTERS,
    ClientDelta,
    LoadBin,
    SessionCounts,
    StageDelta,
)

_COUNTED_BY_NAME = ("models", "errors", "degenerate", "loops", "finish_reasons")


class LoadSum:
    """What was measured while a number of streams was held; `LoadSum()` is zero."""

    def __init__(self) -> None:
        self.span_ns = 0
        self.held_area_ns = 0
        self.output_tokens = 0
        self.hits: Counter[str] = Counter()
        self.ttft = Histogram()
        self.itl = Histogram()

    def add(self, other: LoadSum) -> None:
        self.span_ns += other.span_ns
        self.held_area_ns += other.held_area_ns
        self.output_tokens += other.output_tokens
        self.hits.update(other.hits)
        self.ttft.add(other.ttft)
        self.itl.add(other.itl)

    @classmethod
    def decode(cls, delta: LoadBin) -> Self:
        total = cls()
        total.span_ns, total.held_area_ns, total.output_tokens = delta.span_ns, delta.held_area_ns, delta.output_tokens
        total.hits.update(delta.hits)
        total.ttft, total.itl = Histogram.decode(delta.ttft), Histogram.decode(delta.itl)
        return total

    def encode(self) -> LoadBin:
        ttft, itl = self.ttft.encode_some(), self.itl.encode_some()
        return LoadBin(self.span_ns, self.held_area_ns, self.output_tokens, dict(sorted(self.hits.items())), ttft, itl)


class StageMetrics:
    """The sum of deltas of one stage; `StageMetrics()` is zero."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self.window_start_ns: int | None = None
        self.window_end_ns: int | None = None
        self.tail_start_ns: int | None = None
        self.unsent_wait_ns = 0
        self.peak = 0
        self.sessions: dict[str, int] | None = None
        self.bins: dict[int, LoadSum] = {}
        self.models: dict[str, int] = {}
        self.errors: dict[str, int] = {}
        self.finish_reasons: dict[str, int] = {}
        self.degenerate: dict[str, int] = {}
        self.loops: dict[str, int] = {}
        self.messages: dict[str, list[str]] = {}
        self.latency: dict[str, Histogram] = {}

    def add(self, delta: StageDelta) -> None:
        """Add a tick of one worker, or all that another `StageMetrics` encoded."""
        for name in COUNTERS:
            self.counters[name] += getattr(delta, name)
        self.window_start_ns = min(_known(self.window_start_ns, delta.window_start_ns), default=None)
        self.window_end_ns = max(_known(self.window_end_ns, delta.window_end_ns), default=None)
        self.tail_start_ns = min(_known(self.tail_start_ns, delta.tail_start_ns), default=None)
        self.unsent_wait_ns = max(self.unsent_wait_ns, delta.unsent_wait_ns)
        self.peak = max(self.peak, delta.peak)
        if delta.sessions is not None:
            before = self.sessions or dict.fromkeys(SESSION_COUNTERS, 0)
            self.sessions = {name: count + getattr(delta.sessions, name) for name, count in before.items()}
        for step, part in delta.bins.items():
            self.bins.setdefault(step, LoadSum()).add(LoadSum.decode(part))
        for name in _COUNTED_BY_NAME:
            counts = getattr(self, name)
            for key, count in getattr(delta, name).items():
                counts[key] = counts.get(key, 0) + count
        for kind, messages in delta.messages.items():
            kept = self.messages.get(kind, [])
            # Their order across workers is unknown; the smallest few are the same in any order of merging.
            self.messages[kind] = sorted({*kept, *messages})[:MESSAGES_KEPT]
        for name, encoded in delta.latency.items():
            histogram = Histogram.decode(encoded)
            self.latency.setdefault(name, Histogram()).add(histogram)
            if name == "itl" and "chunk_gap" not in delta.latency:
                self.latency.setdefault("chunk_gap", Histogram()).add(histogram)

    def merge(self, other: StageMetrics) -> None:
        """Add another sum, without encoding its latencies first."""
        for name, histogram in other.latency.items():
            self.latency.setdefault(name, Histogram()).add(histogram)
        self.add(other._plain())

    def thin(self) -> None:
        """Use less memory, once nothing more is expected."""
        of_bins = (each for part in self.bins.values() for each in (part.ttft, part.itl))
        for histogram in (*self.latency.values(), *of_bins):
            histogram.thin()

    def encode(self) -> StageDelta:
        """The whole sum as one delta."""
        latency = {name: histogram.encode() for name, histogram in sorted(self.latency.items())}
        if "itl" in latency and latency.get("chunk_gap") == latency["itl"]:
            del latency["chunk_gap"]
        return msgspec.structs.replace(self._plain(), latency=latency)

    def _plain(self) -> StageDelta:
        return StageDelta(
            **self.counters,  # type: ignore[arg-type]  # all counters are ints, as COUNTERS lists them
            window_start_ns=self.window_start_ns,
            window_end_ns=self.window_end_ns,
            tail_start_ns=self.tail_start_ns,
            unsent_wait_ns=self.unsent_wait_ns,
            peak=self.peak,
            sessions=None if self.sessions is None else SessionCounts(**self.sessions),
            bins={step: part.encode() for step, part in sorted(self.bins.items())},
            messages=dict(sorted(self.messages.items())),
            **{name: dict(sorted(getattr(self, name).items())) for name in _COUNTED_BY_NAME},  # type: ignore[arg-type]
        )

    @classmethod
    def of(cls, *deltas: StageDelta) -> Self:
        metrics = cls()
        for delta in deltas:
            metrics.add(delta)
        return metrics

    @property
    def window(self) -> tuple[float, float] | None:
        """When the measured window began and ended (CLOCK_MONOTONIC); None before it has begun."""
        if self.window_start_ns is None or self.window_end_ns is None:
            return None
        return self.window_start_ns / 1e9, self.window_end_ns / 1e9

    @property
    def window_s(self) -> float:
        """Length of the measured window in seconds, 0 before it has begun."""
        if self.window_start_ns is None or self.window_end_ns is None:
            return 0.0
        return max(0, self.window_end_ns - self.window_start_ns) / 1e9

    @property
    def tail_s(self) -> float:
        """The part of the window after requests ran out; 0 if the stage is not bounded by requests."""
        if self.tail_start_ns is None or self.window_end_ns is None:
            return 0.0
        return max(0, self.window_end_ns - self.tail_start_ns) / 1e9


class ClientMetrics:
    """The sum of client deltas; `ClientMetrics()` is zero."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = dict.fromkeys(CLIENT_COUNTERS, 0)
        self.read_lag = Histogram()
        self.send_lag = Histogram()

    def add(self, delta: ClientDelta) -> None:
        for name in CLIENT_COUNTERS:
            self.counters[name] += getattr(delta, name)
        self.read_lag.add(Histogram.decode(delta.read_lag))
        self.send_lag.add(Histogram.decode(delta.send_lag))

    def thin(self) -> None:
        self.read_lag.thin()
        self.send_lag.thin()

    def encode(self) -> ClientDelta:
        lags = {"read_lag": self.read_lag.encode_some(), "send_lag": self.send_lag.encode_some()}
        return ClientDelta(**self.counters, **lags)  # type: ignore[arg-type]  # all counters are ints

    @property
    def coalesced_share(self) -> float | None:
        return self.counters["coalesced_reads"] / self.counters["reads"] if self.counters["reads"] else None


def _known(*values: int | None) -> list[int]:
    return [value for value in values if value is not None]


def merge_stages(
    parts: Sequence[dict[int, StageDelta]], *, peak: Callable[[Iterable[int]], int] = max
) -> dict[int, StageDelta]:
    """The deltas summed by stage; `peak` merges peaks: `max` over one worker's ticks, `sum` over concurrent workers."""
    by_stage: dict[int, list[StageDelta]] = {}
    for stages in parts:
        for index, delta in stages.items():
            by_stage.setdefault(index, []).append(delta)
    # With the usual single worker, its delta is already the sum.
    return {
        index: deltas[0]
        if len(deltas) == 1
        else msgspec.structs.replace(StageMetrics.of(*deltas).encode(), peak=peak(delta.peak for delta in deltas))
        for index, deltas in by_stage.items()
    }
