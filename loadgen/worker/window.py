"""The measured window of a stage on one worker: what arrived between its beginning and its end.

Throughput is what arrived in the window, whichever stream carried it. Times are CLOCK_MONOTONIC nanoseconds, so that
the windows of several workers merge by minimum and maximum.
"""

from __future__ import annotations

import time

from loadgen.stream.samples import ClientSamples


class Window:
    """Opened once, drained each tick, closed at the end of the stage."""

    def __init__(self, meter: ClientSamples) -> None:
        self._meter = meter
        self._opened_ns: int | None = None
        self._area_ns = 0
        self._area_until_ns = 0
        self._held = 0
        self._peak = 0
        self._marks = (0, 0, 0)
        self._tail_start_ns: int | None = None

    @property
    def is_open(self) -> bool:
        return self._opened_ns is not None

    def open(self, at_ns: int) -> None:
        self._opened_ns = self._area_until_ns = at_ns
        self._peak = self._held
        self._marks = self._counts()

    def held_changed(self, held: int) -> None:
        """Integrate the number of open streams over time."""
        if self._opened_ns is not None:
            self._integrate(time.monotonic_ns())
            if held > self._peak:
                self._peak = held
        self._held = held

    def begin_tail(self) -> None:
        """A stream has ended and none is left to take its place; only the first time counts."""
        if self._tail_start_ns is None:
            self._tail_start_ns = time.monotonic_ns()

    def close(self) -> None:
        self._opened_ns = None

    def take(self, until_ns: int) -> dict[str, int | None]:
        """What arrived since the last call, by field of `StageDelta`; the window reaches to `until_ns` for now."""
        if self._opened_ns is None:
            return {}
        self._integrate(until_ns)
        counts = self._counts()
        requests, inputs, outputs = (count - mark for count, mark in zip(counts, self._marks, strict=True))
        self._marks = counts
        area_ns, self._area_ns = self._area_ns, 0
        return {
            "window_start_ns": self._opened_ns,
            "window_end_ns": until_ns,
            "tail_start_ns": self._tail_start_ns,
            "window_requests": requests,
            "window_input_tokens": inputs,
            "window_output_tokens": outputs,
            "held_area_ns": area_ns,
            "peak": self._peak,
        }

    def _counts(self) -> tuple[int, int, int]:
        return self._meter.requests, self._meter.input_tokens, self._meter.output_tokens

    def _integrate(self, now_ns: int) -> None:
        if now_ns > self._area_until_ns:
            self._area_ns += self._held * (now_ns - self._area_until_ns)
            self._area_until_ns = now_ns
