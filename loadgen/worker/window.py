"""The measured window of a stage on one worker: what arrived between its start and its end.

Throughput is what arrived in the window, whichever stream carried it. Times are CLOCK_MONOTONIC nanoseconds, so the
windows of several workers merge by minimum and maximum.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from loadgen.schema.deltas import HIT_COUNTS, LoadBin
from loadgen.stream.samples import ClientSamples, StageSamples, encoded_histogram, gap_histograms

_MOVED_NS = 100_000_000  # a clock further back than this was set back, as when a virtual machine is resumed


class Window:
    """Opened once, drained each tick, closed at the end of the stage."""

    def __init__(self, client: ClientSamples) -> None:
        self._client = client
        self.opened_ns: int | None = None
        self._area_ns = 0
        self._area_until_ns = 0
        self._held = 0
        self._peak = 0
        self._marks = (0, 0, 0)
        self._tail_start_ns: int | None = None

    @property
    def is_open(self) -> bool:
        return self.opened_ns is not None

    def open(self, at_ns: int) -> None:
        self.opened_ns = self._area_until_ns = at_ns
        self._peak = self._held
        self._marks = self._counts()

    def held_changed(self, held: int) -> None:
        """Integrate the number of open streams over time."""
        if self.opened_ns is not None:
            self._integrate(time.monotonic_ns())
            if held > self._peak:
                self._peak = held
        self._held = held

    def begin_tail(self) -> None:
        """A stream ended without a successor; only the first call counts."""
        if self._tail_start_ns is None:
            self._tail_start_ns = time.monotonic_ns()

    def close(self) -> None:
        self.opened_ns = None

    def take(self, until_ns: int) -> dict[str, int | None]:
        """What arrived since the last call, by field of `StageDelta`, in the window up to `until_ns`."""
        if self.opened_ns is None:
            return {}
        self._integrate(until_ns)
        counts = self._counts()
        requests, inputs, outputs = (count - mark for count, mark in zip(counts, self._marks, strict=True))
        self._marks = counts
        area_ns, self._area_ns = self._area_ns, 0
        return {
            "window_start_ns": self.opened_ns,
            "window_end_ns": until_ns,
            "tail_start_ns": self._tail_start_ns,
            "window_requests": requests,
            "window_input_tokens": inputs,
            "window_output_tokens": outputs,
            "held_area_ns": area_ns,
            "peak": self._peak,
        }

    def _counts(self) -> tuple[int, int, int]:
        client = self._client
        return (
            client.requests - client.primed_requests,
            client.input_tokens - client.primed_input_tokens,
            client.output_tokens_of_load,
        )

    def _integrate(self, now_ns: int) -> None:
        span_ns = now_ns - self._area_until_ns
        if span_ns > 0:
            self._area_ns += self._held * span_ns
        if span_ns > 0 or span_ns < -_MOVED_NS:
            self._area_until_ns = now_ns


class _Bin(msgspec.Struct):
    """What was timed at one step since the last drain."""

    span_ns: int = 0
    held_area_ns: int = 0
    output_tokens: int = 0
    hits: dict[str, int] = {}
    ttft_ns: list[int] = []
    gaps_ns: list[int] = []
    odd_gaps: list[tuple[int, int, int]] = []

    def encode(self) -> LoadBin:
        ttft, itl = encoded_histogram(self.ttft_ns), gap_histograms(self.gaps_ns, self.odd_gaps).get("itl")
        hits = {name: count for name, count in self.hits.items() if count}
        return LoadBin(self.span_ns, self.held_area_ns, self.output_tokens, hits, ttft=ttft, itl=itl)


_TIMED = ("ttft_ns", "gaps_ns", "odd_gaps")  # the lists that move from the stage's samples to the current step


class LoadBins:
    """The steps of a moving load on one worker: its share of each, and what was timed there."""

    def __init__(self, shares: Sequence[int | None], samples: StageSamples, client: ClientSamples) -> None:
        """`shares`: the streams that this worker is to hold at each step; None in open loop."""
        self._shares = [share for share in shares if share is not None]
        self._samples = samples
        self._client = client
        self._bins: dict[int, _Bin] = {}
        self._held = 0
        self._nearest = 0
        self._since_ns = 0
        self._tokens = 0
        self._hits = dict.fromkeys(HIT_COUNTS, 0)  # of the stage's samples, at the last move
        self.step = 0  # the schedule's current step; call `note_held` after changing it

    def begin(self, held: int, sessions: int | None = None) -> None:
        """The window has opened: count from here; see `note_held`."""
        self._held, self._nearest = held, self._nearest_to(held if sessions is None else sessions)
        self._since_ns = time.monotonic_ns()
        self._tokens = self._client.output_tokens_of_load
        self._hits = {name: getattr(self._samples, name) for name in HIT_COUNTS}

    def note_held(self, held: int, sessions: int | None = None) -> None:
        """`held` streams are open; do not call it between the end of a stream and the refill of its slot.

        Where the load is `sessions`, the step is that of their number.
        """
        nearest = self._nearest_to(held if sessions is None else sessions)
        if (held, nearest) != (self._held, self._nearest):
            self._move()
            self._held, self._nearest = held, nearest

    def drain(self) -> dict[int, LoadBin]:
        """What was timed since the last drain; also returns it to the stage's lists, which are drained next."""
        self._move()
        self._hits = dict.fromkeys(HIT_COUNTS, 0)  # as the stage's are after its drain
        bins, self._bins = self._bins, {}
        for part in bins.values():
            for name in _TIMED:
                getattr(self._samples, name).extend(getattr(part, name))
        return {step: part.encode() for step, part in bins.items()}

    def drop_samples(self) -> None:
        for part in self._bins.values():
            for name in _TIMED:
                getattr(part, name).clear()

    def _move(self) -> None:
        """Move what was timed since the last call from the stage's samples to the current step."""
        samples, client = self._samples, self._client
        part = self._bins.setdefault(self._nearest, _Bin())
        now_ns = time.monotonic_ns()
        part.span_ns += now_ns - self._since_ns
        part.held_area_ns += self._held * (now_ns - self._since_ns)
        part.output_tokens += client.output_tokens_of_load - self._tokens
        before, self._hits = self._hits, {name: getattr(samples, name) for name in HIT_COUNTS}
        part.hits = {name: part.hits.get(name, 0) + count - before[name] for name, count in self._hits.items()}
        for name in _TIMED:
            timed = getattr(samples, name)
            getattr(part, name).extend(timed)
            timed.clear()
        self._since_ns, self._tokens = now_ns, client.output_tokens_of_load

    def _nearest_to(self, held: int) -> int:
        """The step whose share is nearest to `held`; of several such steps, the one nearest to the schedule's.

        In open loop the streams that a rate will hold are unknown, so the schedule's own step counts.
        """
        if not self._shares:
            return self.step
        steps = range(len(self._shares))
        return min(steps, key=lambda step: (abs(self._shares[step] - held), abs(step - self.step)))
