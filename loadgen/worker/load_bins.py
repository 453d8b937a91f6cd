"""A load that moves: what is timed, kept by the step of the load that was held when it arrived.

A step is as many streams as the schedule wants for a while. On the way between two steps, as when streams of a falling
load have yet to end, what arrives belongs to the step nearest to what is held. Invariant: whenever the step changes,
what the tally has timed until then is moved to the step before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from loadgen.metrics.deltas import LoadBin
from loadgen.stream.samples import ClientSamples, StageSamples, encoded_histogram, gap_histograms


class _Bin:
    """What has been timed at one step since the last drain."""

    def __init__(self) -> None:
        self.span_ns = 0
        self.held_area_ns = 0
        self.output_tokens = 0
        self.ttft_ns: list[int] = []
        self.gaps_ns: list[int] = []
        self.odd_gaps: list[tuple[int, int, int]] = []

    def encode(self) -> LoadBin:
        return LoadBin(
            span_ns=self.span_ns,
            held_area_ns=self.held_area_ns,
            output_tokens=self.output_tokens,
            ttft=encoded_histogram(self.ttft_ns),
            itl=gap_histograms(self.gaps_ns, self.odd_gaps).get("itl"),
        )


class LoadBins:
    """The steps of a moving load on one worker: its share of each, and what was timed there."""

    def __init__(self, shares: Sequence[int | None], tally: StageSamples, meter: ClientSamples) -> None:
        """`shares` are the streams that this worker is to hold at each step; None in open loop."""
        self._shares = [share for share in shares if share is not None]
        self._tally = tally
        self._meter = meter
        self._bins: dict[int, _Bin] = {}
        self._held = 0
        self._nearest = 0
        self._since_ns = 0
        self._tokens = 0
        self.step = 0  # the step that the schedule has come to; tell it by `note_held`

    def begin(self, held: int) -> None:
        """The window is open: count from here."""
        self._held = held
        self._nearest = self._nearest_to(held)
        self._since_ns = time.monotonic_ns()
        self._tokens = self._meter.output_tokens

    def note_held(self, held: int) -> None:
        """So many streams are open now; called when they are, and never between an end and its refill."""
        if held == self._held and self._nearest == self._nearest_to(held):
            return
        self._move()
        self._held = held
        self._nearest = self._nearest_to(held)

    def drain(self) -> dict[int, LoadBin]:
        """What was timed since the last drain; also ends up in the tally's own lists, which are drained after this."""
        self._move()
        bins, self._bins = self._bins, {}
        for part in bins.values():
            self._tally.ttft_ns += part.ttft_ns
            self._tally.gaps_ns += part.gaps_ns
            self._tally.odd_gaps += part.odd_gaps
        return {step: part.encode() for step, part in bins.items()}

    def _move(self) -> None:
        """Move what the tally has timed to the present step."""
        tally, meter = self._tally, self._meter
        part = self._bins.setdefault(self._nearest, _Bin())
        now_ns = time.monotonic_ns()
        part.span_ns += now_ns - self._since_ns
        part.held_area_ns += self._held * (now_ns - self._since_ns)
        part.output_tokens += meter.output_tokens - self._tokens
        part.ttft_ns += tally.ttft_ns
        part.gaps_ns += tally.gaps_ns
        part.odd_gaps += tally.odd_gaps
        tally.ttft_ns.clear()
        tally.gaps_ns.clear()
        tally.odd_gaps.clear()
        self._since_ns, self._tokens = now_ns, meter.output_tokens

    def _nearest_to(self, held: int) -> int:
        """Of the steps with the nearest share the one nearest to the schedule's: several may have the same share.

        In open loop nobody knows how many streams a rate will hold, so that the schedule's own step counts.
        """
        if not self._shares:
            return self.step
        steps = range(len(self._shares))
        return min(steps, key=lambda step: (abs(self._shares[step] - held), abs(step - self.step)))
